// f32x16 / i32x16: the sixteen virtual lanes of every float kernel, one type per ISA with the same bits.
//
// Included once per variant unit (see variant.h), inside that variant's own namespace: the same kernel source
// compiles to AVX-512 (one zmm), AVX2 (two ymm), NEON (four q registers) or plain loops. Rules that keep all variants
// bit-identical:
//   - a multiply-add in a reduction is `fma` (fused on every ISA); everything else is a separate rounding
//     (the build passes -ffp-contract=off);
//   - `reduce_add` is the one fixed tree: (l[i] + l[i+8]), then +4, +2, +1;
//   - min and max return the second operand when either is NaN, as x86 does.
// No std:: templates here: the linker could keep a copy compiled for a wider ISA than the CPU at hand.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)  // not the portable unit, which CMake holds to armv8-a
#define EDGE_NEON 1
#include <arm_neon.h>
#endif

#define EDGE_INLINE inline __attribute__((always_inline))
#define EDGE_INLINE_LAMBDA __attribute__((always_inline))  // [&](auto i) EDGE_INLINE_LAMBDA { ... }

namespace edge {
namespace EDGE_VARIANT {

constexpr int kLanes = 16;

// f(Index<0>), f(Index<1>), ... f(Index<N-1>), written out by the compiler before it assigns registers: arrays indexed so
// live in registers. (An unrolled loop comes too late for GCC, which then keeps the array in memory as well.)
template <int I>
struct Index {
  constexpr operator int() const { return I; }
};
template <int N, int I = 0, class F>
EDGE_INLINE void unrolled(F&& f) {
  if constexpr (I < N) {
    f(Index<I>{});
    unrolled<N, I + 1>(f);
  }
}

EDGE_INLINE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
EDGE_INLINE int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
EDGE_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Scalar twins of the lane operations, for the few places that work on one value.
EDGE_INLINE float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

#if defined(__AVX512F__)

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };

EDGE_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

EDGE_INLINE f32x16 zero() { return {_mm512_setzero_ps()}; }
EDGE_INLINE f32x16 broadcast(float x) { return {_mm512_set1_ps(x)}; }
EDGE_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
EDGE_INLINE f32x16 load_partial(const float* p, int n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
EDGE_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
EDGE_INLINE void store_partial(float* p, f32x16 a, int n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }

EDGE_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
EDGE_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
EDGE_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
EDGE_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
EDGE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
EDGE_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
EDGE_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
EDGE_INLINE f32x16 abs(f32x16 a) { return {_mm512_abs_ps(a.v)}; }
EDGE_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// bit i set where a[i] > b[i]
EDGE_INLINE uint32_t mask_greater(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }

EDGE_INLINE i32x16 load_i32(const void* p) { return {_mm512_loadu_si512(p)}; }  // 64 bytes, any alignment
EDGE_INLINE i32x16 load_i32_partial(const int32_t* p, int n) { return {_mm512_maskz_loadu_epi32(first_lanes(n), p)}; }
EDGE_INLINE void store_i32(int32_t* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
EDGE_INLINE i32x16 broadcast_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
EDGE_INLINE i32x16 add_i32(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
EDGE_INLINE i32x16 sub_i32(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
EDGE_INLINE i32x16 xor_i32(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
EDGE_INLINE i32x16 shift_left(i32x16 a, int bits) { return {_mm512_sll_epi32(a.v, _mm_cvtsi32_si128(bits))}; }
EDGE_INLINE i32x16 shift_right(i32x16 a, int bits) { return {_mm512_sra_epi32(a.v, _mm_cvtsi32_si128(bits))}; }
EDGE_INLINE i32x16 bits_of(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
EDGE_INLINE f32x16 float_of_bits(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
// Saturating narrow to int8 / int16.
EDGE_INLINE void store_i8(int8_t* p, i32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}
EDGE_INLINE void store_i16(int16_t* p, i32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(a.v));
}
alignas(64) static const int16_t kEvenWords[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30,
                                                   32, 34, 36, 38, 40, 42, 44, 46, 48, 50, 52, 54, 56, 58, 60, 62};
EDGE_INLINE void store_low_i16(int16_t* p, i32x16 a, i32x16 b) {
  _mm512_storeu_si512(p, _mm512_permutex2var_epi16(a.v, _mm512_load_si512(kEvenWords), b.v));
}

EDGE_INLINE f32x16 from_i32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
EDGE_INLINE f32x16 from_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
EDGE_INLINE f32x16 from_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
EDGE_INLINE void to_f16(uint16_t* p, f32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Round half to even. Out of range or NaN: INT32_MIN.
EDGE_INLINE i32x16 round_even(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
EDGE_INLINE f32x16 round_even_f32(f32x16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

EDGE_INLINE __m256 fold_add(f32x16 a) {
  return _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}
EDGE_INLINE __m256 fold_max(f32x16 a) {
  return _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
}

#elif defined(__AVX2__)

struct f32x16 { __m256 lo, hi; };
struct i32x16 { __m256i lo, hi; };

alignas(64) static const int32_t kLaneMask[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
EDGE_INLINE __m256i first_lanes(int n, int half) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kLaneMask + 16 - n + 8 * half));
}

EDGE_INLINE f32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
EDGE_INLINE f32x16 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
EDGE_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
EDGE_INLINE f32x16 load_partial(const float* p, int n) {
  return {_mm256_maskload_ps(p, first_lanes(n, 0)), _mm256_maskload_ps(p + 8, first_lanes(n, 1))};
}
EDGE_INLINE void store(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
EDGE_INLINE void store_partial(float* p, f32x16 a, int n) {
  _mm256_maskstore_ps(p, first_lanes(n, 0), a.lo);
  _mm256_maskstore_ps(p + 8, first_lanes(n, 1), a.hi);
}

EDGE_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
EDGE_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
EDGE_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
EDGE_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
EDGE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
EDGE_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
EDGE_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
EDGE_INLINE f32x16 abs(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
EDGE_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
// bit i set where a[i] > b[i]
EDGE_INLINE uint32_t mask_greater(f32x16 a, f32x16 b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) << 8;
}

EDGE_INLINE i32x16 load_i32(const void* p) {  // 64 bytes, any alignment
  const auto* halves = static_cast<const __m256i_u*>(p);
  return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
EDGE_INLINE i32x16 load_i32_partial(const int32_t* p, int n) {
  return {_mm256_maskload_epi32(p, first_lanes(n, 0)), _mm256_maskload_epi32(p + 8, first_lanes(n, 1))};
}
EDGE_INLINE void store_i32(int32_t* p, i32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
EDGE_INLINE i32x16 broadcast_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
EDGE_INLINE i32x16 add_i32(i32x16 a, i32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
EDGE_INLINE i32x16 sub_i32(i32x16 a, i32x16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
EDGE_INLINE i32x16 xor_i32(i32x16 a, i32x16 b) { return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)}; }
EDGE_INLINE i32x16 shift_left(i32x16 a, int bits) {
  const __m128i count = _mm_cvtsi32_si128(bits);
  return {_mm256_sll_epi32(a.lo, count), _mm256_sll_epi32(a.hi, count)};
}
EDGE_INLINE i32x16 shift_right(i32x16 a, int bits) {
  const __m128i count = _mm_cvtsi32_si128(bits);
  return {_mm256_sra_epi32(a.lo, count), _mm256_sra_epi32(a.hi, count)};
}
EDGE_INLINE i32x16 bits_of(f32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
EDGE_INLINE f32x16 float_of_bits(i32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
// Sixteen int16 in lane order (saturating).
EDGE_INLINE __m256i narrow_i16(i32x16 a) {
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xD8);
}
// Saturating narrow to int8 / int16.
EDGE_INLINE void store_i8(int8_t* p, i32x16 a) {
  const __m256i words = narrow_i16(a);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
EDGE_INLINE void store_i16(int16_t* p, i32x16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_i16(a));
}

EDGE_INLINE f32x16 from_i32(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
EDGE_INLINE f32x16 from_i8(const int8_t* p) {
  const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i high = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(high))};
}
EDGE_INLINE f32x16 from_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
EDGE_INLINE void to_f16(uint16_t* p, f32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                   _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
// Round half to even. Out of range or NaN: INT32_MIN.
EDGE_INLINE i32x16 round_even(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
EDGE_INLINE f32x16 round_even_f32(f32x16 a) {
  return {_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

EDGE_INLINE __m256 fold_add(f32x16 a) { return _mm256_add_ps(a.lo, a.hi); }
EDGE_INLINE __m256 fold_max(f32x16 a) { return _mm256_max_ps(a.lo, a.hi); }

#elif defined(EDGE_NEON)

struct f32x16 { float32x4_t v[4]; };
struct i32x16 { int32x4_t v[4]; };

// The expression for i = 0..3, written out as in `unrolled`; the result has type T.
#define EDGE_QUARTERS(T, expression)                                           \
  const auto quarter = [&](auto i) EDGE_INLINE_LAMBDA { return (expression); }; \
  return T{{quarter(Index<0>{}), quarter(Index<1>{}), quarter(Index<2>{}), quarter(Index<3>{})}}

EDGE_INLINE f32x16 broadcast(float x) {
  const float32x4_t same = vdupq_n_f32(x);
  return {{same, same, same, same}};
}
EDGE_INLINE f32x16 zero() { return broadcast(0.0f); }
EDGE_INLINE f32x16 load(const float* p) { EDGE_QUARTERS(f32x16, vld1q_f32(p + 4 * i)); }
EDGE_INLINE f32x16 load_partial(const float* p, int n) {
  float lanes[kLanes] = {};
  memcpy(lanes, p, 4 * static_cast<size_t>(n));
  return load(lanes);
}
EDGE_INLINE void store(float* p, f32x16 a) {
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA { vst1q_f32(p + 4 * i, a.v[i]); });
}
EDGE_INLINE void store_partial(float* p, f32x16 a, int n) {
  float lanes[kLanes];
  store(lanes, a);
  memcpy(p, lanes, 4 * static_cast<size_t>(n));
}

EDGE_INLINE f32x16 add(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, vaddq_f32(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 sub(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, vsubq_f32(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 mul(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, vmulq_f32(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 div(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, vdivq_f32(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { EDGE_QUARTERS(f32x16, vfmaq_f32(c.v[i], a.v[i], b.v[i])); }
// Selected, because fmax and fmin treat NaN and -0 in their own way.
EDGE_INLINE float32x4_t max(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
EDGE_INLINE float32x4_t min(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
EDGE_INLINE f32x16 max(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, max(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 min(f32x16 a, f32x16 b) { EDGE_QUARTERS(f32x16, min(a.v[i], b.v[i])); }
EDGE_INLINE f32x16 abs(f32x16 a) { EDGE_QUARTERS(f32x16, vabsq_f32(a.v[i])); }
EDGE_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  EDGE_QUARTERS(f32x16, vbslq_f32(vcltq_f32(a.v[i], b.v[i]), yes.v[i], no.v[i]));
}
// Sixteen bytes in lane order.
EDGE_INLINE uint8x16_t narrow_u8(uint32x4_t a, uint32x4_t b, uint32x4_t c, uint32x4_t d) {
  return vcombine_u8(vmovn_u16(vcombine_u16(vmovn_u32(a), vmovn_u32(b))), vmovn_u16(vcombine_u16(vmovn_u32(c), vmovn_u32(d))));
}
// bit i set where a[i] > b[i]
EDGE_INLINE uint32_t mask_greater(f32x16 a, f32x16 b) {
  alignas(16) static const uint8_t kBits[kLanes] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t greater = narrow_u8(vcgtq_f32(a.v[0], b.v[0]), vcgtq_f32(a.v[1], b.v[1]),
                                       vcgtq_f32(a.v[2], b.v[2]), vcgtq_f32(a.v[3], b.v[3]));
  const uint8x16_t bits = vandq_u8(greater, vld1q_u8(kBits));
  return static_cast<uint32_t>(vaddv_u8(vget_low_u8(bits))) | static_cast<uint32_t>(vaddv_u8(vget_high_u8(bits))) << 8;
}

EDGE_INLINE i32x16 load_i32(const void* p) {  // 64 bytes, any alignment
  EDGE_QUARTERS(i32x16, vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p) + 16 * i)));
}
EDGE_INLINE i32x16 load_i32_partial(const int32_t* p, int n) {
  int32_t lanes[kLanes] = {};
  memcpy(lanes, p, 4 * static_cast<size_t>(n));
  return load_i32(lanes);
}
EDGE_INLINE void store_i32(int32_t* p, i32x16 a) {
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA { vst1q_s32(p + 4 * i, a.v[i]); });
}
EDGE_INLINE i32x16 broadcast_i32(int32_t x) {
  const int32x4_t same = vdupq_n_s32(x);
  return {{same, same, same, same}};
}
EDGE_INLINE uint32x4_t u32(int32x4_t x) { return vreinterpretq_u32_s32(x); }  // wraps where GCC lets vaddq_s32 not
EDGE_INLINE i32x16 add_i32(i32x16 a, i32x16 b) {
  EDGE_QUARTERS(i32x16, vreinterpretq_s32_u32(vaddq_u32(u32(a.v[i]), u32(b.v[i]))));
}
EDGE_INLINE i32x16 sub_i32(i32x16 a, i32x16 b) {
  EDGE_QUARTERS(i32x16, vreinterpretq_s32_u32(vsubq_u32(u32(a.v[i]), u32(b.v[i]))));
}
EDGE_INLINE i32x16 xor_i32(i32x16 a, i32x16 b) { EDGE_QUARTERS(i32x16, veorq_s32(a.v[i], b.v[i])); }
EDGE_INLINE i32x16 shift_left(i32x16 a, int bits) { EDGE_QUARTERS(i32x16, vshlq_s32(a.v[i], vdupq_n_s32(bits))); }
EDGE_INLINE i32x16 shift_right(i32x16 a, int bits) { EDGE_QUARTERS(i32x16, vshlq_s32(a.v[i], vdupq_n_s32(-bits))); }
EDGE_INLINE i32x16 bits_of(f32x16 a) { EDGE_QUARTERS(i32x16, vreinterpretq_s32_f32(a.v[i])); }
EDGE_INLINE f32x16 float_of_bits(i32x16 a) { EDGE_QUARTERS(f32x16, vreinterpretq_f32_s32(a.v[i])); }
// Saturating narrow to int8 / int16.
EDGE_INLINE int16x8_t narrow_i16(int32x4_t low, int32x4_t high) {
  return vcombine_s16(vqmovn_s32(low), vqmovn_s32(high));
}
EDGE_INLINE int8x16_t narrow_i8(i32x16 a) {
  return vcombine_s8(vqmovn_s16(narrow_i16(a.v[0], a.v[1])), vqmovn_s16(narrow_i16(a.v[2], a.v[3])));
}
EDGE_INLINE void store_i8(int8_t* p, i32x16 a) { vst1q_s8(p, narrow_i8(a)); }
EDGE_INLINE void store_i16(int16_t* p, i32x16 a) {
  vst1q_s16(p, narrow_i16(a.v[0], a.v[1]));
  vst1q_s16(p + 8, narrow_i16(a.v[2], a.v[3]));
}

EDGE_INLINE f32x16 from_i32(i32x16 a) { EDGE_QUARTERS(f32x16, vcvtq_f32_s32(a.v[i])); }
EDGE_INLINE f32x16 from_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return from_i32({{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)}});
}
EDGE_INLINE f32x16 from_f16(const uint16_t* p) {
  EDGE_QUARTERS(f32x16, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
EDGE_INLINE void to_f16(uint16_t* p, f32x16 a) {
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA { vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.v[i]))); });
}
// Round half to even. Out of range or NaN: INT32_MIN (the instruction gives INT32_MAX above, 0 for NaN).
EDGE_INLINE i32x16 round_even(f32x16 a) {
  EDGE_QUARTERS(i32x16, vbslq_s32(vcltq_f32(a.v[i], vdupq_n_f32(0x1p31f)), vcvtnq_s32_f32(a.v[i]), vdupq_n_s32(INT32_MIN)));
}
EDGE_INLINE f32x16 round_even_f32(f32x16 a) { EDGE_QUARTERS(f32x16, vrndnq_f32(a.v[i])); }

#undef EDGE_QUARTERS

#else  // portable: plain loops, vectorised by the compiler as far as the base ISA allows

struct f32x16 { float v[kLanes]; };
struct i32x16 { int32_t v[kLanes]; };

// f(i) for each lane; the result array has lane type T.
#define EDGE_LANES(T, expression)                     \
  T out;                                              \
  for (int i = 0; i < kLanes; ++i) out.v[i] = (expression); \
  return out

EDGE_INLINE f32x16 zero() { EDGE_LANES(f32x16, 0.0f); }
EDGE_INLINE f32x16 broadcast(float x) { EDGE_LANES(f32x16, x); }
EDGE_INLINE f32x16 load(const float* p) { EDGE_LANES(f32x16, p[i]); }
EDGE_INLINE f32x16 load_partial(const float* p, int n) { EDGE_LANES(f32x16, i < n ? p[i] : 0.0f); }
EDGE_INLINE void store(float* p, f32x16 a) { memcpy(p, a.v, sizeof(a.v)); }
EDGE_INLINE void store_partial(float* p, f32x16 a, int n) {
  for (int i = 0; i < n; ++i) p[i] = a.v[i];
}

EDGE_INLINE f32x16 add(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] + b.v[i]); }
EDGE_INLINE f32x16 sub(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] - b.v[i]); }
EDGE_INLINE f32x16 mul(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] * b.v[i]); }
EDGE_INLINE f32x16 div(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] / b.v[i]); }
EDGE_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { EDGE_LANES(f32x16, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
EDGE_INLINE f32x16 max(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
EDGE_INLINE f32x16 min(f32x16 a, f32x16 b) { EDGE_LANES(f32x16, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
EDGE_INLINE f32x16 abs(f32x16 a) { EDGE_LANES(f32x16, __builtin_fabsf(a.v[i])); }
EDGE_INLINE f32x16 select_less(f32x16 a, f32x16 b, f32x16 yes, f32x16 no) {
  EDGE_LANES(f32x16, a.v[i] < b.v[i] ? yes.v[i] : no.v[i]);
}
// bit i set where a[i] > b[i]
EDGE_INLINE uint32_t mask_greater(f32x16 a, f32x16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; ++i) mask |= static_cast<uint32_t>(a.v[i] > b.v[i]) << i;
  return mask;
}

EDGE_INLINE i32x16 load_i32(const void* p) {  // 64 bytes, any alignment
  i32x16 out;
  memcpy(out.v, p, sizeof(out.v));
  return out;
}
EDGE_INLINE i32x16 load_i32_partial(const int32_t* p, int n) { EDGE_LANES(i32x16, i < n ? p[i] : 0); }
EDGE_INLINE void store_i32(int32_t* p, i32x16 a) { memcpy(p, a.v, sizeof(a.v)); }
EDGE_INLINE i32x16 broadcast_i32(int32_t x) { EDGE_LANES(i32x16, x); }
EDGE_INLINE uint32_t u32(int32_t x) { return static_cast<uint32_t>(x); }  // wraps where int32_t must not
EDGE_INLINE i32x16 add_i32(i32x16 a, i32x16 b) { EDGE_LANES(i32x16, static_cast<int32_t>(u32(a.v[i]) + u32(b.v[i]))); }
EDGE_INLINE i32x16 sub_i32(i32x16 a, i32x16 b) { EDGE_LANES(i32x16, static_cast<int32_t>(u32(a.v[i]) - u32(b.v[i]))); }
EDGE_INLINE i32x16 xor_i32(i32x16 a, i32x16 b) { EDGE_LANES(i32x16, a.v[i] ^ b.v[i]); }
EDGE_INLINE i32x16 shift_left(i32x16 a, int bits) {
  EDGE_LANES(i32x16, static_cast<int32_t>(u32(a.v[i]) << bits));
}
EDGE_INLINE i32x16 shift_right(i32x16 a, int bits) { EDGE_LANES(i32x16, a.v[i] >> bits); }
EDGE_INLINE i32x16 bits_of(f32x16 a) {
  i32x16 out;
  memcpy(out.v, a.v, sizeof(out.v));
  return out;
}
EDGE_INLINE f32x16 float_of_bits(i32x16 a) {
  f32x16 out;
  memcpy(out.v, a.v, sizeof(out.v));
  return out;
}
EDGE_INLINE int32_t clamp_i32(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }
// Saturating narrow to int8 / int16.
EDGE_INLINE void store_i8(int8_t* p, i32x16 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(clamp_i32(a.v[i], -128, 127));
}
EDGE_INLINE void store_i16(int16_t* p, i32x16 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int16_t>(clamp_i32(a.v[i], -32768, 32767));
}

EDGE_INLINE f32x16 from_i32(i32x16 a) { EDGE_LANES(f32x16, static_cast<float>(a.v[i])); }
EDGE_INLINE f32x16 from_i8(const int8_t* p) { EDGE_LANES(f32x16, static_cast<float>(p[i])); }

EDGE_INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t magnitude = h & 0x7FFFu;
  float out;
  if (magnitude >= 0x7C00u) {  // inf; NaN, made quiet
    const uint32_t quiet = magnitude > 0x7C00u ? 0x400000u : 0u;
    const uint32_t bits = sign | 0x7F800000u | quiet | (magnitude & 0x3FFu) << 13;
    memcpy(&out, &bits, 4);
    return out;
  }
  if (magnitude < 0x400u) {  // zero, subnormal: magnitude * 2^-24 is exact
    out = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -out : out;
  }
  const uint32_t bits = sign | ((magnitude << 13) + (112u << 23));
  memcpy(&out, &bits, 4);
  return out;
}
// Round half to even, as vcvtps2ph.
EDGE_INLINE uint16_t float_to_half(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude >= 0x477FF000u) return static_cast<uint16_t>(sign | 0x7C00u);  // >= 65520 rounds to inf
  if (magnitude < 0x38800000u) {  // below 2^-14: a multiple of 2^-24, rounded by adding 0.5
    float scaled;
    memcpy(&scaled, &magnitude, 4);
    scaled += 0.5f;  // ulp of [0.5, 1) is 2^-24
    uint32_t rounded;
    memcpy(&rounded, &scaled, 4);
    return static_cast<uint16_t>(sign | (rounded - 0x3F000000u));
  }
  const uint32_t odd = magnitude >> 13 & 1u;
  return static_cast<uint16_t>(sign | (magnitude - (112u << 23) + 0xFFFu + odd) >> 13);
}
EDGE_INLINE f32x16 from_f16(const uint16_t* p) { EDGE_LANES(f32x16, half_to_float(p[i])); }
EDGE_INLINE void to_f16(uint16_t* p, f32x16 a) {
  for (int i = 0; i < kLanes; ++i) p[i] = float_to_half(a.v[i]);
}
// Round half to even. Out of range or NaN: INT32_MIN.
EDGE_INLINE int32_t round_even_scalar(float x) {
  return x >= -0x1p31f && x < 0x1p31f ? static_cast<int32_t>(__builtin_rintf(x)) : INT32_MIN;
}
EDGE_INLINE i32x16 round_even(f32x16 a) { EDGE_LANES(i32x16, round_even_scalar(a.v[i])); }
EDGE_INLINE f32x16 round_even_f32(f32x16 a) { EDGE_LANES(f32x16, __builtin_rintf(a.v[i])); }

#undef EDGE_LANES

#endif

// ---- derived, the same source on every ISA ---------------------------------------------------------------

#if defined(__AVX2__)
EDGE_INLINE float reduce_add(f32x16 a) {
  const __m256 eight = fold_add(a);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
EDGE_INLINE float reduce_max(f32x16 a) {
  const __m256 eight = fold_max(a);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}
#elif defined(EDGE_NEON)
EDGE_INLINE float reduce_add(f32x16 a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}
EDGE_INLINE float reduce_max(f32x16 a) {
  float32x4_t four = max(max(a.v[0], a.v[2]), max(a.v[1], a.v[3]));
  four = max(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(max(four, vextq_f32(four, four, 1)), 0);
}
#else
EDGE_INLINE float reduce_add(f32x16 a) {
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] + a.v[i + step];
  return a.v[0];
}
EDGE_INLINE float reduce_max(f32x16 a) {
  for (int step = 8; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  return a.v[0];
}
#endif

// reduce_add of four into p[0..3].
EDGE_INLINE void reduce_add_4(f32x16 a, f32x16 b, f32x16 c, f32x16 d, float* p) {
#if defined(__AVX512F__)
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xEE));
  __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  four = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4E));
  four = _mm512_add_ps(four, _mm512_permute_ps(four, 0xB1));
  _mm_storeu_ps(p, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, four)));
#else
  p[0] = reduce_add(a), p[1] = reduce_add(b), p[2] = reduce_add(c), p[3] = reduce_add(d);
#endif
}

#if !defined(__AVX512F__)
// Sixteen and sixteen that are known to be int16; of others, any.
EDGE_INLINE void store_low_i16(int16_t* p, i32x16 a, i32x16 b) {
  store_i16(p, a);
  store_i16(p + kLanes, b);
}
#endif

EDGE_INLINE f32x16 clamp(f32x16 a, f32x16 low, f32x16 high) { return min(max(a, low), high); }

// The first n lanes of a, and the others of b.
EDGE_INLINE f32x16 first_or(f32x16 a, int64_t n, f32x16 b) {
  alignas(64) static constexpr float kLane[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return select_less(load(kLane), broadcast(static_cast<float>(n)), a, b);
}

// The nearest float16, half to even; beyond its range (and for NaN) an end of it.
EDGE_INLINE f32x16 saturated_f16(f32x16 a) {
  uint16_t half[kLanes];
  to_f16(half, clamp(a, broadcast(-65504.0f), broadcast(65504.0f)));
  return from_f16(half);
}

// Partial loads of narrow types: n lanes, the rest +0. Never read past p[n-1].
EDGE_INLINE f32x16 from_i8_partial(const int8_t* p, int n) {
  int8_t lanes[kLanes] = {};
  memcpy(lanes, p, static_cast<size_t>(n));
  return from_i8(lanes);
}
EDGE_INLINE f32x16 from_f16_partial(const uint16_t* p, int n) {
  uint16_t lanes[kLanes] = {};
  memcpy(lanes, p, 2 * static_cast<size_t>(n));
  return from_f16(lanes);
}
EDGE_INLINE void store_i8_partial(int8_t* p, i32x16 a, int n) {
  int8_t lanes[kLanes];
  store_i8(lanes, a);
  memcpy(p, lanes, static_cast<size_t>(n));
}

// e^x, |relative error| < 2e-7 where the result is a normal number; 0 below it (exp(-inf) = 0), inf above, NaN kept.
// x = n ln2 + r, |r| <= ln2/2; e^r by a degree-7 polynomial; the exponent field takes n by an integer add.
EDGE_INLINE f32x16 exp(f32x16 x) {
  const f32x16 n = round_even_f32(mul(x, broadcast(0x1.715476p+0f)));
  f32x16 r = fma(n, broadcast(-0x1.62e400p-1f), x);          // ln2 high part: n * it is exact
  r = fma(n, broadcast(-0x1.7f7d1cp-20f), r);                // ln2 low part
  f32x16 y = broadcast(0x1.a01a02p-13f);                     // 1/7!
  y = fma(y, r, broadcast(0x1.6c16c2p-10f));
  y = fma(y, r, broadcast(0x1.111112p-7f));
  y = fma(y, r, broadcast(0x1.555556p-5f));
  y = fma(y, r, broadcast(0x1.555556p-3f));
  y = fma(y, r, broadcast(0.5f));
  y = fma(mul(y, r), r, r);                                  // r + r^2 (...)
  y = add(y, broadcast(1.0f));
  y = float_of_bits(add_i32(bits_of(y), shift_left(round_even(n), 23)));
  y = select_less(x, broadcast(-0x1.5d589ep+6f), zero(), y);                      // below 2^-126
  return select_less(broadcast(0x1.62e42ep+6f), x, broadcast(__builtin_inff()), y);  // above FLT_MAX
}

// 1 - 2 / (e^2x + 1), |error| < 2e-7; 1 and -1 at the ends, NaN kept.
EDGE_INLINE f32x16 tanh(f32x16 x) {
  const f32x16 two = broadcast(2.0f), one = broadcast(1.0f);
  return sub(one, div(two, add(exp(mul(x, two)), one)));
}

}  // namespace EDGE_VARIANT
}  // namespace edge

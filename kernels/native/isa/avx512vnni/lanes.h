// The sixteen lanes of vec.h, one zmm.
#pragma once

#include <immintrin.h>
#include "lanes_base.h"

namespace edge {
namespace EDGE_VARIANT {

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

// reduce_add of four into p[0..3].
EDGE_INLINE void reduce_add_4(f32x16 a, f32x16 b, f32x16 c, f32x16 d, float* p) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a.v, b.v, 0x44), _mm512_shuffle_f32x4(a.v, b.v, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c.v, d.v, 0x44), _mm512_shuffle_f32x4(c.v, d.v, 0xEE));
  __m512 four = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  four = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4E));
  four = _mm512_add_ps(four, _mm512_permute_ps(four, 0xB1));
  _mm_storeu_ps(p, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, four)));
}

// Lane i of the result is lane i ^ Distance.
template <int Distance>
EDGE_INLINE f32x16 swap_lanes(f32x16 a) {
  static_assert(Distance == 1 || Distance == 2 || Distance == 4 || Distance == 8);
  if constexpr (Distance == 8) return {_mm512_shuffle_f32x4(a.v, a.v, 0x4E)};
  if constexpr (Distance == 4) return {_mm512_shuffle_f32x4(a.v, a.v, 0xB1)};
  return {_mm512_permute_ps(a.v, Distance == 2 ? 0x4E : 0xB1)};
}

// Stores the lanes of a mask side by side, and whatever behind them; how many they are.
EDGE_INLINE int store_chosen(float* values, int32_t* numbers, f32x16 value, i32x16 number, uint32_t mask) {
  if (mask == (1u << kLanes) - 1) {
    store(values, value);
    store_i32(numbers, number);
    return kLanes;
  }
  _mm512_storeu_ps(values, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), value.v));
  _mm512_storeu_si512(numbers, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), number.v));
  return __builtin_popcount(mask);
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// The sixteen lanes of vec.h, two ymm.
#pragma once

#include <immintrin.h>
#include "lanes_base.h"

namespace edge {
namespace EDGE_VARIANT {

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
  p[0] = reduce_add(a), p[1] = reduce_add(b), p[2] = reduce_add(c), p[3] = reduce_add(d);
}

// Sixteen and sixteen that are known to be int16; of others, any.
EDGE_INLINE void store_low_i16(int16_t* p, i32x16 a, i32x16 b) {
  store_i16(p, a);
  store_i16(p + kLanes, b);
}

// Lane i of the result is lane i ^ Distance.
template <int Distance>
EDGE_INLINE f32x16 swap_lanes(f32x16 a) {
  static_assert(Distance == 1 || Distance == 2 || Distance == 4 || Distance == 8);
  if constexpr (Distance == 8) return {a.hi, a.lo};
  if constexpr (Distance == 4) return {_mm256_permute2f128_ps(a.lo, a.lo, 1), _mm256_permute2f128_ps(a.hi, a.hi, 1)};
  constexpr int kOrder = Distance == 2 ? 0x4E : 0xB1;
  return {_mm256_permute_ps(a.lo, kOrder), _mm256_permute_ps(a.hi, kOrder)};
}

// Stores the lanes of a mask side by side, and whatever behind them; how many they are.
EDGE_INLINE int store_chosen(float* values, int32_t* numbers, f32x16 value, i32x16 number, uint32_t mask) {
  if (mask == (1u << kLanes) - 1) {
    store(values, value);
    store_i32(numbers, number);
    return kLanes;
  }
  alignas(64) float v[kLanes];
  alignas(64) int32_t n[kLanes];
  store(v, value);
  store_i32(n, number);
  int kept = 0;
  for (int i = 0; i < kLanes; ++i) {
    values[kept] = v[i];
    numbers[kept] = n[i];
    kept += static_cast<int>(mask >> i & 1u);
  }
  return __builtin_popcount(mask);
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// What sampling asks of every logit of a vocabulary: how far it lies below the best, and the mass that this comes to.
#pragma once

#include "pointwise.h"
#include "table_sampling.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

static GapRange sampling_gaps(const float* logits, float best, float lowest, int64_t count, float* gaps) {
  const f32x16 top = broadcast(best), bottom = broadcast(lowest);
  f32x16 greatest = bottom, least = zero();
  each_vector(count, [&](int64_t i, int n) {
    const f32x16 gap = max(sub(load_some(logits + i, n), top), bottom);
    store_some(gaps + i, gap, n);
    if (n < kLanes) return;  // the other lanes hold nothing
    greatest = max(gap, greatest);
    least = min(gap, least);
  });
  GapRange range = {reduce_max(greatest), 0.0f - reduce_max(sub(zero(), least))};
  for (int64_t i = count / kLanes * kLanes; i < count; ++i) {
    range.high = gaps[i] > range.high ? gaps[i] : range.high;
    range.low = gaps[i] < range.low ? gaps[i] : range.low;
  }
  return range;
}

EDGE_INLINE uint64_t bits_of_f64(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

EDGE_INLINE double f64_of_bits(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

// x = n ln2 + r, a polynomial in r, n added to the exponent field. Plain operations on one value, which the compiler lays
// side by side; nothing is fused, so every variant gives the same bits.
EDGE_INLINE int64_t sampling_mass(float gap, double inverse_temperature, int64_t unit_bits) {
  constexpr double kWhole = 0x1.8p52;  // added and taken away: rounds half to even, the number in the low bits
  const double x = static_cast<double>(gap) * inverse_temperature;
  const double whole = x * 0x1.71547652b82fep+0 + kWhole;
  const double n = whole - kWhole;
  const double r = (x - n * 0x1.62e42fefa0000p-1) - n * 0x1.cf79abc9e3b3ap-40;
  double y = 0x1.27e4fb7789f5cp-22;                // 1/10!
  y = y * r + 0x1.71de3a556c734p-19;
  y = y * r + 0x1.a01a01a01a01ap-16;
  y = y * r + 0x1.a01a01a01a01ap-13;
  y = y * r + 0x1.6c16c16c16c17p-10;
  y = y * r + 0x1.1111111111111p-7;
  y = y * r + 0x1.5555555555555p-5;
  y = y * r + 0x1.5555555555555p-3;
  y = y * r + 0.5;
  y = y * r + 1.0;
  y = y * r + 1.0;
  const uint64_t exponent = (bits_of_f64(whole) + static_cast<uint64_t>(unit_bits)) << 52;
  const double mass = f64_of_bits(bits_of_f64(y) + exponent);
  return static_cast<int64_t>(bits_of_f64(mass + 0x1p52) & 0xFFFFFFFFFFFFFu);
}

static void sampling_masses(const float* gaps, double inverse_temperature, int64_t unit_bits, int64_t count, int64_t* masses) {
  for (int64_t i = 0; i < count; ++i) masses[i] = sampling_mass(gaps[i], inverse_temperature, unit_bits);
}

static int64_t sampling_sum_from(const int64_t* masses, int64_t least, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += masses[i] >= least ? masses[i] : 0;
  return sum;
}

static void sampling_keep(const float* gaps, GapRange range, int64_t count, int64_t* weights) {
  for (int64_t i = 0; i < count; ++i)
    weights[i] &= -static_cast<int64_t>((gaps[i] <= range.high) & (gaps[i] >= range.low));
}

// The bucket of a gap, not rounded yet. A narrow range is widened first: one over its width may be no number.
struct SamplingScale {
  f32x16 high, wider, scale;
  explicit SamplingScale(GapRange range) {
    const float width = range.low - range.high, factor = width > -1e-20f ? 0x1p100f : 1.0f;
    high = broadcast(range.high);
    wider = broadcast(factor);
    scale = broadcast(width < 0 ? static_cast<float>(kSamplingBuckets - 1) / (width * factor) : 0.0f);
  }
  EDGE_INLINE f32x16 place(f32x16 gap) const {
    const f32x16 at = mul(mul(sub(gap, high), wider), scale);
    return min(max(at, zero()), broadcast(static_cast<float>(kSamplingBuckets - 1)));
  }
};

static void sampling_buckets(const float* gaps, GapRange range, int64_t count, int32_t* buckets) {
  const SamplingScale scale(range);
  each_vector(count, [&](int64_t i, int n) { store_i32(buckets + i, round_even(scale.place(load_some(gaps + i, n)))); });
}

// f(i, mask of the lanes that lie in the bucket, the gaps) for every vector that has one.
template <class Each>
EDGE_INLINE void each_in_bucket(const float* gaps, GapRange range, int32_t bucket, int64_t count, Each&& f) {
  const SamplingScale scale(range);
  const f32x16 wanted = broadcast(static_cast<float>(bucket));
  each_vector(count, [&](int64_t i, int n) {
    const f32x16 gap = load_some(gaps + i, n);
    const f32x16 place = round_even_f32(scale.place(gap));
    const uint32_t others = mask_greater(place, wanted) | mask_greater(wanted, place);
    const uint32_t inside = ~others & ((1u << n) - 1);
    if (inside != 0) f(i, inside, gap);
  });
}

static GapRange sampling_bucket(const float* gaps, GapRange range, int32_t bucket, int64_t count) {
  GapRange found = {-__builtin_inff(), 0.0f};
  f32x16 greatest = broadcast(found.high), least = zero();
  each_in_bucket(gaps, range, bucket, count, [&](int64_t i, uint32_t inside, f32x16 gap) {
    if (inside == (1u << kLanes) - 1) {
      greatest = max(gap, greatest);
      least = min(gap, least);
      return;
    }
    for (; inside != 0; inside &= inside - 1) {
      const float one = gaps[i + __builtin_ctz(inside)];
      found.high = one > found.high ? one : found.high;
      found.low = one < found.low ? one : found.low;
    }
  });
  const float high = reduce_max(greatest), low = 0.0f - reduce_max(sub(zero(), least));
  return {high > found.high ? high : found.high, low < found.low ? low : found.low};
}

static int64_t sampling_find(const float* gaps, GapRange range, int32_t bucket, int64_t count, int32_t* where) {
  int64_t found = 0;
  each_in_bucket(gaps, range, bucket, count, [&](int64_t i, uint32_t inside, f32x16) {
    for (; inside != 0; inside &= inside - 1) where[found++] = static_cast<int32_t>(i + __builtin_ctz(inside));
  });
  return found;
}

constexpr SamplingKernels sampling_kernels = {sampling_gaps,    sampling_masses, sampling_sum_from, sampling_keep,
                                              sampling_buckets, sampling_bucket, sampling_find};

}  // namespace EDGE_VARIANT
}  // namespace edge

// What sampling asks of every logit of a vocabulary: how far it lies below the best, and the mass that this comes to.
#pragma once

#include "pointwise.h"
#include "table_sampling.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

static ValueRange sampling_range(const float* logits, int64_t count) {
  f32x16 greatest = broadcast(-__builtin_inff()), least = broadcast(__builtin_inff());
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const f32x16 some = load(logits + i);
    greatest = max(some, greatest);
    least = min(some, least);
  }
  ValueRange range = {reduce_max(greatest), 0.0f - reduce_max(sub(zero(), least))};
  for (; i < count; ++i) {
    range.high = logits[i] > range.high ? logits[i] : range.high;
    range.low = logits[i] < range.low ? logits[i] : range.low;
  }
  return range;
}

static bool sampling_sane(const float* logits, int64_t count) {
  const f32x16 infinite = broadcast(__builtin_inff());
  uint32_t sane = ~0u;
  each_vector(count, [&](int64_t i, int n) { sane &= mask_greater(infinite, load_some(logits + i, n)) | ~((1u << n) - 1); });
  return sane == ~0u;
}

static int64_t sampling_above(const float* logits, float best, float bound, int64_t first, int64_t count, float* gaps,
                              int32_t* tokens) {
  alignas(64) static const int32_t kNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const f32x16 top = broadcast(best), least = broadcast(bound);
  const i32x16 numbers = load_i32(kNumbers);
  int64_t kept = 0;
  each_vector(count, [&](int64_t i, int n) {
    const f32x16 gap = sub(load_some(logits + i, n), top);
    const uint32_t above = mask_greater(gap, least) & ((1u << n) - 1);
    if (above == 0) return;
    const i32x16 token = add_i32(broadcast_i32(static_cast<int32_t>(first + i)), numbers);
    kept += store_chosen(gaps + kept, tokens + kept, gap, token, above);
  });
  return kept;
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

// x = n ln2 + r; n is in the low bits of `whole` as well. Plain operations on one value, which the compiler lays side by side;
// nothing is fused, so every variant gives the same bits.
struct SplitExponent {
  double whole, r;
  EDGE_INLINE explicit SplitExponent(double x) {
    constexpr double kWhole = 0x1.8p52;  // added and taken away: rounds half to even
    whole = x * 0x1.71547652b82fep+0 + kWhole;
    const double n = whole - kWhole;
    r = (x - n * 0x1.62e42fefa0000p-1) - n * 0x1.cf79abc9e3b3ap-40;
  }
  // y 2^(n + more)
  EDGE_INLINE double scaled(double y, int64_t more) const {
    return f64_of_bits(bits_of_f64(y) + ((bits_of_f64(whole) + static_cast<uint64_t>(more)) << 52));
  }
};

// The terms of exp(r) from 1/9! down; y stands for those before: 1/10! and what follows it.
EDGE_INLINE double exp_series(double y, double r) {
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
  return y;
}

// A polynomial of degree 10: exact to the rounding of a mass.
EDGE_INLINE int64_t sampling_mass(float gap, double inverse_temperature, int64_t unit_bits) {
  const SplitExponent x(static_cast<double>(gap) * inverse_temperature);
  const double y = exp_series(0x1.27e4fb7789f5cp-22, x.r);
  return static_cast<int64_t>(bits_of_f64(x.scaled(y, unit_bits) + 0x1p52) & 0xFFFFFFFFFFFFFu);
}

// A polynomial of degree 13: exact to the rounding of float64. x in -700..0.
EDGE_INLINE double sampling_exp(double x) {
  const SplitExponent split(x);
  const double r = split.r;
  double y = 0x1.6124613a86d09p-33;  // 1/13!
  y = y * r + 0x1.1eed8eff8d898p-29;
  y = y * r + 0x1.ae64567f544e4p-26;
  y = y * r + 0x1.27e4fb7789f5cp-22;
  return split.scaled(exp_series(y, r), 0);
}

static void sampling_masses(const float* gaps, double inverse_temperature, int64_t unit_bits, int64_t count, int64_t* masses) {
  for (int64_t i = 0; i < count; ++i) masses[i] = sampling_mass(gaps[i], inverse_temperature, unit_bits);
}

static int64_t sampling_sum_from(const int64_t* masses, int64_t least, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += masses[i] >= least ? masses[i] : 0;
  return sum;
}

static void sampling_keep(const float* gaps, ValueRange range, int64_t count, int64_t* weights) {
  for (int64_t i = 0; i < count; ++i)
    weights[i] &= -static_cast<int64_t>((gaps[i] <= range.high) & (gaps[i] >= range.low));
}

// The bucket of a gap. A narrow range is widened first: one over its width may be no number.
struct SamplingScale {
  f32x16 high, wider, scale;
  explicit SamplingScale(ValueRange range) {
    const float width = range.low - range.high, factor = width > -1e-20f ? 0x1p100f : 1.0f;
    high = broadcast(range.high);
    wider = broadcast(factor);
    scale = broadcast(width < 0 ? static_cast<float>(kSamplingBuckets - 1) / (width * factor) : 0.0f);
  }
  EDGE_INLINE i32x16 bucket(f32x16 gap) const {
    const f32x16 at = mul(mul(sub(gap, high), wider), scale);
    const f32x16 place = min(max(at, zero()), broadcast(static_cast<float>(kSamplingBuckets - 1)));
    const f32x16 whole = broadcast(0x1.8p23f);  // added: rounds half to even, the number in the low bits
    return sub_i32(bits_of(add(place, whole)), bits_of(whole));
  }
};

static void sampling_buckets(const float* gaps, ValueRange range, int64_t count, int32_t* buckets) {
  const SamplingScale scale(range);
  each_vector(count, [&](int64_t i, int n) { store_i32(buckets + i, scale.bucket(load_some(gaps + i, n))); });
}

// In pieces so short that a core weighs one while it still adds up the one before.
static void sampling_tabulate(const float* gaps, double inverse_temperature, int64_t unit_bits, ValueRange range, int64_t count,
                              int64_t* __restrict masses, int64_t* table) {
  constexpr int kPiece = 2 * kLanes;
  const SamplingScale scale(range);
  alignas(64) int32_t buckets[kPiece];
  int64_t first = 0;
  for (; first + kPiece <= count; first += kPiece) {
    for (int i = 0; i < kPiece; i += kLanes) store_i32(buckets + i, scale.bucket(load(gaps + first + i)));
    for (int i = 0; i < kPiece; ++i) masses[first + i] = sampling_mass(gaps[first + i], inverse_temperature, unit_bits);
    for (int i = 0; i < kPiece; ++i) table[buckets[i]] += masses[first + i];
  }
  sampling_masses(gaps + first, inverse_temperature, unit_bits, count - first, masses + first);
  sampling_buckets(gaps + first, range, count - first, buckets);
  for (int64_t i = 0; first + i < count; ++i) table[buckets[i]] += masses[first + i];
}

// Gaps from 0 down by number: the bits of their magnitudes are in their order.
constexpr int32_t kLowestGap = 0x7f800000;  // -inf
EDGE_INLINE f32x16 numbered_gap(int32_t number) { return sub(zero(), float_of_bits(broadcast_i32(number))); }

// The number of the first gap that is in a bucket or behind it.
static int32_t first_gap(const SamplingScale& scale, int32_t bucket) {
  const f32x16 wanted = from_i32(broadcast_i32(bucket));
  int32_t least = 0, most = kLowestGap;
  while (least < most) {
    const int32_t middle = least + (most - least) / 2;
    if (mask_greater(wanted, from_i32(scale.bucket(numbered_gap(middle)))))
      least = middle + 1;
    else
      most = middle;
  }
  return least;
}

static ValueRange sampling_gaps_of(ValueRange range, int32_t bucket) {
  const SamplingScale scale(range);
  const int32_t first = first_gap(scale, bucket);
  const int32_t last = bucket + 1 < kSamplingBuckets ? first_gap(scale, bucket + 1) - 1 : kLowestGap;
  if (last < first) return {-1.0f, 0.0f};
  return {reduce_max(numbered_gap(first)), reduce_max(numbered_gap(last))};
}

static int64_t sampling_find(const float* logits, float best, ValueRange gaps, int64_t count, int32_t* where) {
  const f32x16 high = broadcast(gaps.high), low = broadcast(gaps.low), top = broadcast(best);
  int64_t found = 0;
  each_vector(count, [&](int64_t i, int n) {
    const f32x16 gap = sub(load_some(logits + i, n), top);
    const uint32_t others = mask_greater(gap, high) | mask_greater(low, gap);
    for (uint32_t inside = ~others & ((1u << n) - 1); inside != 0; inside &= inside - 1)
      where[found++] = static_cast<int32_t>(i + __builtin_ctz(inside));
  });
  return found;
}

static double sampling_exp_sum(const float* logits, float best, int64_t count) {
  alignas(64) double values[kSamplingBlock];
  const double top = static_cast<double>(best);
  for (int64_t i = 0; i < count; ++i) {  // a loop of its own: the compiler lays both side by side
    const double x = static_cast<double>(logits[i]) - top;
    values[i] = x > -700.0 ? x : -700.0;
  }
  for (int64_t i = 0; i < count; ++i) values[i] = sampling_exp(values[i]);
  int64_t whole = count;
  while (whole % kLanes != 0) values[whole++] = 0.0;
  double lanes[kLanes] = {};
  for (int64_t i = 0; i < whole; i += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += values[i + lane];
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int lane = 0; lane < step; ++lane) lanes[lane] += lanes[lane + step];
  return lanes[0];
}

EDGE_INLINE void mask_some(const float* __restrict logits, uint32_t bits, int n, float* __restrict out) {
  alignas(64) static const uint32_t kBits[32] = {
      1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
      1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
      1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
  for (int i = 0; i < n; ++i) {
    const float logit = logits[i];
    out[i] = (bits & kBits[i]) != 0 ? logit : -__builtin_inff();
  }
}

static int64_t sampling_mask(const float* logits, const uint8_t* bits, int64_t count, float* out) {
  int64_t allowed = 0, first = 0;
  for (; first + 32 <= count; first += 32) {
    uint32_t word;
    memcpy(&word, bits + first / 8, sizeof(word));
    allowed += __builtin_popcount(word);
    mask_some(logits + first, word, 32, out + first);
  }
  if (first < count) {
    const int n = static_cast<int>(count - first);
    uint32_t word = 0;
    memcpy(&word, bits + first / 8, static_cast<size_t>(n + 7) / 8);
    word &= (1u << n) - 1;
    allowed += __builtin_popcount(word);
    mask_some(logits + first, word, n, out + first);
  }
  return allowed;
}

constexpr SamplingKernels sampling_kernels = {sampling_range,    sampling_sane, sampling_above,   sampling_masses,
                                              sampling_sum_from, sampling_keep, sampling_buckets, sampling_tabulate,
                                              sampling_gaps_of,  sampling_find, sampling_exp_sum, sampling_mask};

}  // namespace EDGE_VARIANT
}  // namespace edge

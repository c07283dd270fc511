// Function pointers of sampling.h.
#pragma once

#include <stdint.h>

namespace edge {

constexpr int64_t kSamplingBlock = 512;  // values that the functions below take at a time, at most; whole vectors
constexpr int32_t kSamplingBuckets = 4096;

struct ValueRange {
  float high, low;
};

struct SamplingKernels {
  // The greatest and the least of the logits, NaN left out.
  ValueRange (*range)(const float* logits, int64_t count);
  // Whether none of the logits is +inf or NaN.
  bool (*sane)(const float* logits, int64_t count);
  // The gaps (logit - best) above `bound`, side by side, and which tokens they are, the first logit being `first`'s; their
  // number. Writes whole vectors.
  int64_t (*above)(const float* logits, float best, float bound, int64_t first, int64_t count, float* gaps, int32_t* tokens);
  // masses = rint(e^(gap * inverse_temperature) * 2^unit_bits), the exponent in -100..0, unit_bits at most 51.
  void (*masses)(const float* gaps, double inverse_temperature, int64_t unit_bits, int64_t count, int64_t* masses);
  // The sum of the masses that are at least that.
  int64_t (*sum_from)(const int64_t* masses, int64_t least, int64_t count);
  // weights = 0 where the gap is outside of the range.
  void (*keep)(const float* gaps, ValueRange range, int64_t count, int64_t* weights);
  // The bucket of each gap: from 0 at range.high and above to kSamplingBuckets - 1 at range.low and below, never less for a
  // lower gap; all 0 where high is low. Any count; writes whole vectors.
  void (*buckets)(const float* gaps, ValueRange range, int64_t count, int32_t* buckets);
  // The masses, each added to what the table has for the bucket of its gap.
  void (*tabulate)(const float* gaps, double inverse_temperature, int64_t unit_bits, ValueRange range, int64_t count,
                   int64_t* masses, int64_t* table);
  // The gaps of a bucket: which gaps `buckets` gives that number. The range has a width, and of an empty bucket high is below low.
  ValueRange (*gaps_of)(ValueRange range, int32_t bucket);
  // Where the logits are whose gap (logit - best) is in a range: that many indices, ascending.
  int64_t (*find)(const float* logits, float best, ValueRange gaps, int64_t count, int32_t* where);
  // The sum of e^(logit - best), the exponents in -700..0: sixteen lanes, then the fixed tree.
  double (*exp_sum)(const float* logits, float best, int64_t count);
  // out = logits, and -inf where the bit of a token (from the lowest of the first byte on) is 0; how many bits are 1. Any count.
  int64_t (*mask)(const float* logits, const uint8_t* bits, int64_t count, float* out);
};

}  // namespace edge

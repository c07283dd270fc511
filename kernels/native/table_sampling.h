// Function pointers of sampling.h.
#pragma once

#include <stdint.h>

namespace edge {

constexpr int64_t kSamplingBlock = 512;  // values that the functions below take at a time, at most; whole vectors
constexpr int32_t kSamplingBuckets = 4096;

struct GapRange {
  float high, low;
};

struct SamplingKernels {
  // gaps = max(logits - best, lowest); the greatest and the least of them.
  GapRange (*gaps)(const float* logits, float best, float lowest, int64_t count, float* gaps);
  // masses = rint(e^(gap * inverse_temperature) * 2^unit_bits), the exponent in -100..0, unit_bits at most 51.
  void (*masses)(const float* gaps, double inverse_temperature, int64_t unit_bits, int64_t count, int64_t* masses);
  // The sum of the masses that are at least that.
  int64_t (*sum_from)(const int64_t* masses, int64_t least, int64_t count);
  // weights = 0 where the gap is outside of the range.
  void (*keep)(const float* gaps, GapRange range, int64_t count, int64_t* weights);
  // The bucket of each gap: from 0 at range.high and above to kSamplingBuckets - 1 at range.low and below, never less for a
  // lower gap; all 0 where high is low. Writes whole vectors.
  void (*buckets)(const float* gaps, GapRange range, int64_t count, int32_t* buckets);
  // The greatest and the least gap of one bucket; the least above the greatest where it has none.
  GapRange (*bucket)(const float* gaps, GapRange range, int32_t bucket, int64_t count);
  // Where the gaps of one bucket are: that many indices, ascending.
  int64_t (*find)(const float* gaps, GapRange range, int32_t bucket, int64_t count, int32_t* where);
};

}  // namespace edge

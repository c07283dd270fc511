// sampling_draw, sampling_candidates: what top-k, top-p and min-p leave of a vocabulary, and the token that a draw picks.
//
// Tokens are in order of their gaps (logit minus the best logit), equal ones in order of their ids. Nothing is sorted but the
// few around a place in that order: a table of buckets by gap says which bucket a running sum ends in. Masses are whole
// numbers, so the sums are the same in any order, and buckets never show in the result.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "bind.h"

namespace edge {
namespace {

struct Filters {
  double temperature;
  int64_t top_k;  // 0: off
  double top_p, min_p;
};

// A token, and the sum of all weights up to it and with it.
struct Place {
  float gap;
  int32_t token;
  int64_t sum;
};

enum class By { kCount, kMass };

// What is asked of a running sum: to reach a value, or to exceed it.
struct Wanted {
  double sum;
  bool above;
  bool met(int64_t found) const { return above ? static_cast<double>(found) > sum : static_cast<double>(found) >= sum; }
};

// The logits of one row, and how much of their order is left.
class Candidates {
 public:
  Candidates(const float* logits, int64_t vocab, float best, const Filters& filters)
      : logits_(logits), vocab_(vocab), best_(best) {
    while (vocab >> (53 - unit_bits_)) --unit_bits_;
    const double temperature = std::max(filters.temperature, 1e-30);
    inverse_temperature_ = 1.0 / temperature;
    lowest_ = static_cast<float>(-temperature * (static_cast<double>(unit_bits_) * 0.6931471805599453 + 1.0));
    last_ = {lowest_, INT32_MAX, 0};
    range_ = {0.0f, look_at_blocks()};
    if (filters.top_k > 0 && filters.top_k < vocab) {
      const GapRange range = range_of_the_top(filters.top_k);
      const int64_t count = tabulate(By::kCount, range, table_);
      if (count > filters.top_k) {
        last_ = place(By::kCount, range, {static_cast<double>(filters.top_k), false});
        range_.low = last_.gap;
      }
    }
    least_mass_ = static_cast<int64_t>(std::ceil(filters.min_p * static_cast<double>(int64_t{1} << unit_bits_)));
    kept_ = tabulate(By::kMass, range_, table_);
    const int64_t likely = likely_;
    nucleus_ = last_;
    if (filters.top_p < 1.0) {
      const double share = filters.top_p * static_cast<double>(kept_);
      nucleus_ = place(By::kMass, range_, {std::max(share, 1.0), false});  // one token at least
      kept_ = nucleus_.sum;
    }
    if (least_mass_ > 0) kept_ = std::min(kept_, likely);
  }

  int32_t draw(double chance) { return place(By::kMass, range_, {chance * static_cast<double>(kept_), true}).token; }

  // f(token, mass) for every token that is left, in order of the tokens.
  template <class Each>
  void each(Each&& f) {
    each_block(lowest_, [&](int64_t first, int64_t count) {
      weigh(By::kMass, range_, first, count);
      for (int64_t i = 0; i < count; ++i)
        if (weights_[i] > 0 && weights_[i] >= least_mass_ && up_to(nucleus_, gaps_[i], first + i)) f(first + i, weights_[i]);
      return false;
    });
  }

 private:
  static bool up_to(const Place& last, float gap, int64_t token) {
    return gap > last.gap || (gap == last.gap && token <= last.token);
  }

  // Keeps the greatest gap of every block; the least gap of all.
  float look_at_blocks() {
    float least = 0.0f;
    for (int64_t first = 0; first < vocab_; first += kSamplingBlock) {
      const GapRange range = kernels_.gaps(logits_ + first, best_, lowest_, std::min(kSamplingBlock, vocab_ - first), gaps_);
      greatest_.push_back(range.high);
      least = std::min(least, range.low);
    }
    return least;
  }

  // f(first, count) for every block that may hold a token up to the last, down to `low`; gaps_ holds its gaps. Until f
  // returns true.
  template <class Block>
  void each_block(float low, Block&& f) {
    for (int64_t first = 0; first < vocab_; first += kSamplingBlock) {
      const float greatest = greatest_[first / kSamplingBlock];
      if (greatest <= lowest_ || greatest < std::max(low, last_.gap)) continue;
      const int64_t count = std::min(kSamplingBlock, vocab_ - first);
      kernels_.gaps(logits_ + first, best_, lowest_, count, gaps_);
      if (f(first, count)) return;
    }
  }

  // The weights of the tokens of a block: 0 outside of the range and behind the last.
  void weigh(By by, GapRange range, int64_t first, int64_t count) {
    if (by == By::kMass)
      kernels_.masses(gaps_, inverse_temperature_, unit_bits_, count, weights_);
    else
      for (int64_t i = 0; i < count; ++i) weights_[i] = gaps_[i] > lowest_;
    if (range.high >= 0.0f && std::max(range.low, last_.gap) <= lowest_) return;
    const int64_t equal = std::clamp<int64_t>(last_.token + int64_t{1} - first, 0, count);  // that many may equal the last
    const float least = std::max(range.low, last_.gap);
    const float above = std::max(range.low, std::nextafter(last_.gap, 1.0f));
    kernels_.keep(gaps_, {range.high, least}, equal, weights_);
    kernels_.keep(gaps_ + equal, {range.high, above}, count - equal, weights_ + equal);
  }

  // The weights of the buckets of a range; all of them together, and in likely_ those that min-p leaves.
  int64_t tabulate(By by, GapRange range, int64_t* table) {
    std::fill(table, table + kSamplingBuckets, 0);
    likely_ = 0;
    each_block(range.low, [&](int64_t first, int64_t count) {
      weigh(by, range, first, count);
      kernels_.buckets(gaps_, range, count, buckets_);
      for (int64_t i = 0; i < count; ++i) table[buckets_[i]] += weights_[i];
      if (least_mass_ > 0) likely_ += kernels_.sum_from(weights_, least_mass_, count);
      return false;
    });
    return std::accumulate(table, table + kSamplingBuckets, int64_t{0});
  }

  // A range that holds more tokens than that, or all: of as many blocks and one more, the best token of each.
  GapRange range_of_the_top(int64_t count) {
    if (count >= static_cast<int64_t>(greatest_.size())) return range_;
    std::vector<float> greatest = greatest_;
    std::nth_element(greatest.begin(), greatest.begin() + count, greatest.end(), std::greater<float>());
    return {0.0f, greatest[count]};
  }

  // Where the running sum of the weights of a range, which are in table_, is as wanted.
  Place place(By by, GapRange range, Wanted wanted) {
    const int64_t* table = table_;
    int64_t before = 0;
    while (range.high != range.low) {
      int32_t bucket = 0;
      while (bucket < kSamplingBuckets - 1 && !wanted.met(before + table[bucket])) before += table[bucket++];
      range = survey(range, bucket);
      if (found_ <= kFew) return place_among_few(by, before, wanted);
      tabulate(by, range, finer_);
      table = finer_;
    }
    return place_among_equals(by, range.low, before, wanted);
  }

  // Keeps the tokens of a bucket of a range, if they are few; the range that they are in.
  GapRange survey(GapRange range, int32_t bucket) {
    found_ = 0;
    GapRange inside = {-std::numeric_limits<float>::infinity(), 0.0f};
    each_block(range.low, [&](int64_t first, int64_t count) {
      const GapRange some = kernels_.bucket(gaps_, range, bucket, count);
      inside = {std::max(inside.high, some.high), std::min(inside.low, some.low)};
      if (found_ <= kFew) collect(range, bucket, first, count);
      return false;
    });
    return {std::min(inside.high, range.high), std::max({inside.low, range.low, last_.gap})};
  }

  // Adds the tokens of a block that lie in a bucket to the few; counts on to kFew + 1.
  void collect(GapRange range, int32_t bucket, int64_t first, int64_t count) {
    const int64_t found = kernels_.find(gaps_, range, bucket, count, buckets_);
    for (int64_t n = 0; n < found && found_ <= kFew; ++n) {
      const int32_t i = buckets_[n];
      const float gap = gaps_[i];
      if (gap > range.high || gap < range.low || !up_to(last_, gap, first + i)) continue;
      if (found_ < kFew) few_[found_] = {gap, static_cast<int32_t>(first + i), 0};
      ++found_;
    }
  }

  Place place_among_few(By by, int64_t before, Wanted wanted) {
    std::sort(few_, few_ + found_, [](const Place& a, const Place& b) {
      return a.gap != b.gap ? a.gap > b.gap : a.token < b.token;
    });
    for (int64_t i = 0; i < found_; ++i) gaps_[i] = few_[i].gap;
    kernels_.masses(gaps_, inverse_temperature_, unit_bits_, found_, weights_);
    for (int64_t i = 0; i < found_; ++i) {
      before += by == By::kMass ? weights_[i] : 1;
      if (wanted.met(before)) return {few_[i].gap, few_[i].token, before};
    }
    return {few_[found_ - 1].gap, few_[found_ - 1].token, before};
  }

  // Tokens of one gap are in order of their ids, however many there are.
  Place place_among_equals(By by, float gap, int64_t before, Wanted wanted) {
    int64_t weight = 1;
    if (by == By::kMass) kernels_.masses(&gap, inverse_temperature_, unit_bits_, 1, &weight);
    Place at = {gap, 0, before};
    each_block(gap, [&](int64_t first, int64_t count) {
      if (gap == last_.gap) count = std::clamp<int64_t>(last_.token + int64_t{1} - first, 0, count);
      int32_t equal = 0;
      for (int64_t i = 0; i < count; ++i) equal += gaps_[i] == gap;
      const bool here = wanted.met(at.sum + equal * weight);
      if (!here) at.sum += equal * weight;
      for (int64_t i = 0; here && !wanted.met(at.sum); ++i)
        if (gaps_[i] == gap) at = {gap, static_cast<int32_t>(first + i), at.sum + weight};
      return here;
    });
    return at;
  }

  static constexpr int64_t kFew = kSamplingBlock;

  const SamplingKernels& kernels_ = kernels().sampling;
  const float* logits_;
  int64_t vocab_;
  float best_;
  int64_t unit_bits_ = 51;  // the best token's mass is 2^unit_bits; all masses together are below 2^53
  double inverse_temperature_;
  float lowest_;            // a token that far below the best has no mass, and lies there
  std::vector<float> greatest_;  // gap of each block
  Place last_, nucleus_;    // the last tokens that top-k and top-p leave
  int64_t least_mass_ = 0;  // that min-p leaves
  GapRange range_;             // of the tokens that top-k leaves
  int64_t kept_;            // the mass of all that is left
  int64_t likely_ = 0;
  int64_t found_ = 0;       // tokens of the last survey, in few_; kFew + 1: more than that
  int64_t table_[kSamplingBuckets], finer_[kSamplingBuckets];
  Place few_[kFew];
  alignas(64) float gaps_[kSamplingBlock];
  alignas(64) int64_t weights_[kSamplingBlock];
  alignas(64) int32_t buckets_[kSamplingBlock];
};

Array<const float, 1> read_logits(nb::handle logits_arg, float best, double temperature) {
  const auto logits = read<float, 1>(logits_arg, "logits");
  if (logits.shape[0] < 1 || logits.shape[0] >= int64_t{1} << 31)
    throw nb::value_error(("`logits` must have 1 to 2^31-1 values; got `" + std::to_string(logits.shape[0]) + "`").c_str());
  if (!std::isfinite(best)) throw nb::value_error(("`best` must be finite; got `" + std::to_string(best) + "`").c_str());
  if (!(temperature > 0 && temperature <= 1e30))  // gaps of logits times it stay within float32
    throw nb::value_error(("`temperature` must be above 0 and at most 1e30; got `" + std::to_string(temperature) + "`").c_str());
  return logits;
}

int64_t sampling_draw(nb::handle logits_arg, float best, double temperature, int64_t top_k, double top_p, double min_p,
                      double chance) {
  const auto logits = read_logits(logits_arg, best, temperature);
  ReleasedGil released;
  return Candidates(logits.data, logits.shape[0], best, {temperature, top_k, top_p, min_p}).draw(chance);
}

nb::tuple sampling_candidates(nb::handle logits_arg, float best, double temperature, int64_t top_k, double top_p,
                              double min_p) {
  const auto logits = read_logits(logits_arg, best, temperature);
  std::vector<int64_t> tokens, masses;
  {
    ReleasedGil released;
    Candidates(logits.data, logits.shape[0], best, {temperature, top_k, top_p, min_p}).each([&](int64_t token, int64_t mass) {
      tokens.push_back(token);
      masses.push_back(mass);
    });
  }
  const auto array_of = [](const std::vector<int64_t>& values) {
    nb::object array = new_array<int64_t, 1>({static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), data_of<int64_t, 1>(array));
    return array;
  };
  return nb::make_tuple(array_of(tokens), array_of(masses));
}

}  // namespace

void bind_sampling(nb::module_& module) {
  module.def("sampling_draw", &sampling_draw);
  module.def("sampling_candidates", &sampling_candidates);
}

}  // namespace edge

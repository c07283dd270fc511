// What top-k, top-p and min-p leave of a row of logits, and the token that a draw picks: for bind_sampling.cpp alone.
//
// Tokens are in order of their gaps (logit minus the best logit), equal ones in order of their ids. Nothing is sorted but the
// few around a place in that order: a table of buckets by gap says which bucket a running sum ends in. Masses are whole
// numbers, so the sums are the same in any order, and buckets never show in the result. So the threads of a pool may share the
// blocks of a row: each has a table of its own, and the tables are added up.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <new>
#include <numeric>
#include <optional>
#include <string>
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

// Tokens of a block that may have mass, ascending.
struct Survivors {
  const float* gaps;
  const int32_t* tokens;
  int64_t count;
  int64_t up_to(int32_t token) const { return std::upper_bound(tokens, tokens + count, token) - tokens; }
};

// Some kSamplingBlock neighbours in the vocabulary.
struct Block {
  int64_t first;
  float greatest;  // gap
  Survivors kept;  // where a top-k leaves few; of others nothing is kept
};

// Room for the survivors of a block.
struct BlockRoom {
  alignas(64) float gaps[kSamplingBlock];
  alignas(64) int32_t tokens[kSamplingBlock];
};

// Room for the survivors of all blocks: the memory of a thread, which keeps it from row to row.
struct RowRoom {
  std::vector<float> gaps;
  std::vector<int32_t> tokens;
};

RowRoom& row_room(int64_t vocab) {
  static thread_local RowRoom room;
  const size_t most = static_cast<size_t>(vocab) + 16;  // whole vectors are written
  if (room.gaps.size() < most) {
    room.gaps.resize(most);
    room.tokens.resize(most);
  }
  return room;
}

// Who works on one row: the caller alone, or the threads of a pool with him, which serves nobody else meanwhile.
class Workers {
 public:
  Workers(ThreadPool* pool, int64_t vocab) {
    if (pool == nullptr || vocab < kFewest * kSamplingBlock) return;
    count_ = std::min(pool->threads(), kMost);
    if (count_ == 1) return;
    pool_ = pool;
    lease_.emplace(*pool);
  }

  int count() const { return count_; }
  void* scratch(int worker, size_t bytes) { return pool_->scratch(worker, bytes); }

  // body(index, worker) for each of so many blocks.
  template <class Body>
  void each(int64_t blocks, Body&& body) {
    const auto run = [&](int64_t begin, int64_t end, int worker) {
      for (int64_t index = begin; index < end; ++index) body(index, worker);
    };
    if (pool_ == nullptr || blocks < kFewest) return run(0, blocks, 0);
    pool_->for_blocks(blocks, kPiece, run, count_);
  }

 private:
  static constexpr int64_t kFewest = 64;  // blocks that are worth a hand-over: tens of microseconds
  static constexpr int64_t kPiece = 8;    // that are taken at a time
  static constexpr int kMost = 8;         // each has a table that must be added up

  ThreadPool* pool_ = nullptr;
  std::optional<PoolLease> lease_;
  int count_ = 1;
};

// Sums of weights.
struct Sums {
  int64_t all;
  int64_t likely;  // of those that min-p leaves; 0 where it is off
};

// What one of them has for himself while a table is made.
struct Worker {
  int64_t* table;
  int64_t likely;  // as in Sums
  bool begun;
  BlockRoom room;
  alignas(64) int64_t weights[kSamplingBlock];
  alignas(64) int32_t buckets[kSamplingBlock];
};

struct OtherWorker : Worker {
  alignas(64) int64_t own_table[kSamplingBuckets];
};

// The logits of one row, and how much of their order is left.
class Candidates {
 public:
  Candidates(const float* logits, int64_t vocab, float best, const Filters& filters, ThreadPool* pool)
      : logits_(logits), vocab_(vocab), best_(best), workers_(pool, vocab) {
    for (int i = 1; i < workers_.count(); ++i)
      others_.push_back(new (workers_.scratch(i, sizeof(OtherWorker))) OtherWorker);
    while (vocab >> (53 - unit_bits_)) --unit_bits_;
    const double temperature = std::max(filters.temperature, 1e-30);
    inverse_temperature_ = 1.0 / temperature;
    // a token that far below the best has no mass
    const auto lowest = static_cast<float>(-temperature * (static_cast<double>(unit_bits_) * 0.6931471805599453 + 1.0));
    choose_blocks(lowest, filters.top_k);
    if (filters.top_k > 0 && filters.top_k < vocab && tabulate(By::kCount, range_, table_).all > filters.top_k) {
      last_ = place(By::kCount, range_, {static_cast<double>(filters.top_k), false});
      range_.low = last_.gap;
    }
    least_mass_ = static_cast<int64_t>(std::ceil(filters.min_p * static_cast<double>(int64_t{1} << unit_bits_)));
    const Sums masses = tabulate(By::kMass, range_, table_);
    mass_ = masses.all;
    nucleus_ = last_;
    if (filters.top_p < 1.0) {
      const double share = filters.top_p * static_cast<double>(masses.all);
      nucleus_ = place(By::kMass, range_, {std::max(share, 1.0), false});  // one token at least
      mass_ = nucleus_.sum;
    }
    if (least_mass_ > 0) mass_ = std::min(mass_, masses.likely);
  }

  int32_t draw(double chance) { return place(By::kMass, range_, {chance * static_cast<double>(mass_), true}).token; }

  // f(token, mass) for every token that is left, in order of the tokens.
  template <class Each>
  void each(Each&& f) {
    each_block(range_.low, [&](const Survivors& block) {
      weigh(By::kMass, range_, block, own_.weights);
      for (int64_t i = 0; i < block.count; ++i)
        if (own_.weights[i] > 0 && own_.weights[i] >= least_mass_ && up_to(nucleus_, block.gaps[i], block.tokens[i]))
          f(block.tokens[i], own_.weights[i]);
      return false;
    });
  }

 private:
  static bool up_to(const Place& last, float gap, int32_t token) {
    return gap > last.gap || (gap == last.gap && token <= last.token);
  }

  // The blocks that have tokens above `lowest`; with a top-k above the best that a look at the best of neighbours rules out.
  void choose_blocks(float lowest, int64_t top_k) {
    float least = 0.0f;
    const std::vector<float> greatest = greatest_of_each(kSamplingBlock, least);
    if (*std::max_element(greatest.begin(), greatest.end()) != 0.0f)
      throw nb::value_error(("`best` must be the greatest of `logits`; got `" + std::to_string(best_) + "`").c_str());
    const bool few_blocks = top_k >= static_cast<int64_t>(greatest.size());
    bound_ = std::max(lowest, below_the_top(few_blocks ? greatest_of_each(kNeighbours, least) : greatest, top_k));
    range_.low = std::max(least, bound_);
    for (int64_t first = 0; first < vocab_; first += kSamplingBlock) {
      const float high = greatest[first / kSamplingBlock];
      if (!(high > bound_)) continue;
      blocks_.push_back({first, high, {}});
    }
    if (bound_ > lowest) keep_survivors();
  }

  // What a top-k leaves is little to keep, and much work to find again for every table and search.
  void keep_survivors() {
    RowRoom& room = row_room(vocab_);
    int64_t count = 0;
    for (Block& block : blocks_) {
      block.kept = find_survivors(block, room.gaps.data() + count, room.tokens.data() + count);
      count += block.kept.count;
    }
  }

  // The greatest gaps of `each` neighbours in the vocabulary, and in `least` the least of all.
  std::vector<float> greatest_of_each(int64_t each, float& least) const {
    std::vector<float> greatest;
    greatest.reserve(static_cast<size_t>(vocab_ / each + 1));
    for (int64_t first = 0; first < vocab_; first += each) {
      const ValueRange range = kernels_.range(logits_ + first, std::min(each, vocab_ - first));
      greatest.push_back(range.high - best_);
      least = std::min(least, range.low - best_);
    }
    return greatest;
  }

  int64_t block_count() const { return static_cast<int64_t>(blocks_.size()); }

  // A gap below more than that many tokens: of as many neighbourhoods and one more, the best token of each.
  static float below_the_top(std::vector<float> greatest, int64_t count) {
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    if (count <= 0 || count >= static_cast<int64_t>(greatest.size())) return kNone;
    std::nth_element(greatest.begin(), greatest.begin() + count, greatest.end(), std::greater<float>());
    return std::nextafter(greatest[count], kNone);
  }

  bool may_hold(const Block& block, float low) const { return block.greatest >= std::max(low, last_.gap); }

  Survivors find_survivors(const Block& block, float* gaps, int32_t* tokens) const {
    const int64_t count = std::min(kSamplingBlock, vocab_ - block.first);
    return {gaps, tokens, kernels_.above(logits_ + block.first, best_, bound_, block.first, count, gaps, tokens)};
  }

  // Those that are not kept are found anew: in a core's own cache that takes less than to keep so many in memory, where another
  // thread may have written them.
  Survivors survivors_of(const Block& block, BlockRoom& room) const {
    return block.kept.gaps != nullptr ? block.kept : find_survivors(block, room.gaps, room.tokens);
  }

  // f(survivors) of every block that may hold a token up to the last, down to `low`, until f returns true.
  template <class Each>
  void each_block(float low, Each&& f) {
    for (const Block& block : blocks_)
      if (may_hold(block, low) && f(survivors_of(block, own_.room))) return;
  }

  // Whether a range has all tokens of all blocks, and none is behind the last.
  bool takes_all(ValueRange range) const { return range.high >= 0.0f && range.low <= range_.low && std::isinf(last_.gap); }

  // The weights of the tokens of a block: 0 outside of the range and behind the last.
  void weigh(By by, ValueRange range, const Survivors& block, int64_t* weights) const {
    if (by == By::kMass)
      kernels_.masses(block.gaps, inverse_temperature_, unit_bits_, block.count, weights);
    else
      std::fill(weights, weights + block.count, 1);
    if (takes_all(range)) return;
    const int64_t equal = block.up_to(last_.token);  // that many may equal the last
    const float least = std::max(range.low, last_.gap);
    const float above = std::max(range.low, std::nextafter(last_.gap, 1.0f));
    kernels_.keep(block.gaps, {range.high, least}, equal, weights);
    kernels_.keep(block.gaps + equal, {range.high, above}, block.count - equal, weights + equal);
  }

  // Adds the weights of a block to the table of a worker.
  void add_block(By by, ValueRange range, const Block& from, Worker& worker) const {
    const Survivors block = survivors_of(from, worker.room);
    if (by == By::kMass && takes_all(range)) {
      kernels_.tabulate(block.gaps, inverse_temperature_, unit_bits_, range, block.count, worker.weights, worker.table);
    } else {
      weigh(by, range, block, worker.weights);
      kernels_.buckets(block.gaps, range, block.count, worker.buckets);
      for (int64_t i = 0; i < block.count; ++i) worker.table[worker.buckets[i]] += worker.weights[i];
    }
    if (least_mass_ > 0) worker.likely += kernels_.sum_from(worker.weights, least_mass_, block.count);
  }

  static void begin(Worker& worker, int64_t* table) {
    worker.table = table;
    worker.likely = 0;
    worker.begun = true;
    std::fill(table, table + kSamplingBuckets, 0);
  }

  // Writes the weights of the buckets of a range to `table`; the sums of them all.
  Sums tabulate(By by, ValueRange range, int64_t* table) {
    begin(own_, table);
    for (OtherWorker* other : others_) other->begun = false;
    workers_.each(block_count(), [&](int64_t index, int number) {
      if (!may_hold(blocks_[index], range.low)) return;
      if (number > 0 && !others_[number - 1]->begun) begin(*others_[number - 1], others_[number - 1]->own_table);
      add_block(by, range, blocks_[index], number > 0 ? *others_[number - 1] : own_);
    });
    int64_t likely = own_.likely;
    for (const OtherWorker* other : others_) {
      if (!other->begun) continue;
      for (int32_t bucket = 0; bucket < kSamplingBuckets; ++bucket) table[bucket] += other->own_table[bucket];
      likely += other->likely;
    }
    return {std::accumulate(table, table + kSamplingBuckets, int64_t{0}), likely};
  }

  // Where the running sum of the weights of a range, which are in table_, is as wanted.
  Place place(By by, ValueRange range, Wanted wanted) {
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
  ValueRange survey(ValueRange range, int32_t bucket) {
    found_ = 0;
    ValueRange inside = {-std::numeric_limits<float>::infinity(), 0.0f};
    const ValueRange of_bucket = kernels_.gaps_of(range, bucket);
    const ValueRange gaps = {std::min(range.high, of_bucket.high), std::max(range.low, of_bucket.low)};
    for (const Block& block : blocks_) {
      if (!may_hold(block, gaps.low)) continue;
      const bool kept = block.kept.gaps != nullptr;
      const float* values = kept ? block.kept.gaps : logits_ + block.first;
      const float best = kept ? 0.0f : best_;
      const int64_t count = kept ? block.kept.count : std::min(kSamplingBlock, vocab_ - block.first);
      const int64_t found = kernels_.find(values, best, gaps, count, own_.buckets);
      for (int64_t n = 0; n < found; ++n) {
        const int32_t at = own_.buckets[n];
        const float gap = values[at] - best;
        const int32_t token = kept ? block.kept.tokens[at] : static_cast<int32_t>(block.first + at);
        if (!(gap > bound_) || !up_to(last_, gap, token)) continue;
        inside = {std::max(inside.high, gap), std::min(inside.low, gap)};
        if (found_ < kFew) few_[found_] = {gap, token, 0};
        ++found_;
      }
    }
    return inside;
  }

  Place place_among_few(By by, int64_t before, Wanted wanted) {
    std::sort(few_, few_ + found_, [](const Place& a, const Place& b) {
      return a.gap != b.gap ? a.gap > b.gap : a.token < b.token;
    });
    for (int64_t i = 0; i < found_; ++i) few_gaps_[i] = few_[i].gap;
    kernels_.masses(few_gaps_, inverse_temperature_, unit_bits_, found_, own_.weights);
    for (int64_t i = 0; i < found_; ++i) {
      before += by == By::kMass ? own_.weights[i] : 1;
      if (wanted.met(before)) return {few_[i].gap, few_[i].token, before};
    }
    return {few_[found_ - 1].gap, few_[found_ - 1].token, before};
  }

  // Tokens of one gap are in order of their ids, however many there are.
  Place place_among_equals(By by, float gap, int64_t before, Wanted wanted) {
    int64_t weight = 1;
    if (by == By::kMass) kernels_.masses(&gap, inverse_temperature_, unit_bits_, 1, &weight);
    Place at = {gap, 0, before};
    each_block(gap, [&](const Survivors& block) {
      const int64_t count = gap == last_.gap ? block.up_to(last_.token) : block.count;
      const int64_t equal = std::count(block.gaps, block.gaps + count, gap);
      const bool here = wanted.met(at.sum + equal * weight);
      if (!here) at.sum += equal * weight;
      for (int64_t i = 0; here && !wanted.met(at.sum); ++i)
        if (block.gaps[i] == gap) at = {gap, block.tokens[i], at.sum + weight};
      return here;
    });
    return at;
  }

  static constexpr int64_t kFew = kSamplingBlock;
  static constexpr int64_t kNeighbours = 32;  // whose best are looked at where a top-k takes more than all blocks have

  const SamplingKernels& kernels_ = *kernels().sampling;
  const float* logits_;
  int64_t vocab_;
  float best_, bound_ = 0.0f;  // only gaps above the bound count
  Workers workers_;
  std::vector<OtherWorker*> others_;  // in the memory of the pool
  int64_t unit_bits_ = 51;  // the best token's mass is 2^unit_bits; all masses together are below 2^53
  double inverse_temperature_;
  std::vector<Block> blocks_;
  Place last_ = {-std::numeric_limits<float>::infinity(), INT32_MAX, 0}, nucleus_;  // the last that top-k and top-p leave
  int64_t least_mass_ = 0;  // that min-p leaves
  ValueRange range_ = {0.0f, 0.0f};  // of the tokens that top-k leaves
  int64_t mass_;            // of all that is left
  int64_t found_ = 0;       // tokens of the last survey; the first kFew of them are in few_
  int64_t table_[kSamplingBuckets], finer_[kSamplingBuckets];
  Place few_[kFew];
  alignas(64) float few_gaps_[kFew];
  Worker own_;
};

}  // namespace
}  // namespace edge

// Activations to INT8: q = clamp(rint(x / scale), -127, 127), hot columns 0, and the sparse rest.
#pragma once

#include "int8_dot.h"
#include "pool.h"
#include "table_linear.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// 1/scale, and 0 at the hot columns: those then quantize to 0 and never overflow, without a branch. [K]
EDGE_INLINE void column_factors(const QuantizeInput& input, float* factor) {
  const float inverse = 1.0f / input.scale;
  for (int64_t c = 0; c < input.columns; ++c) factor[c] = inverse;
  for (int64_t h = 0; h < input.hot_count; ++h) factor[input.hot[h]] = 0.0f;
}

// The residual of the rows one worker quantizes, appended to its pool.extend() memory.
class ResidualWriter {
 public:
  ResidualWriter(ThreadPool& pool, int worker) : pool_(pool), worker_(worker) {}

  void begin_row(ResidualRow* row) { *row = {count_, worker_, 0}; }

  // y: 16 values from column `first` on; bit i of `over` set where |y[i]| > 127.5.
  void append(ResidualRow* row, uint32_t over, f32x16 y, int64_t first) {
    float value[kLanes];
    store(value, y);
    auto* entries = static_cast<ResidualEntry*>(
        pool_.extend(worker_, static_cast<size_t>(count_ + kLanes) * sizeof(ResidualEntry)));
    for (; over != 0; over &= over - 1) {
      const int lane = __builtin_ctz(over);
      const float kept = value[lane] > 0.0f ? 127.0f : -127.0f;
      entries[count_++] = {static_cast<int32_t>(first + lane), value[lane] - kept};
      ++row->count;
    }
  }

 private:
  ThreadPool& pool_;
  int worker_;
  int64_t count_ = 0;
};

// One row. `put(column, q)` takes 16 values at a time, the last time with zeros beyond K. False: a value is not finite.
template <class Put>
EDGE_INLINE bool quantize_row(const float* x, const float* factor, int64_t columns, bool residual, ResidualRow* row,
                              ResidualWriter& writer, Put&& put) {
  const f32x16 limit = broadcast(127.0f), low = broadcast(-127.0f), over_limit = broadcast(127.5f);
  f32x16 not_finite = zero();  // sums y * 0: NaN as soon as one y is infinite or NaN
  const auto sixteen = [&](int64_t c, f32x16 y) __attribute__((always_inline)) {
    not_finite = fma(y, zero(), not_finite);
    if (residual) {
      const uint32_t over = mask_greater(abs(y), over_limit);
      if (__builtin_expect(over != 0, 0)) writer.append(row, over, y, c);
    }
    put(c, round_even(clamp(y, low, limit)));
  };
  writer.begin_row(row);
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) sixteen(c, mul(load(x + c), load(factor + c)));
  if (c < columns) {
    const int rest = static_cast<int>(columns - c);
    sixteen(c, mul(load_partial(x + c, rest), load_partial(factor + c, rest)));
  }
  return reduce_add(not_finite) == 0.0f;
}

// All rows, split over the pool. `put(row, column, q)` as in quantize_row; `row_done(row)` after each.
template <class Put, class RowDone>
EDGE_INLINE bool quantize_rows(const QuantizeInput& input, ResidualRow* residual_rows, ThreadPool& pool, Put&& put,
                               RowDone&& row_done) {
  constexpr int64_t kGrainElements = 32768;  // some microseconds of work
  auto* factor = static_cast<float*>(pool.shared_scratch(0, static_cast<size_t>(input.columns) * sizeof(float)));
  column_factors(input, factor);
  int good[kMaxThreads];  // by worker
  const int64_t workers = min_i64(min_i64(pool.threads(), input.rows), 1 + input.rows * input.columns / kGrainElements);
  for (int64_t w = 0; w < workers; ++w) good[w] = 1;
  const int64_t grain = max_i64(1, kGrainElements / max_i64(1, input.columns));
  pool.reset_blocks();
  pool.run_shared(static_cast<int>(workers), [&](int worker) {
    ResidualWriter writer(pool, worker);
    for (int64_t begin; (begin = pool.take_block() * grain) < input.rows;) {
      const int64_t end = min_i64(begin + grain, input.rows);
      for (int64_t m = begin; m < end; ++m) {
        const bool finite = quantize_row(input.x + m * input.columns, factor, input.columns, input.residual,
                                         residual_rows + m, writer, [&](int64_t c, i32x16 q) { put(m, c, q); });
        if (!finite) good[worker] = 0;
        row_done(m);
      }
    }
  });
  for (int64_t w = 0; w < workers; ++w)
    if (!good[w]) return false;
  return true;
}

static bool quantize(const QuantizeInput& input, int8_t* q, ResidualRow* residual_rows, ThreadPool& pool) {
  const int64_t columns = input.columns;
  return quantize_rows(
      input, residual_rows, pool,
      [&](int64_t m, int64_t c, i32x16 values) {
        int8_t* to = q + m * columns + c;
        if (c + kLanes <= columns) store_i8(to, values);
        else store_i8_partial(to, values, static_cast<int>(columns - c));
      },
      [](int64_t) {});
}

}  // namespace EDGE_VARIANT
}  // namespace edge

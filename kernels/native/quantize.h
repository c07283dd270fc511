// Activations, plain, or normed and turned first, to INT8: q = clamp(rint(x / scale), -127, 127), hot columns 0, and the sparse
// rest. The scale is that of the call, or each row's own, which leaves no rest.
#pragma once

#include "int8_dot.h"
#include "pointwise.h"
#include "pool.h"
#include "table_linear.h"
#include "turn.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// 1/input_scale, and 0 at the hot columns: those then quantize to 0 and never overflow, without a branch. [K]
EDGE_INLINE void column_factors(const QuantizeInput& input, float* factor) {
  const float inverse = 1.0f / input.input_scale;
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

// Where the values of a row come from: as they lie in memory, or root mean square normed on the way (see norm_head).
struct PlainRow {
  const float* x;
  float at(int64_t c) const { return x[c]; }
  EDGE_INLINE f32x16 load(int64_t c, int lanes) const { return load_some(x + c, lanes); }
};
struct NormedRow {
  const float* x;
  const float* gain;
  float r;
  float at(int64_t c) const { return (x[c] * r) * gain[c]; }
  EDGE_INLINE f32x16 load(int64_t c, int lanes) const {
    return mul(mul(load_some(x + c, lanes), broadcast(r)), load_some(gain + c, lanes));
  }
};

// Where the rest of a quantized row goes, besides q.
struct RowRest {
  ResidualRow* residual;
  float* hot_x;  // [H], the values of the hot columns; or null
  float* scale;  // the row's own scale; null: it has that of the call
};

// One row. `put(column, q)` takes 16 values at a time, the last time with zeros beyond K. False: a value is not finite.
template <class Row, class Put>
EDGE_INLINE bool quantize_values(const QuantizeInput& input, const Row& row, const float* factor, RowRest rest,
                                 ResidualWriter& writer, Put&& put) {
  const f32x16 limit = broadcast(127.0f), low = broadcast(-127.0f), over_limit = broadcast(127.5f);
  f32x16 not_finite = zero();  // sums y * 0: NaN as soon as one y is infinite or NaN
  writer.begin_row(rest.residual);
  each_vector(input.columns, [&](int64_t c, int lanes) EDGE_INLINE_LAMBDA {
    const f32x16 y = mul(row.load(c, lanes), load_some(factor + c, lanes));
    not_finite = fma(y, zero(), not_finite);
    if (input.residual) {
      const uint32_t over = mask_greater(abs(y), over_limit);
      if (__builtin_expect(over != 0, 0)) writer.append(rest.residual, over, y, c);
    }
    put(c, round_even(clamp(y, low, limit)));
  });
  if (rest.hot_x != nullptr)
    for (int64_t h = 0; h < input.hot_count; ++h) rest.hot_x[h] = row.at(input.hot[h]);
  return reduce_add(not_finite) == 0.0f;
}

// A row before it is rounded, float32 [K], and its largest magnitude.
struct ReadyRow {
  float most;
  bool finite;
};

// Turns the row into `ready`, which stays in L1.
template <class Row>
EDGE_INLINE ReadyRow make_ready(const QuantizeInput& input, const Row& row, float* ready) {
  f32x16 most = zero(), not_finite = zero();
  turn_channels(
      input.turn, input.columns, [&](int64_t c, int lanes) EDGE_INLINE_LAMBDA { return row.load(c, lanes); },
      [&](int64_t c, f32x16 y, int lanes) EDGE_INLINE_LAMBDA {
        most = max(abs(y), most);
        not_finite = fma(y, zero(), not_finite);
        store_some(ready + c, y, lanes);
      });
  return {reduce_max(most), reduce_add(not_finite) == 0.0f};
}

// One row with a scale of its own: its largest magnitude becomes 127.
template <class Put>
EDGE_INLINE void quantize_ready(const QuantizeInput& input, const float* ready, float most, float* scale, Put&& put) {
  constexpr float kLeast = 1e-30f;  // its inverse is finite; smaller rows have the scale of a row this large
  const float largest = most > kLeast ? most : kLeast;
  *scale = largest / 127.0f;
  const f32x16 inverse = broadcast(127.0f / largest), high = broadcast(127.0f), low = broadcast(-127.0f);
  each_vector(input.columns, [&](int64_t c, int lanes) EDGE_INLINE_LAMBDA {
    put(c, round_even(clamp(mul(load_some(ready + c, lanes), inverse), low, high)));
  });
}

template <class Row, class Put>
EDGE_INLINE bool quantize_row_of(const QuantizeInput& input, const Row& row, const float* factor, RowRest rest, float* ready,
                                 ResidualWriter& writer, Put&& put) {
  if (input.turn == 0 && rest.scale == nullptr) return quantize_values(input, row, factor, rest, writer, put);
  const ReadyRow made = make_ready(input, row, ready);
  if (rest.scale == nullptr) return quantize_values(input, PlainRow{ready}, factor, rest, writer, put);
  writer.begin_row(rest.residual);
  quantize_ready(input, ready, made.most, rest.scale, put);
  return made.finite;
}

// Row m; `ready` [K] is room for it.
template <class Put>
EDGE_INLINE bool quantize_row(const QuantizeInput& input, int64_t m, const float* factor, RowRest rest, float* ready,
                              ResidualWriter& writer, Put&& put) {
  const float* x = input.x + m * input.columns;
  if (input.gain == nullptr) return quantize_row_of(input, PlainRow{x}, factor, rest, ready, writer, put);
  const NormedRow row = {x, input.gain, inverse_rms(x, input.columns, input.eps)};
  return quantize_row_of(input, row, factor, rest, ready, writer, put);
}

// A worker's room for a row that is turned or has a scale of its own.
static float* ready_room(const QuantizeInput& input, ThreadPool& pool, int worker) {
  if (input.turn == 0 && !input.row_scales) return nullptr;
  return static_cast<float*>(pool.scratch(worker, static_cast<size_t>(input.columns) * sizeof(float)));
}

// [K], see column_factors; taken before a region by the caller.
static const float* factors_of(const QuantizeInput& input, ThreadPool& pool) {
  auto* factor = static_cast<float*>(pool.shared_scratch(0, static_cast<size_t>(input.columns) * sizeof(float)));
  column_factors(input, factor);
  return factor;
}

// All rows, split over the pool. `rows_of(worker)` makes that worker's rows(begin, end), false when they are refused.
template <class RowsOf>
static bool prepare_rows(int64_t rows, int64_t columns, ThreadPool& pool, const RowsOf& rows_of) {
  constexpr int64_t kGrainElements = 32768;  // some microseconds of work
  const int64_t workers = min_i64(min_i64(pool.threads(), rows), 1 + rows * columns / kGrainElements);
  const int64_t grain = max_i64(1, kGrainElements / max_i64(1, columns));
  int refused = 0;
  pool.reset_blocks();
  pool.run_shared(static_cast<int>(workers), [&](int worker) {
    auto prepare = rows_of(worker);
    for (int64_t begin; (begin = pool.take_block() * grain) < rows;)
      if (!prepare(begin, min_i64(begin + grain, rows))) __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
  });
  return refused == 0;
}

// Once per call, by the caller: the loops that find what overflows know nothing of it.
static void count_overflow(const QuantizeInput& input, const ResidualRow* residual_rows, ThreadPool& pool) {
  if (!input.residual) return;
  int64_t values = 0;
  for (int64_t m = 0; m < input.rows; ++m) values += residual_rows[m].count;
  if (values != 0) pool.add_overflow(values);
}

static bool quantize(const QuantizeInput& input, int8_t* q, ResidualRow* residual_rows, ThreadPool& pool) {
  const int64_t columns = input.columns;
  const float* factor = factors_of(input, pool);
  const bool finite = prepare_rows(input.rows, columns, pool, [&](int worker) {
    return [&, ready = ready_room(input, pool, worker), writer = ResidualWriter(pool, worker)](int64_t begin, int64_t end) mutable {
      bool finite = true;
      for (int64_t m = begin; m < end; ++m)
        finite &= quantize_row(input, m, factor, {residual_rows + m, nullptr, nullptr}, ready, writer, [&](int64_t c, i32x16 values) {
          int8_t* to = q + m * columns + c;
          if (c + kLanes <= columns) store_i8(to, values);
          else store_i8_partial(to, values, static_cast<int>(columns - c));
        });
      return finite;
    };
  });
  if (finite) count_overflow(input, residual_rows, pool);
  return finite;
}

}  // namespace EDGE_VARIANT
}  // namespace edge

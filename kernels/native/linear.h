// The INT8 linear y = x . W^T: activations quantized row by row, exact int32 products, and one epilogue per register tile
// that scales, adds bias, hot columns, residual and `add` before the tile's only store.
//
// Per output element the float operations and their order are fixed (see kernels/reference.py, `linear`), whatever the
// tile it falls in; that is why a row does not depend on the number of rows, threads or on the ISA.
//
// Memory of a call: activations [M, stride], hot columns of x [M, H] and the residual rows live in the pool's shared
// scratch; residual entries in the workers' own.
#pragma once

#include "int8_dot.h"
#include "pool.h"
#include "quantize.h"
#include "roofs.h"
#include "table_linear.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

using Activation = Int8Dot::Activation;

// Everything a tile needs, constant during a call.
struct LinearPlan {
  Int8Weight weight;
  const Activation* activations;  // [M, stride], see Int8Dot::place
  int64_t stride;                 // elements, see activation_stride()
  int64_t rows;
  const float* hot_x;  // [M, H]
  const uint16_t* hot_weight;  // [H, N] float16
  int64_t hot_count;
  const ResidualRow* residual_rows;            // [M] or null
  const ResidualEntry* const* worker_entries;  // [workers]
  const float* add;                            // [M, N] or null
  float* out;                                  // [M, N]
};

// An odd number of 64-byte lines, so that the rows of a tile do not fall in one cache set; whole 16-value stores fit.
EDGE_INLINE int64_t activation_stride(int64_t columns) {
  constexpr int64_t kLine = 64 / sizeof(Activation);
  return (ceil_div(columns, kLine) | 1) * kLine;
}

EDGE_INLINE f32x16 load_lanes(const float* p, int lanes) { return lanes == kLanes ? load(p) : load_partial(p, lanes); }
EDGE_INLINE i32x16 load_lanes_i32(const int32_t* p, int lanes) {
  return lanes == kLanes ? load_i32(p) : load_i32_partial(p, lanes);
}
EDGE_INLINE f32x16 load_lanes_f16(const uint16_t* p, int lanes) {
  return lanes == kLanes ? from_f16(p) : from_f16_partial(p, lanes);
}
EDGE_INLINE void store_lanes(float* p, f32x16 y, int lanes) {
  if (lanes == kLanes) store(p, y);
  else store_partial(p, y, lanes);
}

// Column c of a panel as floats: byte c % 4 of the 16 words of block c / 4, moved to the top and back with its sign.
EDGE_INLINE f32x16 panel_column(const int8_t* panel, int64_t c) {
  const i32x16 words = load_i32(panel + c / kTileDepth * kTileBytes);
  return from_i32(shift_right(shift_left(words, static_cast<int>(24 - 8 * (c % kTileDepth))), 24));
}

// y = fma(sum over the row's entries of value * W[:, column], scale, y), for P panels.
template <int P>
EDGE_INLINE void add_entries(const ResidualEntry* entry, int64_t count, const int8_t* panel, int64_t panel_bytes,
                             const f32x16 (&scale)[P], f32x16 (&y)[P]) {
  f32x16 total[P];
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { total[p] = zero(); });
  for (int64_t i = 0; i < count; ++i) {
    const f32x16 value = broadcast(entry[i].value);
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      total[p] = fma(value, panel_column(panel + p * panel_bytes, entry[i].column), total[p]);
    });
  }
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { y[p] = fma(total[p], scale[p], y[p]); });
}

// Rows m..m+R of panels first..first+P: product and epilogue.
template <int R, int P, int Unroll>
void linear_tile(const LinearPlan& plan, int64_t m, int64_t first) {
  const Int8Weight& weight = plan.weight;
  const int64_t panel_bytes = weight.blocks() * kTileBytes;
  const int8_t* panel = weight.tiles + first * panel_bytes;
  i32x16 dot[R][P];
  multiply<R, P, Unroll>(plan.activations + m * plan.stride, plan.stride, panel, panel_bytes, weight.blocks(), dot);

  const int64_t n = first * kTileChannels;
  int lanes[P];  // 16, or fewer in the last panel
  f32x16 scale[P], y[R][P];
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
    const int64_t at = n + p * kTileChannels;
    lanes[p] = static_cast<int>(min_i64(kLanes, weight.channels - at));
    scale[p] = load_lanes(weight.scale + at, lanes[p]);
    if constexpr (Int8Dot::kOffsetBits != 0) {
      const i32x16 excess = shift_left(load_lanes_i32(weight.row_sum + at, lanes[p]), Int8Dot::kOffsetBits);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { dot[r][p] = sub_i32(dot[r][p], excess); });
    }
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { y[r][p] = mul(from_i32(dot[r][p]), scale[p]); });
    if (weight.bias != nullptr) {
      const f32x16 bias = load_lanes(weight.bias + at, lanes[p]);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { y[r][p] = add(y[r][p], bias); });
    }
  });
  for (int64_t h = 0; h < plan.hot_count; ++h) {
    f32x16 hot[P];
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      hot[p] = load_lanes_f16(plan.hot_weight + h * weight.channels + n + p * kTileChannels, lanes[p]);
    });
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      const f32x16 x = broadcast(plan.hot_x[(m + r) * plan.hot_count + h]);
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { y[r][p] = fma(x, hot[p], y[r][p]); });
    });
  }
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    if (plan.residual_rows != nullptr) {
      const ResidualRow& row = plan.residual_rows[m + r];
      if (row.count != 0)
        add_entries<P>(plan.worker_entries[row.worker] + row.offset, row.count, panel, panel_bytes, scale, y[r]);
    }
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const int64_t at = (m + r) * weight.channels + n + p * kTileChannels;
      if (plan.add != nullptr) y[r][p] = add(y[r][p], load_lanes(plan.add + at, lanes[p]));
      store_lanes(plan.out + at, y[r][p], lanes[p]);
    });
  });
}

// As many independent sums per accumulator as hide the latency of a dot product.
template <int R, int P>
constexpr int unroll_of() {
  constexpr int kSums = R * P * Int8Dot::kRegisters;
  return kSums >= 8 ? 1 : kSums >= 4 ? 2 : kSums >= 2 ? 4 : 8;
}

template <int R, int P>
void linear_tile_of(const LinearPlan& plan, int64_t rows, int64_t m, int64_t first) {
  if (rows == R) return linear_tile<R, P, unroll_of<R, P>()>(plan, m, first);
  if constexpr (R > 1) linear_tile_of<R - 1, P>(plan, rows, m, first);
}

// Rows begin..end of panels first..first+P in tiles of at most R rows; the last two share what is left evenly. Every tile
// begins with a group of rows (Int8Dot::kRowGroup).
template <int R, int P>
void linear_rows(const LinearPlan& plan, int64_t begin, int64_t end, int64_t first) {
  constexpr int64_t kGroup = Int8Dot::kRowGroup;
  static_assert(R % kGroup == 0, "a full tile would leave the next to begin within a group");
  for (int64_t m = begin; m < end;) {
    const int64_t left = end - m;
    const int64_t rows = left <= R ? left : left >= 2 * R ? R : ceil_div(left, 2 * kGroup) * kGroup;
    linear_tile_of<R, P>(plan, rows, m, first);
    m += rows;
  }
}

// Few rows: the weights pass by once, panel after panel, and memory sets the pace.
static void linear_stream(const LinearPlan& plan, int workers, ThreadPool& pool) {
  constexpr int64_t kBlockBytes = 256 << 10;  // long enough for the hardware prefetcher, short enough to balance
  const int64_t panels = plan.weight.panels();
  const int64_t panel_bytes = max_i64(1, plan.weight.blocks() * kTileBytes);
  const int64_t grain = max_i64(1, min_i64(kBlockBytes / panel_bytes, panels / (4 * workers)));
  pool.for_blocks(
      panels, grain,
      [&](int64_t begin, int64_t end, int) {
        for (int64_t p = begin; p < end; ++p) linear_rows<Int8Dot::kStreamRows, 1>(plan, 0, plan.rows, p);
      },
      workers);
}

// Many rows: a task is a group of panels, which stays in the core's L2, times a block of rows.
static void linear_block(const LinearPlan& plan, int workers, ThreadPool& pool) {
  constexpr int64_t kTasksPerWorker = 8;
  const int64_t panels = plan.weight.panels();
  const int64_t groups = ceil_div(panels, Int8Dot::kPanels);
  const int64_t wanted_splits = ceil_div(kTasksPerWorker * workers, groups);
  const int64_t row_grain = ceil_div(ceil_div(plan.rows, wanted_splits), Int8Dot::kRows) * Int8Dot::kRows;
  const int64_t splits = ceil_div(plan.rows, row_grain);
  pool.for_blocks(
      groups * splits, 1,
      [&](int64_t task_begin, int64_t task_end, int) {
        for (int64_t task = task_begin; task < task_end; ++task) {
          const int64_t first = task / splits * Int8Dot::kPanels;
          const int64_t begin = task % splits * row_grain, end = min_i64(begin + row_grain, plan.rows);
          if (first + Int8Dot::kPanels <= panels) {
            linear_rows<Int8Dot::kRows, Int8Dot::kPanels>(plan, begin, end, first);
          } else {
            for (int64_t p = first; p < panels; ++p) linear_rows<Int8Dot::kStreamRows, 1>(plan, begin, end, p);
          }
        }
      },
      workers);
}

static void linear_product(const LinearPlan& plan, ThreadPool& pool) {
  constexpr int64_t kProductsPerWorker = 128 << 10;  // some microseconds: less is not worth waking a core
  const int64_t products = plan.rows * plan.weight.channels * plan.weight.columns;
  const int workers = static_cast<int>(min_i64(pool.threads(), 1 + products / kProductsPerWorker));
  if (plan.rows <= Int8Dot::kStreamRows) linear_stream(plan, workers, pool);
  else linear_block(plan, workers, pool);
}

static Activation* activation_scratch(ThreadPool& pool, int64_t rows, int64_t stride) {
  const int64_t whole_groups = ceil_div(rows, Int8Dot::kRowGroup) * Int8Dot::kRowGroup;
  return static_cast<Activation*>(pool.shared_scratch(1, static_cast<size_t>(whole_groups * stride) * sizeof(Activation)));
}

static bool linear_int8(const int8_t* q, int64_t rows, const Int8Weight& weight, float* out, ThreadPool& pool) {
  LinearPlan plan = {};
  plan.weight = weight;
  plan.rows = rows;
  plan.out = out;
  const int64_t columns = weight.columns, stride = activation_stride(columns);
  Activation* activations = activation_scratch(pool, rows, stride);
  plan.activations = activations;
  plan.stride = stride;
  bool in_range = true;
  for (int64_t m = 0; m < rows; ++m) {
    for (int64_t c = 0; c < columns; ++c) {
      in_range &= q[m * columns + c] != -128;
      *Int8Dot::place(activations, stride, m, c) = Int8Dot::activation(q[m * columns + c]);
    }
    for (int64_t c = columns; c < ceil_div(columns, kTileDepth) * kTileDepth; ++c)
      *Int8Dot::place(activations, stride, m, c) = Int8Dot::activation(0);
  }
  if (!in_range) return false;
  linear_product(plan, pool);
  return true;
}

static bool linear(const QuantizeInput& input, const Int8Weight& weight, const uint16_t* hot_weight, const float* add,
                   float* out, ThreadPool& pool) {
  LinearPlan plan = {};
  plan.weight = weight;
  plan.rows = input.rows;
  plan.stride = activation_stride(input.columns);
  plan.hot_count = hot_weight != nullptr ? input.hot_count : 0;
  plan.hot_weight = hot_weight;
  plan.add = add;
  plan.out = out;
  Activation* activations = activation_scratch(pool, input.rows, plan.stride);
  auto* hot_x = static_cast<float*>(
      pool.shared_scratch(2, static_cast<size_t>(input.rows * plan.hot_count) * sizeof(float)));
  auto* residual_rows =
      static_cast<ResidualRow*>(pool.shared_scratch(3, static_cast<size_t>(input.rows) * sizeof(ResidualRow)));
  plan.activations = activations;
  plan.hot_x = hot_x;

  const bool finite = quantize_rows(
      input, residual_rows, pool,
      [&](int64_t m, int64_t c, i32x16 q) { Int8Dot::store(Int8Dot::place(activations, plan.stride, m, c), q); },
      [&](int64_t m) {
        for (int64_t h = 0; h < plan.hot_count; ++h)
          hot_x[m * plan.hot_count + h] = input.x[m * input.columns + input.hot[h]];
      });
  if (!finite) return false;

  const ResidualEntry* worker_entries[kMaxThreads];
  if (input.residual) {
    for (int worker = 0; worker < pool.threads(); ++worker)
      worker_entries[worker] = static_cast<const ResidualEntry*>(pool.extend(worker, 0));
    plan.residual_rows = residual_rows;
    plan.worker_entries = worker_entries;
  }
  linear_product(plan, pool);
  return true;
}

// ---- the parts of the epilogue on their own --------------------------------------------------------------------

static void add_hot(float* out, const float* x, int64_t rows, int64_t columns, int64_t channels, const int32_t* hot,
                    int64_t hot_count, const uint16_t* hot_weight, ThreadPool& pool) {
  pool.for_blocks(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t m = begin; m < end; ++m)
      for (int64_t n = 0; n < channels; n += kLanes) {
        const int lanes = static_cast<int>(min_i64(kLanes, channels - n));
        f32x16 y = load_lanes(out + m * channels + n, lanes);
        for (int64_t h = 0; h < hot_count; ++h)
          y = fma(broadcast(x[m * columns + hot[h]]), load_lanes_f16(hot_weight + h * channels + n, lanes), y);
        store_lanes(out + m * channels + n, y, lanes);
      }
  });
}

static void add_residual(float* out, int64_t rows, const Int8Weight& weight, const int64_t* row_start,
                         const int32_t* column, const float* value, ThreadPool& pool) {
  const int64_t panel_bytes = weight.blocks() * kTileBytes;
  pool.for_blocks(rows, 1, [&](int64_t begin, int64_t end, int worker) {
    for (int64_t m = begin; m < end; ++m) {
      const int64_t count = row_start[m + 1] - row_start[m];
      if (count == 0) continue;
      auto* entries = static_cast<ResidualEntry*>(
          pool.scratch(worker, static_cast<size_t>(count) * sizeof(ResidualEntry)));
      for (int64_t i = 0; i < count; ++i) entries[i] = {column[row_start[m] + i], value[row_start[m] + i]};
      for (int64_t p = 0; p < weight.panels(); ++p) {
        const int64_t n = p * kTileChannels;
        const int lanes = static_cast<int>(min_i64(kLanes, weight.channels - n));
        const f32x16 scale[1] = {load_lanes(weight.scale + n, lanes)};
        f32x16 y[1] = {load_lanes(out + m * weight.channels + n, lanes)};
        add_entries<1>(entries, count, weight.tiles + p * panel_bytes, panel_bytes, scale, y);
        store_lanes(out + m * weight.channels + n, y[0], lanes);
      }
    }
  });
}

constexpr LinearKernels linear_kernels = {&quantize,  &linear_int8,     &add_hot,    &add_residual,
                                          &linear,    &int8_operations, &read_stream};

}  // namespace EDGE_VARIANT
}  // namespace edge

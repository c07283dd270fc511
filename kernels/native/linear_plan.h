// What a linear works on, constant during a call, and the epilogue of its products; see linear.h.
#pragma once

#include "int8_dot.h"
#include "pointwise.h"
#include "pool.h"
#include "quantize.h"
#include "table_linear.h"
#include "vec.h"
#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

using Activation = Int8Dot::Activation;

// Everything a tile needs, constant during a call.
struct LinearPlan {
  Int8Weight weight;              // with a gate: the first half of the panels
  Int8Weight up;                  // with a gate: the second half; else without channels
  Gate gate;
  const Activation* activations;  // [M, stride], see Int8Dot::place
  int64_t stride;                 // elements, see activation_stride()
  int64_t rows;
  const float* hot_x;          // [M, H]
  const uint16_t* hot_weight;  // [H, N] float16
  int64_t hot_stride;          // N
  int64_t hot_count;
  const ResidualRow* residual_rows;            // [M] or null
  const ResidualEntry* const* worker_entries;  // [workers]
  const float* row_scales;                     // [M], of rows that have scales of their own; or null
  const float* add;                            // [M, width] or null
  float* out;                                  // [M, width]
  int64_t width;                               // of a row of the results, of which this weight may make a part
  int64_t next_panels;                         // from a group of panels to the one that its worker takes next; 0: unknown
  int64_t next_bytes;                          // the same in bytes, where that one may be of another weight; 0: unknown
};

// An odd number of 64-byte lines, so that the rows of a tile do not fall in one cache set; whole 16-value stores fit.
EDGE_INLINE int64_t activation_stride(int64_t columns) {
  constexpr int64_t kLine = 64 / sizeof(Activation);
  return (ceil_div(columns, kLine) | 1) * kLine;
}

EDGE_INLINE i32x16 load_lanes_i32(const int32_t* p, int lanes) {
  return lanes == kLanes ? load_i32(p) : load_i32_partial(p, lanes);
}
EDGE_INLINE f32x16 load_lanes_f16(const uint16_t* p, int lanes) {
  return lanes == kLanes ? from_f16(p) : from_f16_partial(p, lanes);
}
// Columns of panels whose tiles lie in memory, `bytes` apart.
struct TileColumns {
  const int8_t* panel;
  int64_t bytes;

  static constexpr float kColumnUnit = kRaisedUnit;
  EDGE_INLINE f32x16 column(int64_t p, ResidualEntry at) const { return raised_column(panel + p * bytes, at); }
};

// total = sum over the row's entries of value * W[:, column], for P panels, which give W[:, column] in a unit that is a power of
// two: a value times the unit is exact, for what overflows is above 1/2.
template <int P, class Panels>
EDGE_INLINE void sum_entries(const ResidualEntry* entry, int64_t count, const Panels& panels, f32x16 (&total)[P]) {
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { total[p] = zero(); });
  for (const ResidualEntry* const end = entry + count; entry < end; ++entry) {
    const f32x16 value = mul(broadcast(entry->value), broadcast(Panels::kColumnUnit));
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { total[p] = fma(value, panels.column(p, *entry), total[p]); });
  }
}

// y = fma(that sum, product_scale, y).
template <int P, class Panels>
EDGE_INLINE void add_entries(const ResidualEntry* entry, int64_t count, const Panels& panels,
                             const f32x16 (&product_scale)[P], f32x16 (&y)[P]) {
  f32x16 total[P];
  sum_entries<P>(entry, count, panels, total);
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { y[p] = fma(total[p], product_scale[p], y[p]); });
}

// Where a tile's results go, and what is added to them last.
struct TileOutput {
  float* out;        // first row, first channel
  const float* add;  // the same place of `add`, or null
  int64_t stride;    // of both
};

// A tile's share of the weights that come next: from byte `begin` of them on, `step` bytes with each block.
struct NextShare { int64_t begin, step; };

// The hot columns' share of a tile, sum[R][P][16]. A function of its own: its sums take all registers.
template <int R, int P>
__attribute__((noinline)) void hot_tile(const float* hot_x, int64_t hot_count, const uint16_t* hot_weight, int64_t hot_stride,
                                        int64_t channels, float* sums) {
  f32x16 sum[R][P];
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { sum[r][p] = zero(); }); });
  for (int64_t h = 0; h < hot_count; ++h) {
    f32x16 hot[P];
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const int64_t lanes = min_i64(kLanes, channels - p * kTileChannels);
      hot[p] = load_lanes_f16(hot_weight + h * hot_stride + p * kTileChannels, static_cast<int>(lanes));
    });
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      const f32x16 x = broadcast(hot_x[r * hot_count + h]);
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { sum[r][p] = fma(x, hot[p], sum[r][p]); });
    });
  }
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { store(sums + (r * P + p) * kLanes, sum[r][p]); });
  });
}

// The epilogue of `dot`, the products of rows m..m+R and the P `panels` of `weight` from number `first` on, which it changes:
// scales them, or rounds them as a card does, adds the rest, and stores.
template <int R, int P, bool Rounded, class Panels>
EDGE_INLINE void finish_tile(const LinearPlan& plan, const Int8Weight& weight, const Panels& panels, const uint16_t* hot_weight,
                             int64_t m, int64_t first, i32x16 (&dot)[R][P], const TileOutput& to) {
  const int64_t n = first * kTileChannels;
  alignas(64) float hot_sum[R * P * kLanes];
  if (plan.hot_count != 0)
    hot_tile<R, P>(plan.hot_x + m * plan.hot_count, plan.hot_count, hot_weight + n, plan.hot_stride, weight.channels - n,
                   hot_sum);

  int lanes[P];  // 16, or fewer in the last panel
  f32x16 product_scale[P], y[R][P];
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
    const int64_t at = n + p * kTileChannels;
    lanes[p] = static_cast<int>(min_i64(kLanes, weight.channels - at));
    product_scale[p] = load_some(weight.product_scale + at, lanes[p]);
    if constexpr (Panels::template kOffsetBits<R> != 0) {
      const i32x16 excess = shift_left(load_lanes_i32(weight.row_sum + at, lanes[p]), Panels::template kOffsetBits<R>);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { dot[r][p] = sub_i32(dot[r][p], excess); });
    }
    if constexpr (Rounded) {
      const f32x16 scale = load_some(weight.rounded_scale + at, lanes[p]);
      const i32x16 bias = weight.rounded_bias == nullptr ? broadcast_i32(0) : load_lanes_i32(weight.rounded_bias + at, lanes[p]);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        y[r][p] = saturated_f16(mul(from_i32(add_i32(dot[r][p], bias)), scale));
      });
      return;
    }
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { y[r][p] = mul(from_i32(dot[r][p]), product_scale[p]); });
    if (plan.row_scales != nullptr)
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { y[r][p] = mul(y[r][p], broadcast(plan.row_scales[m + r])); });
    if (weight.bias != nullptr) {
      const f32x16 bias = load_some(weight.bias + at, lanes[p]);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { y[r][p] = add(y[r][p], bias); });
    }
  });
  if (plan.hot_count != 0)
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { y[r][p] = add(y[r][p], load(hot_sum + (r * P + p) * kLanes)); });
    });
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    if (plan.residual_rows != nullptr) {
      const ResidualRow& row = plan.residual_rows[m + r];
      if (row.count != 0)
        add_entries<P>(plan.worker_entries[row.worker] + row.offset, row.count, panels, product_scale, y[r]);
    }
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const int64_t at = r * to.stride + p * kTileChannels;
      if (to.add != nullptr) y[r][p] = add(y[r][p], load_some(to.add + at, lanes[p]));
      store_some(to.out + at, y[r][p], lanes[p]);
    });
  });
}

}  // namespace EDGE_VARIANT
}  // namespace edge

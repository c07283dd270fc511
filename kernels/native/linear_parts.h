// The parts of a linear's epilogue on their own.
#pragma once

#include "linear_plan.h"

namespace edge {
namespace EDGE_VARIANT {

static void hot_product(float* out, const float* x, int64_t rows, int64_t columns, int64_t channels, const int32_t* hot,
                        int64_t hot_count, const uint16_t* hot_weight, ThreadPool& pool) {
  pool.for_blocks(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t m = begin; m < end; ++m)
      each_vector(channels, [&](int64_t n, int lanes) EDGE_INLINE_LAMBDA {
        f32x16 sum = zero();
        for (int64_t h = 0; h < hot_count; ++h)
          sum = fma(broadcast(x[m * columns + hot[h]]), load_lanes_f16(hot_weight + h * channels + n, lanes), sum);
        store_some(out + m * channels + n, sum, lanes);
      });
  });
}

constexpr int64_t kGrainElements = 8192;  // a microsecond or more

static int64_t rows_at_once(int64_t channels) { return max_i64(1, kGrainElements / max_i64(1, channels)); }

// Output channels from n on, of P panels: sums that do not wait for each other.
template <int P>
EDGE_INLINE void overflow_panels(const Int8Weight& weight, const ResidualEntry* entries, int64_t count, int64_t n, float* out) {
  const int64_t bytes = weight.tile_bytes();
  const TileColumns panels = {weight.tiles + n / kTileChannels * bytes, bytes};
  f32x16 total[P];
  sum_entries<P>(entries, count, panels, total);
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
    const int64_t at = n + p * kTileChannels;
    store_some(out + at, total[p], static_cast<int>(min_i64(kLanes, weight.channels - at)));
  });
}

static void overflow_row(const Int8Weight& weight, const ResidualEntry* entries, int64_t count, float* out) {
  constexpr int kPanels = 4;
  int64_t n = 0;
  for (; n + (kPanels - 1) * kTileChannels < weight.channels; n += kPanels * kTileChannels)
    overflow_panels<kPanels>(weight, entries, count, n, out);
  for (; n < weight.channels; n += kTileChannels) overflow_panels<1>(weight, entries, count, n, out);
}

static void overflow_product(float* out, int64_t rows, const Int8Weight& weight, const ResidualRows& residual, ThreadPool& pool) {
  pool.for_blocks(rows, rows_at_once(weight.channels), [&](int64_t begin, int64_t end, int worker) {
    for (int64_t m = begin; m < end; ++m) {
      const int64_t first = residual.row_start[m], count = residual.row_start[m + 1] - first;
      if (count == 0) continue;
      auto* entries = static_cast<ResidualEntry*>(
          pool.scratch(worker, static_cast<size_t>(count) * sizeof(ResidualEntry)));
      for (int64_t i = 0; i < count; ++i) entries[i] = {residual.column[first + i], residual.value[first + i]};
      overflow_row(weight, entries, count, out + m * weight.channels);
    }
  });
}

static void merge_row(const MergeArgs& args, int64_t m) {
  const int64_t row = m * args.channels;
  const bool overflows = args.row_start != nullptr && args.row_start[m] != args.row_start[m + 1];
  each_vector(args.channels, [&](int64_t n, int lanes) EDGE_INLINE_LAMBDA {
    f32x16 y = load_some(args.y + row + n, lanes);
    if (args.hot_sum != nullptr) y = add(y, load_some(args.hot_sum + row + n, lanes));
    if (overflows) y = fma(load_some(args.overflow_sum + row + n, lanes), load_some(args.product_scale + n, lanes), y);
    if (args.add != nullptr) y = add(y, load_some(args.add + row + n, lanes));
    store_some(args.y + row + n, y, lanes);
  });
}

static void merge(const MergeArgs& args, ThreadPool& pool) {
  pool.for_blocks(args.rows, rows_at_once(args.channels), [&](int64_t begin, int64_t end, int) {
    for (int64_t m = begin; m < end; ++m) merge_row(args, m);
  });
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// How a linear walks through its rows and panels where products are made in tiles.
//
// A pair of panels, neighbours or one of the gate and its one of the up half, stays in L1 while all rows of a block pass by, then
// comes the next pair; long panels are cut in parts, and the sums of the block wait in memory. Workers have pairs of their own, side
// by side, so that no two write to neighbouring lines. Sums in memory meet the same epilogue as those in registers (`finish_tile`),
// and integers are exact in any order: the bits are those of every other set.
#pragma once

#include <set.h>

#include "linear_plan.h"
#include "linear_queue.h"
#include "isa/amxint8/tile_product.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int64_t kFewRows = kSumRows;       // weights pass by, panel after panel
constexpr int64_t kMostSteps = 19;           // of a panel in one part
constexpr int64_t kPartSteps = 12;           // of one that is cut: two parts of panels stay in L1
constexpr int64_t kBlockBytes = 1280 << 10;  // of activations, which stay in L2
constexpr int64_t kMostBlockRows = 1024;

// Columns of panels of codes.
struct CodeColumns {
  CodePanel panels[2];
  static constexpr float kColumnUnit = 1.0f;
  EDGE_INLINE f32x16 column(int64_t p, ResidualEntry at) const { return panels[p].column(at.column()); }
};

// The same, of products whose activations are too large by 128.
template <class Columns>
struct OffsetColumns : Columns {
  template <int R>
  static constexpr int kOffsetBits = Int8Dot::kOffsetBits;
};

// One or two panels that meet rows at once.
struct PanelPair {
  int64_t number;  // of the first, also in the up half
  int64_t count;
  const Int8Weight* weights[2];
  const void* panels[2];

  PanelPair(const LinearPlan& plan, int64_t pair) {
    const bool gated = plan.up.channels != 0;
    number = gated ? pair : 2 * pair;
    count = gated ? 2 : min_i64(2, plan.weight.panels() - number);
    weights[0] = &plan.weight;
    weights[1] = gated ? &plan.up : &plan.weight;
    panels[0] = plan.weight.panel(number);
    panels[1] = gated ? plan.up.panel(number) : count == 2 ? plan.weight.panel(number + 1) : panels[0];
  }
};

EDGE_INLINE int64_t panel_pairs(const LinearPlan& plan) {
  return plan.up.channels != 0 ? plan.up.panels() : ceil_div(plan.weight.panels(), 2);
}

// A worker's own memory.
struct TileMemory {
  int32_t* sums;  // of a block of rows, if panels are cut; else of kSumRows
  int8_t* tiles;  // of a part of two panels, expanded, or of their last steps

  static int64_t bytes(int64_t rows) { return ceil_div(rows, kSumRows) * kSumBytes + 2 * kMostSteps * kStepBytes; }
  TileMemory(void* memory, int64_t rows)
      : sums(static_cast<int32_t*>(memory)), tiles(static_cast<int8_t*>(memory) + ceil_div(rows, kSumRows) * kSumBytes) {}
};

// Some steps of the panels of a pair: whole ones as they lie, then at most one that is copied, with zeros behind the last column.
struct PanelPart {
  const int8_t* whole[2];
  const int8_t* last[2];
  int64_t steps, last_steps;
};

// Columns that are no whole step meet zeros: what an activation row holds there does not count.
static PanelPart part_of_tiles(const PanelPair& pair, int64_t begin, int64_t end, int8_t* tiles) {
  const int64_t columns_end = pair.weights[0]->blocks() * kTileBytes, whole = min_i64(end, columns_end / kStepBytes);
  PanelPart part = {{}, {}, whole - begin, end - whole};
  for (int64_t p = 0; p < pair.count; ++p) {
    const auto* panel = static_cast<const int8_t*>(pair.panels[p]);
    part.whole[p] = panel + begin * kStepBytes;
    part.last[p] = tiles + p * kStepBytes;
    if (part.last_steps == 0) continue;
    const auto left = static_cast<size_t>(columns_end - whole * kStepBytes);
    memcpy(tiles + p * kStepBytes, panel + whole * kStepBytes, left);
    memset(tiles + p * kStepBytes + left, 0, kStepBytes - left);
  }
  return part;
}

static PanelPart part_of_codes(const PanelPair& pair, int64_t begin, int64_t end, int8_t* tiles) {
  constexpr int64_t kGroupBytes = kBlocksPerGroup * kTileBytes, kGroups = kStepBytes / kGroupBytes;
  const Int8Weight& weight = *pair.weights[0];
  const int64_t groups = min_i64(end * kGroups, weight.groups()), bytes = (end - begin) * kStepBytes;
  const int64_t filled = min_i64(bytes, weight.blocks() * kTileBytes - begin * kStepBytes);
  PanelPart part = {{}, {}, end - begin, 0};
  for (int64_t p = 0; p < pair.count; ++p) {
    int8_t* to = tiles + p * bytes;
    const CodePanel panel(pair.panels[p], weight.groups(), weight.blocks());
    for (int64_t group = begin * kGroups; group < groups; ++group) panel.expand(group, to + (group - begin * kGroups) * kGroupBytes);
    memset(to + filled, 0, static_cast<size_t>(bytes - filled));
    part.whole[p] = to;
  }
  return part;
}

template <int R, int P, bool WeightsPass>
EDGE_INLINE void multiply_part(const LinearPlan& plan, int64_t m, int64_t begin, const PanelPart& part, int64_t first, bool go_on,
                               int32_t* sums, NextLines& next) {
  const uint8_t* a = plan.activations + m * plan.stride + begin * kTileColumns;
  const int8_t *whole[P], *last[P];
  unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { whole[p] = part.whole[first + p], last[p] = part.last[first + p]; });
  begin_sums<R, P>(sums, go_on);
  add_steps<R, P, WeightsPass>(a, plan.stride, whole, part.steps, next);
  add_steps<R, P, WeightsPass>(a + part.steps * kTileColumns, plan.stride, last, part.last_steps, next);
  end_sums<R, P>(sums);
}

// Rows m.. of a block of sums and the panels of a pair.
template <int R>
static void multiply_rows(const LinearPlan& plan, const PanelPair& pair, int64_t m, int64_t begin, const PanelPart& part, bool go_on,
                          int32_t* sums, NextLines& next) {
  const auto each = [&](auto pass) EDGE_INLINE_LAMBDA {
    for (int64_t p = 0; p < pair.count; ++p) {
      if constexpr (pass) next = {reinterpret_cast<const uint8_t*>(part.whole[p]) + kPrefetchBytes, kStepBytes / 64};
      multiply_part<R, 1, pass>(plan, m, begin, part, p, go_on, sums + p * kTileChannels, next);
    }
  };
  if (plan.rows <= kFewRows && plan.weight.codes == nullptr) return each(Index<1>{});
  if (pair.count == 1) return each(Index<0>{});
  multiply_part<R, 2, false>(plan, m, begin, part, 0, go_on, sums, next);
}

// The epilogue of R rows of sums and P panels, from number `p` of the pair on.
template <int R, int P, class Columns>
EDGE_INLINE void finish_sums(const LinearPlan& plan, const PanelPair& pair, int64_t p, const OffsetColumns<Columns>& columns,
                             const uint16_t* hot_weight, int64_t m, const int32_t* sums, const TileOutput& to) {
  const Int8Weight& weight = *pair.weights[p];
  i32x16 dot[R][P];
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < P; ++i) dot[r][i] = load_i32(sums + r * kSumStride + (p + i) * kTileChannels);
  if (weight.rounded_scale != nullptr) finish_tile<R, P, true>(plan, weight, columns, hot_weight, m, pair.number, dot, to);
  else finish_tile<R, P, false>(plan, weight, columns, hot_weight, m, pair.number, dot, to);
}

template <class Columns>
static OffsetColumns<Columns> columns_of(const PanelPair& pair, int64_t p) {
  const Int8Weight& weight = *pair.weights[p];
  const int64_t second = p == 0 && pair.weights[0] == pair.weights[1] ? 1 : p;
  if constexpr (Columns::kColumnUnit == 1.0f) {
    const auto panel = [&](int64_t i) { return CodePanel(pair.panels[i], weight.groups(), weight.blocks()); };
    return {{{panel(p), panel(second)}}};
  } else {
    return {{static_cast<const int8_t*>(pair.panels[p]), weight.tile_bytes()}};
  }
}

template <int R, class Columns>
static void finish_rows(const LinearPlan& plan, const PanelPair& pair, int64_t m, const int32_t* sums) {
  const int64_t n = pair.number * kTileChannels, at = m * plan.width + n;
  if (plan.up.channels == 0) {
    const TileOutput to = {plan.out + at, plan.add == nullptr ? nullptr : plan.add + at, plan.width};
    const auto columns = columns_of<Columns>(pair, 0);
    if (pair.count == 2) finish_sums<R, 2>(plan, pair, 0, columns, plan.hot_weight, m, sums, to);
    else finish_sums<R, 1>(plan, pair, 0, columns, plan.hot_weight, m, sums, to);
    return;
  }
  alignas(64) float gate[R * kTileChannels], up[R * kTileChannels];
  finish_sums<R, 1>(plan, pair, 0, columns_of<Columns>(pair, 0), plan.hot_weight, m, sums, {gate, nullptr, kTileChannels});
  finish_sums<R, 1>(plan, pair, 1, columns_of<Columns>(pair, 1), plan.hot_weight + plan.width, m, sums, {up, nullptr, kTileChannels});
  if (plan.gate.kind != kSilu) return gate_block(plan.gate, gate, up, kTileChannels, R, kTileChannels, plan.out + at, plan.width);
  for (int r = 0; r < R; ++r) store(plan.out + at + r * plan.width, swiglu(load(gate + r * kLanes), load(up + r * kLanes)));
}

// Rows begin..end, at most kSumRows, whose sums are complete.
template <class Columns>
static void finish_block(const LinearPlan& plan, const PanelPair& pair, int64_t begin, int64_t end, const int32_t* sums) {
  int64_t m = begin;
  for (; m + kFinishRows <= end; m += kFinishRows) finish_rows<kFinishRows, Columns>(plan, pair, m, sums + (m - begin) * kSumStride);
  if constexpr (kFinishRows > 1)
    for (; m < end; ++m) finish_rows<1, Columns>(plan, pair, m, sums + (m - begin) * kSumStride);
}

// Rows begin..end of a pair of panels, while those of the pair after it are asked for; `next` null: none.
static void tile_item(const LinearPlan& plan, int64_t begin, int64_t end, const PanelPair& pair, const void* next, TileMemory memory) {
  const Int8Weight& weight = plan.weight;
  const int64_t steps = ceil_div(weight.columns, kTileColumns), parts = steps <= kMostSteps ? 1 : ceil_div(steps, kPartSteps);
  const int64_t part_steps = ceil_div(steps, parts), blocks = ceil_div(end - begin, kSumRows);
  const int64_t next_lines = ceil_div(2 * weight.panel_bytes() / 64, blocks * steps);
  NextLines lines = {static_cast<const uint8_t*>(next), next == nullptr ? 0 : next_lines};
  for (int64_t part_begin = 0; part_begin < steps; part_begin += part_steps) {
    const int64_t part_end = min_i64(part_begin + part_steps, steps);
    const PanelPart part = weight.codes == nullptr ? part_of_tiles(pair, part_begin, part_end, memory.tiles)
                                                   : part_of_codes(pair, part_begin, part_end, memory.tiles);
    for (int64_t m = begin; m < end; m += kSumRows) {
      const int64_t stop = min_i64(m + kSumRows, end);
      int32_t* sums = memory.sums + (parts == 1 ? 0 : (m - begin) * kSumStride);
      if (stop - m > kTileRows) multiply_rows<2>(plan, pair, m, part_begin, part, part_begin != 0, sums, lines);
      else multiply_rows<1>(plan, pair, m, part_begin, part, part_begin != 0, sums, lines);
      if (part_end != steps) continue;
      if (weight.codes == nullptr) finish_block<TileColumns>(plan, pair, m, stop, sums);
      else finish_block<CodeColumns>(plan, pair, m, stop, sums);
    }
  }
}

EDGE_INLINE int64_t tile_block_rows(const LinearPlan& plan) {
  const int64_t fit = kBlockBytes / max_i64(1, plan.weight.columns) / kSumRows * kSumRows;
  const int64_t most = min_i64(kMostBlockRows, max_i64(2 * kSumRows, fit));
  return ceil_div(ceil_div(plan.rows, ceil_div(plan.rows, most)), kSumRows) * kSumRows;
}

// Every item of every worker's own pairs of panels, then those that others have left.
static void tile_items(const LinearPlan& plan, int64_t block_rows, BlockQueue* queues, int workers, int worker, ThreadPool& pool) {
  const int64_t pairs = panel_pairs(plan), blocks = ceil_div(plan.rows, block_rows);
  const TileMemory memory(pool.scratch(worker, static_cast<size_t>(TileMemory::bytes(block_rows))), block_rows);
  const TileUse use;
  for (int64_t i = 0; i < workers; ++i) {
    const int64_t owner = (worker + i) % workers, first = pairs * owner / workers, count = pairs * (owner + 1) / workers - first;
    for (int64_t item; (item = __atomic_fetch_add(&queues[owner].next, 1, __ATOMIC_RELAXED)) < blocks * count;) {
      const int64_t pair = first + item % count, begin = item / count * block_rows;
      const void* next = pair + 1 < pairs ? PanelPair(plan, pair + 1).panels[0] : nullptr;
      tile_item(plan, begin, min_i64(begin + block_rows, plan.rows), PanelPair(plan, pair), next, memory);
    }
  }
}

// The whole product; `rows_of` as in prepare_rows makes the activations.
template <class RowsOf>
static bool linear_product(LinearPlan& plan, ThreadPool& pool, const RowsOf& rows_of) {
  constexpr int64_t kProductsPerWorker = 512 << 10, kPiece = 8;  // some microseconds; rows quantized at a time
  const int64_t products = plan.rows * (plan.weight.channels + plan.up.channels) * plan.weight.columns;
  const int workers = static_cast<int>(min_i64(pool.threads(), 1 + products / kProductsPerWorker));
  const int64_t block_rows = tile_block_rows(plan);
  auto* queues = static_cast<BlockQueue*>(pool.shared_scratch(4, static_cast<size_t>(workers + 1) * sizeof(BlockQueue)));
  memset(queues, 0, static_cast<size_t>(workers + 1) * sizeof(BlockQueue));
  int64_t rows_done = 0;
  int refused = 0;
  pool.run_shared(workers, [&](int worker) {
    auto prepare = rows_of(worker);
    take_all(queues + workers, 1, ceil_div(plan.rows, kPiece), 0, [&](int64_t, int64_t piece) {
      const int64_t begin = piece * kPiece, end = min_i64(begin + kPiece, plan.rows);
      const CountWhenDone done(&rows_done, end - begin);
      if (!prepare(begin, end)) __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
    });
    wait_for_count(&rows_done, plan.rows);
    if (__atomic_load_n(&refused, __ATOMIC_RELAXED)) return;
    const ResidualEntry* worker_entries[kMaxThreads];
    collect_entries(pool, worker_entries);
    LinearPlan mine = plan;
    mine.worker_entries = worker_entries;
    tile_items(mine, block_rows, queues, workers, worker, pool);
  });
  return refused == 0;
}

}  // namespace EDGE_VARIANT
}  // namespace edge

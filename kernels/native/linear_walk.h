// How a linear walks through its rows and panels where products are made in registers: few rows panel after panel, many rows in
// blocks that stay in a core's L2.
#pragma once

#include <ready_codes.h>
#include <type_traits>

#include "linear_plan.h"
#include "linear_queue.h"

namespace edge {
namespace EDGE_VARIANT {

// Rows m..m+R times the P `panels` of `weight` from number `first` on: product and epilogue.
template <int R, int P, int Unroll, bool Rounded, class Panels>
void linear_tile(const LinearPlan& plan, const Int8Weight& weight, const Panels& panels, const uint16_t* hot_weight, int64_t m,
                 int64_t first, NextShare next, const TileOutput& to) {
  const auto* next_panels = static_cast<const int8_t*>(weight.panel(first + plan.next_panels)) + plan.next_bytes;
  i32x16 dot[R][P];
  panels.template multiply_rows_of<R, Unroll>(plan.activations + m * plan.stride, plan.stride, dot,
                                              {next_panels + next.begin, next.step});
  finish_tile<R, P, Rounded>(plan, weight, panels, hot_weight, m, first, dot, to);
}

// Panels from number `first` on, and with a gate those of the up half.
template <class Panels>
struct OutputPanels {
  int64_t first;
  Panels weight, up;
};

// As many independent sums per accumulator as hide the latency of a dot product.
template <int R, int P>
constexpr int unroll_of() {
  constexpr int kSums = R * P * Int8Dot::kRegisters;
  return kSums >= 8 ? 1 : kSums >= 4 ? 2 : kSums >= 2 ? 4 : 8;
}

// Rows m..m+R times a panel of the gate and its panel of the up half, into gate and up [R][16]. Both are read at once: where
// panels of both take turns, some processors get a fourth less from memory.
template <int R, bool Rounded, class Panels>
void gate_up_tile(const LinearPlan& plan, int64_t m, const OutputPanels<Panels>& panels, float* gate, float* up) {
  const Activation* activations = plan.activations + m * plan.stride;
  i32x16 dot[R][2];
  panels.weight.beside(panels.up).template multiply_rows_of<R, unroll_of<R, 2>()>(activations, plan.stride, dot, {});
  const auto finish = [&](auto half, const Int8Weight& weight, const Panels& panel, const uint16_t* hot_weight,
                          float* out) EDGE_INLINE_LAMBDA {
    i32x16 own[R][1];
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { own[r][0] = dot[r][half]; });
    finish_tile<R, 1, Rounded>(plan, weight, panel, hot_weight, m, panels.first, own, {out, nullptr, kTileChannels});
  };
  finish(Index<0>{}, plan.weight, panels.weight, plan.hot_weight, gate);
  finish(Index<1>{}, plan.up, panels.up, plan.hot_weight + plan.width, up);
}

// Rows m..m+R of the call's output; gate and up meet here.
template <int R, int P, int Unroll, class Panels>
void output_tile(const LinearPlan& plan, int64_t m, const OutputPanels<Panels>& panels, NextShare next) {
  const int64_t first = panels.first, width = plan.width, at = m * width + first * kTileChannels;
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { __builtin_prefetch(plan.out + at + r * width + p * kTileChannels, 1); });
  });
  const bool rounded = plan.weight.rounded_scale != nullptr;
  const auto tile = rounded ? &linear_tile<R, P, Unroll, true, Panels> : &linear_tile<R, P, Unroll, false, Panels>;
  if (plan.up.channels == 0) {
    const float* add = plan.add == nullptr ? nullptr : plan.add + at;
    return tile(plan, plan.weight, panels.weight, plan.hot_weight, m, first, next, {plan.out + at, add, width});
  }
  constexpr int kWidth = P * kTileChannels;
  alignas(64) float gate[R * kWidth], up[R * kWidth];
  if constexpr (R <= Panels::kTwoPanelRows) {
    const auto gate_up = rounded ? &gate_up_tile<R, true, Panels> : &gate_up_tile<R, false, Panels>;
    gate_up(plan, m, panels, gate, up);
  } else {
    tile(plan, plan.weight, panels.weight, plan.hot_weight, m, first, next, {gate, nullptr, kWidth});
    tile(plan, plan.up, panels.up, plan.hot_weight + width, m, first, next, {up, nullptr, kWidth});
  }
  if (plan.gate.kind != kSilu) return gate_block(plan.gate, gate, up, kWidth, R, kWidth, plan.out + at, width);
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < kWidth; n += kLanes)
      store(plan.out + at + r * width + n, swiglu(load(gate + r * kWidth + n), load(up + r * kWidth + n)));
}

template <int R, int P, class Panels>
void linear_tile_of(const LinearPlan& plan, int64_t rows, int64_t m, const OutputPanels<Panels>& panels, NextShare next) {
  if (rows == R) return output_tile<R, P, unroll_of<R, P>()>(plan, m, panels, next);
  if constexpr (R > 1) linear_tile_of<R - 1, P>(plan, rows, m, panels, next);
}

// Bytes that a tile of a group of `panels` fetches with each of its blocks, so that `tiles` of them fetch the whole next group.
EDGE_INLINE int64_t next_step(const LinearPlan& plan, int64_t first, int64_t panels, int64_t tiles) {
  const Int8Weight& weight = plan.weight;
  if (plan.next_bytes == 0 && (plan.next_panels == 0 || first + plan.next_panels + panels > weight.panels())) return 0;
  return min_i64(kTileBytes, ceil_div(panels * weight.panel_bytes(), max_i64(1, tiles * weight.blocks())));
}

// Rows begin..end of P panels in tiles of at most R rows; the last two share what is left evenly. Every tile
// begins with a group of rows (Int8Dot::kRowGroup).
template <int R, int P, class Panels>
void linear_rows(const LinearPlan& plan, int64_t begin, int64_t end, const OutputPanels<Panels>& panels) {
  constexpr int64_t kGroup = Int8Dot::kRowGroup;
  static_assert(R % kGroup == 0, "a full tile would leave the next to begin within a group");
  NextShare next = {0, next_step(plan, panels.first, P, (end - begin) / R)};
  for (int64_t m = begin; m < end;) {
    const int64_t left = end - m;
    const int64_t rows = left <= R ? left : left >= 2 * R ? R : ceil_div(left, 2 * kGroup) * kGroup;
    linear_tile_of<R, P>(plan, rows, m, panels, next);
    next.begin += plan.weight.blocks() * next.step;
    m += rows;
  }
}

template <int P>
static OutputPanels<TilePanels<P>> tile_panels(const LinearPlan& plan, int64_t first) {
  const Int8Weight &weight = plan.weight, &up = plan.up;
  const int64_t bytes = weight.tile_bytes(), blocks = weight.blocks();
  const int8_t* of_up = up.channels == 0 ? nullptr : up.tiles + first * bytes;
  return {first, {weight.tiles + first * bytes, bytes, blocks}, {of_up, bytes, blocks}};
}

// P panels of codes, made ready for many rows in memory of `worker`.
template <int P>
static auto ready_panels(const LinearPlan& plan, int64_t first, int worker, ThreadPool& pool) {
  const int64_t bytes = P * plan.weight.groups() * kReadyGroupBytes, halves = plan.up.channels == 0 ? 1 : 2;
  auto* memory = static_cast<int8_t*>(pool.scratch(worker, static_cast<size_t>(halves * bytes)));
  const auto weight = make_ready<P>(plan.weight, first, memory);
  const auto up = halves == 1 ? weight : make_ready<P>(plan.up, first, memory + bytes);
  return OutputPanels<std::remove_const_t<decltype(weight)>>{first, weight, up};
}

static OutputPanels<CodePanels<1>> code_panels(const LinearPlan& plan, int64_t first) {
  const Int8Weight &weight = plan.weight, &up = plan.up;
  const auto panel = [&](const Int8Weight& of) { return CodePanels<1>{{{of.panel(first), of.groups(), of.blocks()}}}; };
  return {first, panel(weight), up.channels == 0 ? panel(weight) : panel(up)};
}

// Few rows: the weights pass by once, panel after panel (gate and up at once, see `gate_up_tile`), and memory sets the pace.
static void linear_stream(const LinearPlan& plan, int workers, ThreadPool& pool) {
  pool.for_stream(
      {plan.weight.panel(0), plan.weight.panels(), plan.weight.panel_bytes()},
      [&](int64_t panel, int) {
        constexpr int kRows = Int8Dot::kStreamRows;
        if (plan.weight.codes == nullptr) return linear_rows<kRows, 1>(plan, 0, plan.rows, tile_panels<1>(plan, panel));
        linear_rows<kRows, 1>(plan, 0, plan.rows, code_panels(plan, panel));
      },
      workers);
}

// Rows begin..end of P panels.
template <int R, int P>
static void block_rows(const LinearPlan& plan, int64_t begin, int64_t end, int64_t first, int worker, ThreadPool& pool) {
  if (plan.weight.codes == nullptr) return linear_rows<R, P>(plan, begin, end, tile_panels<P>(plan, first));
  linear_rows<R, P>(plan, begin, end, ready_panels<P>(plan, first, worker, pool));
}

static void block_item(const LinearPlan& plan, int64_t begin, int64_t end, int64_t group, int worker, ThreadPool& pool) {
  constexpr int kPanels = Int8Dot::kPanels;
  const int64_t first = group * kPanels, panels = plan.weight.panels();
  if (first + kPanels <= panels) return block_rows<Int8Dot::kRows, kPanels>(plan, begin, end, first, worker, pool);
  for (int64_t p = first; p < panels; ++p) block_rows<Int8Dot::kStreamRows, 1>(plan, begin, end, p, worker, pool);
}

// Many rows, in blocks that stay in a core's L2 with a group of panels. A worker quantizes and multiplies the rows of its own
// blocks, so what it writes it also reads, and then helps with the others'. No product begins before all rows are good.
template <class RowsOf>
static bool linear_block(const LinearPlan& plan, int workers, ThreadPool& pool, const RowsOf& rows_of) {
  constexpr int64_t kLeastRows = 128, kBlockBytes = 640 << 10, kPiece = 8;  // kPiece: rows quantized at a time
  const int64_t most_rows = max_i64(kLeastRows, kBlockBytes / max_i64(1, plan.weight.columns));
  const int64_t shares = max_i64(1, min_i64(workers, plan.rows / kLeastRows));
  const int64_t wanted_blocks = shares * ceil_div(plan.rows, shares * most_rows);
  const int64_t block_rows = ceil_div(ceil_div(plan.rows, wanted_blocks), 2) * 2;  // whole groups of rows (kRowGroup)
  const int64_t blocks = ceil_div(plan.rows, block_rows);
  const int64_t pieces = ceil_div(block_rows, kPiece), groups = ceil_div(plan.weight.panels(), Int8Dot::kPanels);
  auto* queues = static_cast<BlockQueue*>(pool.shared_scratch(4, static_cast<size_t>(2 * blocks) * sizeof(BlockQueue)));
  memset(queues, 0, static_cast<size_t>(2 * blocks) * sizeof(BlockQueue));
  int64_t rows_done = 0;
  int refused = 0;
  pool.run_shared(workers, [&](int worker) {
    const int64_t own = worker * blocks / workers;
    auto prepare = rows_of(worker);
    take_all(queues, blocks, pieces, own, [&](int64_t block, int64_t piece) {
      const int64_t begin = block * block_rows + piece * kPiece;
      const int64_t end = min_i64(min_i64(begin + kPiece, (block + 1) * block_rows), plan.rows);
      if (begin >= end) return;
      const CountWhenDone done(&rows_done, end - begin);
      if (!prepare(begin, end)) __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
    });
    wait_for_count(&rows_done, plan.rows);
    if (__atomic_load_n(&refused, __ATOMIC_RELAXED)) return;
    const ResidualEntry* worker_entries[kMaxThreads];
    collect_entries(pool, worker_entries);
    LinearPlan mine = plan;
    mine.worker_entries = worker_entries;
    mine.next_panels = ceil_div(workers, blocks) * Int8Dot::kPanels;
    take_all(queues + blocks, blocks, groups, own, [&](int64_t block, int64_t group) {
      block_item(mine, block * block_rows, min_i64((block + 1) * block_rows, plan.rows), group, worker, pool);
    });
  });
  return refused == 0;
}

}  // namespace EDGE_VARIANT
}  // namespace edge

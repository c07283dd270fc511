// The INT8 linear y = x . W^T: activations quantized row by row, exact int32 products, and one epilogue per register tile
// that scales, adds bias, hot columns, residual and `add` before the tile's only store (or before the gate meets the up half).
//
// Per output element the float operations and their order are fixed (see kernels/reference/linear.py, `linear`), whatever the
// tile it falls in; that is why a row does not depend on the number of rows, threads or on the ISA.
//
// Memory of a call: activations [M, stride], hot columns of x [M, H] and the residual rows live in the pool's shared
// scratch; residual entries in the workers' own.
#pragma once

#include <sched.h>

#include <type_traits>

#include "int8_dot.h"
#include "pointwise.h"
#include "pool.h"
#include "quantize.h"
#include "roofs.h"
#include "table_linear.h"
#include "vec.h"
#include "w4.h"
#include "w4_direct.h"
#include "w4_dot.h"

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
// P panels whose tiles lie in memory, `bytes` apart.
template <int P>
struct TilePanels {
  const int8_t* panel;
  int64_t bytes;
  int64_t blocks;

  template <int R, int Unroll>
  EDGE_INLINE void multiply_rows_of(const Activation* a, int64_t stride, i32x16 (&dot)[R][P], Ahead ahead) const {
    multiply<R, P, Unroll>(a, stride, panel, bytes, blocks, dot, ahead);
  }
  // What was added to the activations that it meets, see Int8Dot.
  template <int R>
  static constexpr int kOffsetBits = Int8Dot::kOffsetBits;
  static constexpr float kColumnUnit = kRaisedUnit;
  static constexpr int kTwoPanelRows = P == 1 ? Int8Dot::kTwoPanelRows : 0;
  EDGE_INLINE TilePanels<2> beside(const TilePanels& up) const { return {panel, up.panel - panel, blocks}; }
  EDGE_INLINE f32x16 column(int64_t p, ResidualEntry at) const { return raised_column(panel + p * bytes, at); }
};

// P panels of codes.
template <int P>
struct CodePanels {
  CodePanel panels[P];

  template <int R, int Unroll>
  EDGE_INLINE void multiply_rows_of(const Activation* a, int64_t stride, i32x16 (&dot)[R][P], Ahead) const {
    multiply_codes<R, Unroll>(a, stride, panels, dot);
  }
  template <int R>
  static constexpr int kOffsetBits = R <= CodeRow::kMostRows ? 0 : Int8Dot::kOffsetBits;
  static constexpr float kColumnUnit = 1.0f;
  static constexpr int kTwoPanelRows = P == 1 ? CodeRow::kTwoPanelRows : 0;
  EDGE_INLINE CodePanels<2> beside(const CodePanels& up) const { return {{panels[0], up.panels[0]}}; }
  EDGE_INLINE f32x16 column(int64_t p, ResidualEntry at) const { return panels[p].column(at.column()); }
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

#if !defined(EDGE_DIRECT_CODES)

constexpr int64_t kReadyGroupBytes = kBlocksPerGroup * kTileBytes;

// P panels of codes, expanded in `memory`, kReadyGroupBytes for each of their groups.
template <int P>
static TilePanels<P> make_ready(const Int8Weight& weight, int64_t first, void* memory) {
  const int64_t bytes = weight.groups() * kReadyGroupBytes;
  auto* tiles = static_cast<int8_t*>(memory);
  for (int p = 0; p < P; ++p)
    expand_panel(CodePanel(weight.panel(first + p), weight.groups(), weight.blocks()), tiles + p * bytes);
  return {tiles, bytes, weight.blocks()};
}

#endif

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

// Items of one row block, which its owner and then others take in ascending order.
struct alignas(64) BlockQueue {
  int64_t next;
};

// body(block, item) for every item of every block, `count` blocks of `items` each: those from block `first` on, then the
// others, each item by whoever takes it.
template <class Body>
void take_all(BlockQueue* queues, int64_t count, int64_t items, int64_t first, Body&& body) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t block = (first + i) % count;
    for (int64_t item; (item = __atomic_fetch_add(&queues[block].next, 1, __ATOMIC_RELAXED)) < items;) body(block, item);
  }
}

// Counts up when it goes, also by an exception: whoever waits for the count is let go.
class CountWhenDone {
 public:
  CountWhenDone(int64_t* counter, int64_t amount) : counter_(counter), amount_(amount) {}
  ~CountWhenDone() { __atomic_fetch_add(counter_, amount_, __ATOMIC_RELEASE); }

 private:
  int64_t* counter_;
  int64_t amount_;
};

EDGE_INLINE void wait_for_count(const int64_t* counter, int64_t wanted) {
  constexpr int kSpins = 20000;  // then someone else may need the core
  for (int spins = 0; __atomic_load_n(counter, __ATOMIC_ACQUIRE) < wanted; ++spins) {
    if (spins >= kSpins) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
  }
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

static void collect_entries(ThreadPool& pool, const ResidualEntry** worker_entries) {
  for (int worker = 0; worker < pool.threads(); ++worker)
    worker_entries[worker] = static_cast<const ResidualEntry*>(pool.extend(worker, 0));
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

// Up to so many rows weights pass by once. More rows that meet codes are better served by the larger tile of linear_block,
// which also takes residual columns from what is expanded already.
EDGE_INLINE int64_t stream_rows(const Int8Weight& weight) {
  constexpr int64_t kCodeRows = 7;
  return weight.codes == nullptr ? Int8Dot::kStreamRows : min_i64(kCodeRows, Int8Dot::kStreamRows);
}

// The whole product; `rows_of` as in prepare_rows makes the activations.
template <class RowsOf>
static bool linear_product(LinearPlan& plan, ThreadPool& pool, const RowsOf& rows_of) {
  constexpr int64_t kProductsPerWorker = 128 << 10;  // some microseconds: less is not worth waking a core
  const int64_t products = plan.rows * (plan.weight.channels + plan.up.channels) * plan.weight.columns;
  const int workers = static_cast<int>(min_i64(pool.threads(), 1 + products / kProductsPerWorker));
  if (plan.rows > stream_rows(plan.weight)) return linear_block(plan, workers, pool, rows_of);
  if (!prepare_rows(plan.rows, plan.weight.columns, pool, rows_of)) return false;
  const ResidualEntry* worker_entries[kMaxThreads];
  collect_entries(pool, worker_entries);
  plan.worker_entries = worker_entries;
  linear_stream(plan, workers, pool);
  return true;
}

static Activation* activation_scratch(ThreadPool& pool, int64_t rows, int64_t stride) {
  const int64_t whole_groups = ceil_div(rows, Int8Dot::kRowGroup) * Int8Dot::kRowGroup;
  return static_cast<Activation*>(pool.shared_scratch(1, static_cast<size_t>(whole_groups * stride) * sizeof(Activation)));
}

// Whether the plan's activations meet codes that are not expanded.
EDGE_INLINE bool has_code_rows(const LinearPlan& plan) {
  return plan.weight.codes != nullptr && plan.rows <= CodeRow::kMostRows;
}

// The stride of the plan's activations.
EDGE_INLINE int64_t stride_for(const LinearPlan& plan) {
  return activation_stride(has_code_rows(plan) ? CodeRow::columns(plan.weight.blocks()) : plan.weight.columns);
}

EDGE_INLINE void complete_row(const LinearPlan& plan, Activation* activations, int64_t m) {
  if (has_code_rows(plan)) CodeRow::complete(activations + m * plan.stride, plan.weight.blocks());
}

// One row of q, and zeros up to a whole block. False: it holds -128.
static bool place_row(const int8_t* q, int64_t columns, Activation* activations, int64_t stride, int64_t m) {
  bool in_range = true;
  for (int64_t c = 0; c < columns; ++c) {
    in_range &= q[c] != -128;
    *Int8Dot::place(activations, stride, m, c) = Int8Dot::activation(q[c]);
  }
  for (int64_t c = columns; c < ceil_div(columns, kTileDepth) * kTileDepth; ++c)
    *Int8Dot::place(activations, stride, m, c) = Int8Dot::activation(0);
  return in_range;
}

static bool linear_int8(const int8_t* q, int64_t rows, const Int8Weight& weight, float* out, ThreadPool& pool) {
  LinearPlan plan = {};
  plan.weight = weight;
  plan.rows = rows;
  plan.out = out;
  plan.width = weight.channels;
  plan.stride = stride_for(plan);
  Activation* activations = activation_scratch(pool, rows, plan.stride);
  plan.activations = activations;
  return linear_product(plan, pool, [&](int) {
    return [&](int64_t begin, int64_t end) {
      bool in_range = true;
      for (int64_t m = begin; m < end; ++m) {
        in_range &= place_row(q + m * weight.columns, weight.columns, activations, plan.stride, m);
        complete_row(plan, activations, m);
      }
      return in_range;
    };
  });
}

// Quantizes into the pool's memory and runs the plan, which says what to multiply and where to write.
static bool quantized_product(const QuantizeInput& input, LinearPlan& plan, ThreadPool& pool) {
  plan.rows = input.rows;
  plan.stride = stride_for(plan);
  Activation* activations = activation_scratch(pool, input.rows, plan.stride);
  auto* hot_x = static_cast<float*>(
      pool.shared_scratch(2, static_cast<size_t>(input.rows * plan.hot_count) * sizeof(float)));
  auto* residual_rows =
      static_cast<ResidualRow*>(pool.shared_scratch(3, static_cast<size_t>(input.rows) * sizeof(ResidualRow)));
  auto* row_scales = static_cast<float*>(
      pool.shared_scratch(5, static_cast<size_t>(input.row_scales ? input.rows : 0) * sizeof(float)));
  plan.activations = activations;
  plan.hot_x = hot_x;
  plan.row_scales = input.row_scales ? row_scales : nullptr;
  if (input.residual) plan.residual_rows = residual_rows;
  const float* factor = factors_of(input, pool);
  return linear_product(plan, pool, [&](int worker) {
    return [&, ready = ready_room(input, pool, worker), writer = ResidualWriter(pool, worker)](int64_t begin, int64_t end) mutable {
      bool finite = true;
      for (int64_t m = begin; m < end; ++m) {
        const RowRest rest = {residual_rows + m, plan.hot_count == 0 ? nullptr : hot_x + m * plan.hot_count,
                              input.row_scales ? row_scales + m : nullptr};
        finite &= quantize_row(input, m, factor, rest, ready, writer, [&](int64_t c, i32x16 q) EDGE_INLINE_LAMBDA {
          Int8Dot::store(Int8Dot::place(activations, plan.stride, m, c), q);
        });
        complete_row(plan, activations, m);
      }
      return finite;
    };
  });
}

// Multiplies what the last quantized_product made of the activations: this weight takes them in the same form.
static void product_again(LinearPlan& plan, ThreadPool& pool) {
  linear_product(plan, pool, [](int) { return [](int64_t, int64_t) { return true; }; });
}

static bool linear(const QuantizeInput& input, const Int8Weight* parts, int64_t part_count, const uint16_t* hot_weight,
                   const float* add, float* out, ThreadPool& pool) {
  LinearPlan plan = {};
  bool code_rows = false;
  plan.hot_count = hot_weight != nullptr ? input.hot_count : 0;
  for (int64_t i = 0; i < part_count; ++i) plan.width += parts[i].channels;
  plan.hot_stride = plan.width;
  for (int64_t i = 0, first = 0; i < part_count; first += parts[i++].channels) {
    plan.weight = parts[i];
    plan.hot_weight = hot_weight == nullptr ? nullptr : hot_weight + first;
    plan.add = add == nullptr ? nullptr : add + first;
    plan.out = out + first;
    const bool same_form = i > 0 && has_code_rows(plan) == code_rows;
    if (same_form) product_again(plan, pool);
    else if (!quantized_product(input, plan, pool)) return false;
    code_rows = has_code_rows(plan);
  }
  count_overflow(input, plan.residual_rows, pool);
  return true;
}

// The plan multiplies the gate and the up half of `weight`.
static void split_halves(LinearPlan& plan, const Int8Weight& weight) {
  const int64_t width = weight.channels / 2, half = width / kTileChannels;
  plan.weight = weight;
  plan.width = plan.weight.channels = plan.up.channels = width;
  plan.up.columns = weight.columns;
  if (weight.codes != nullptr) plan.up.codes = weight.codes + half * weight.code_bytes();
  else plan.up.tiles = weight.tiles + half * weight.tile_bytes();
  plan.up.take_vectors(weight, width);
}

static bool linear_gated(const QuantizeInput& input, const Int8Weight& weight, const uint16_t* hot_weight, Gate gate, float* out,
                         ThreadPool& pool) {
  LinearPlan plan = {};
  plan.gate = gate;
  split_halves(plan, weight);
  plan.hot_weight = hot_weight;
  plan.hot_stride = weight.channels;
  plan.hot_count = hot_weight != nullptr ? input.hot_count : 0;
  plan.out = out;
  if (!quantized_product(input, plan, pool)) return false;
  count_overflow(input, plan.residual_rows, pool);
  return true;
}

// ---- the parts of the epilogue on their own --------------------------------------------------------------------

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
  const TilePanels<P> panels = {weight.tiles + n / kTileChannels * bytes, bytes, weight.blocks()};
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

constexpr LinearKernels linear_kernels = {&quantize, &linear_int8,   &hot_product,     &overflow_product, &merge,
                                          &linear,   &linear_gated, &int8_operations, &read_stream};

}  // namespace EDGE_VARIANT
}  // namespace edge

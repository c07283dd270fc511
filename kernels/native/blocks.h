// Products and rows of weights in the blocks of GGUF files; kernels/reference/blocks.py defines them, kernels/blocks.py says
// how a panel lies in memory.
//
// Activations are quantized with one scale for 32 columns of a row. An output starts from 0 and takes the spans of columns that
// share a scale in ascending order, one fused multiply-add each with the span's exact integer sum: so it does not depend on
// other rows, on threads or on the instruction set.
//
// Codes are unpacked in registers, for some rows at once. A panel fits a core's L1 as it is and would not as bytes, so codes that
// are unpacked once for all rows are slower (benchmarks/LOG.md).
#pragma once

#include <block_lanes.h>
#include "pointwise.h"
#include "table_blocks.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int kGroupTiles = kBlockGroup / kTileDepth;

// What codes of 4 bits stand for, as bytes: above the values by 2^shift, or signed.
alignas(16) constexpr uint8_t kAboveNl[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
alignas(16) constexpr uint8_t kSignedNl[16] = {129, 152, 173, 191, 207, 221, 234, 246, 1, 13, 25, 38, 53, 69, 89, 113};
alignas(16) constexpr uint8_t kAboveE2m1[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

// One kind: how its codes become bytes, and its scales floats.
template <int Kind>
struct Blocks {
  using L = BlockLanes;
  static constexpr BlockShape kShape = kBlockShapes[Kind];
  static constexpr bool kLooksUp = Kind == kIq4Nl || Kind == kIq4Xs || Kind == kMxfp4;
  static constexpr int kClass = Kind == kMxfp4 ? 5 : Kind == kIq4Nl || Kind == kIq4Xs ? 8 : kShape.bits;
  // Bytes are above the values by 2^kShift; < 0: they are the values.
  static constexpr int kAbove = Kind == kQ4_0 ? 3 : Kind == kQ5_0 || Kind == kMxfp4 ? 4 : Kind == kQ6_K ? 5 : kClass == 8 ? 7 : -1;
  static constexpr int kShift = kClass == 8 && L::kSignedBytes ? -1 : kAbove;
  static constexpr int kSpans = kBlockGroup / kShape.width;  // of a group
  static constexpr int kSpanTiles = kGroupTiles / kSpans;
  static constexpr int kBlockGroups = kShape.columns / kBlockGroup;
  static constexpr int kGroupBytes = kTileChannels * kBlockGroup * kShape.bits / 8;
  static constexpr int kPartBytes = kTileBytes / L::kParts;
  using Sum = L::Sum<kClass>;

  // The bytes of the group's tile T, of a part of the panel's rows.
  template <int T>
  static EDGE_INLINE L::Bytes bytes(const uint8_t* group, int part) {
    const uint8_t* at = group + part * kPartBytes;
    if constexpr (kShape.bits == 8) {
      const L::Bytes value = L::load(at + T * kTileBytes);
      return L::kSignedBytes ? L::flip(value) : value;
    } else {
      const L::Bytes both = L::load(at + T / 2 * kTileBytes);
      const L::Bytes code = T % 2 == 0 ? L::low(both) : L::high(both);
      if constexpr (kShape.bits == 5) return L::template with_bits<T>(code, L::load(at + 4 * kTileBytes), 16);
      else if constexpr (kShape.bits == 6)
        return L::template with_bits<2 * (T % 4)>(code, L::load(at + (4 + T / 4) * kTileBytes), 48);
      else if constexpr (Kind == kMxfp4) return L::look_up(kAboveE2m1, code);
      else if constexpr (kLooksUp) return L::look_up(L::kSignedBytes ? kSignedNl : kAboveNl, code);
      else return code;
    }
  }

  // The scale of span `span` of a group; `head` is that of its block, `within` the group's number in the block.
  static EDGE_INLINE L::Floats scale(const uint8_t* head, int within, int span, int part) {
    if constexpr (Kind == kMxfp4) return L::exponents(head + part * L::kRows);
    const L::Floats whole = L::halves(head + 2 * part * L::kRows);
    const int fine = kShape.has_least ? 64 : 32;
    const uint8_t* step = head + fine + (within * kSpans + span) * kTileChannels + part * L::kRows;
    if constexpr (Kind == kQ4_K || Kind == kQ5_K) return L::mul(whole, L::unsigned_bytes(step));
    if constexpr (Kind == kQ6_K || Kind == kIq4Xs) return L::mul(whole, L::signed_bytes(step));
    return whole;
  }
  // What is subtracted from 32 columns; of Q4_1 and Q5_1 what is added.
  static constexpr bool kAdds = Kind == kQ4_1 || Kind == kQ5_1;
  static EDGE_INLINE L::Floats least(const uint8_t* head, int within, int part) {
    const L::Floats whole = L::halves(head + 32 + 2 * part * L::kRows);
    if constexpr (kAdds) return whole;
    return L::mul(whole, L::unsigned_bytes(head + 64 + (kBlockGroups + within) * kTileChannels + part * L::kRows));
  }
};

// A row of activations: q int8 [K], and behind it, for every group, its scale, scale times sum, minus the sum, and minus the
// sums of both halves.
struct BlockRow {
  int64_t groups;
  EDGE_INLINE int64_t facts_at() const { return ceil_div(groups * kBlockGroup, 64) * 64; }
  // Odd in lines, so that the rows of a tile do not fall in one cache set.
  EDGE_INLINE int64_t stride() const { return (ceil_div(facts_at() + groups * 5 * 4, 64) | 1) * 64; }
  EDGE_INLINE const float* scales(const int8_t* row) const { return reinterpret_cast<const float*>(row + facts_at()); }
  EDGE_INLINE const float* sums(const int8_t* row) const { return scales(row) + groups; }
  // Of spans of `width` columns.
  template <int Width>
  EDGE_INLINE const int32_t* below(const int8_t* row) const {
    return reinterpret_cast<const int32_t*>(row + facts_at()) + (Width == 32 ? 2 : 3) * groups;
  }
};

// Row m of x into `to`. False: a value is not finite.
static bool prepare_block_row(const BlockLinearArgs& a, int64_t m, int8_t* to) {
  const BlockRow layout = {a.columns / kBlockGroup};
  const float* x = a.x + m * a.columns;
  const f32x16 r = a.gain == nullptr ? zero() : broadcast(inverse_rms(x, a.columns, a.eps));
  const auto values = [&](int64_t c) EDGE_INLINE_LAMBDA {
    const f32x16 value = load(x + c);
    return a.gain == nullptr ? value : mul(mul(value, r), load(a.gain + c));
  };
  auto* scales = reinterpret_cast<float*>(to + layout.facts_at());
  float* inverses = scales + layout.groups;  // until the sums take their place
  f32x16 not_finite = zero();  // sums values * 0: NaN as soon as one is infinite or NaN
  for (int64_t g = 0; g < layout.groups; ++g) {
    const f32x16 first = values(g * kBlockGroup), second = values(g * kBlockGroup + kLanes);
    not_finite = fma(second, zero(), fma(first, zero(), not_finite));
    scales[g] = reduce_max(max(abs(first), abs(second)));
  }
  if (!(reduce_add(not_finite) == 0.0f)) return false;
  const f32x16 most_code = broadcast(127.0f), least_code = broadcast(-127.0f), least = broadcast(1e-30f);
  each_vector(layout.groups, [&](int64_t g, int n) EDGE_INLINE_LAMBDA {
    const f32x16 largest = max(load_some(scales + g, n), least);
    store_some(inverses + g, div(most_code, largest), n);
    store_some(scales + g, div(largest, most_code), n);
  });
  auto* whole = reinterpret_cast<int32_t*>(inverses + layout.groups);
  int32_t* halves = whole + layout.groups;
  for (int64_t g = 0; g < layout.groups; ++g) {
    const f32x16 inverse = broadcast(inverses[g]);
    float sum[2];
    for (int half = 0; half < 2; ++half) {
      const int64_t c = g * kBlockGroup + half * kLanes;
      const i32x16 q = round_even(clamp(mul(values(c), inverse), least_code, most_code));
      store_i8(to + c, q);
      sum[half] = reduce_add(from_i32(q));  // exact
      halves[2 * g + half] = -static_cast<int32_t>(sum[half]);
    }
    whole[g] = halves[2 * g] + halves[2 * g + 1];
    inverses[g] = scales[g] * (sum[0] + sum[1]);
  }
  return true;
}

// ---- a tile of rows and a panel -------------------------------------------------------------------------------

// A tile's place in memory: rows of activations, and a panel or two.
struct BlockTile {
  const int8_t* rows;
  int64_t stride, groups;
  const uint8_t *head, *codes;
  int64_t apart;  // bytes from a panel to the second
};

// total[P][R] of one part of P panels' rows += group g, whose codes are at `codes` and whose block's scales at `head`.
template <int Kind, int R, int P>
EDGE_INLINE void add_block_group(const BlockTile& at, int64_t g, int within, const uint8_t* head, const uint8_t* codes, int part,
                                 BlockLanes::Floats (&total)[P][R]) {
  using B = Blocks<Kind>;
  using L = typename B::L;
  const BlockRow layout = {at.groups};
  const float *scales = layout.scales(at.rows) + g, *sums = layout.sums(at.rows) + g;
  const int32_t* below = layout.below<B::kShape.width>(at.rows) + g * B::kSpans;
  const int64_t next = at.stride / 4;  // from a row's floats and integers to the next row's
  typename B::Sum sum[P][R];
  unrolled<B::kSpans>([&](auto span) EDGE_INLINE_LAMBDA {
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      if constexpr (B::kShift >= 0) sum[0][r].template start<B::kShift>(below + r * next + span);
      else sum[0][r].start();
      for (int p = 1; p < P; ++p) sum[p][r] = sum[0][r];
    });
    unrolled<B::kSpanTiles>([&](auto tile) EDGE_INLINE_LAMBDA {
      constexpr int kTile = span * B::kSpanTiles + tile;
      typename L::Bytes w[P];
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { w[p] = B::template bytes<kTile>(codes + p * at.apart, part); });
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        const int8_t* four = at.rows + r * at.stride + g * kBlockGroup + kTile * kTileDepth;
        if constexpr (P == 1) {
          sum[0][r].template add<tile>(w[0], four);
        } else {
          const typename L::Columns columns = L::columns(four);
          unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { sum[p][r].template add<tile>(w[p], columns); });
        }
      });
    });
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const typename L::Floats scale = B::scale(head + p * at.apart, within, span, part);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        total[p][r] = L::fma(sum[p][r].floats(), L::mul(scale, L::broadcast(scales + r * next)), total[p][r]);
      });
    });
  });
  if constexpr (B::kShape.has_least) {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const typename L::Floats least = B::least(head + p * at.apart, within, part);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        const typename L::Floats times = L::broadcast(sums + r * next);
        total[p][r] = B::kAdds ? L::fma(least, times, total[p][r]) : L::fnma(least, times, total[p][r]);
      });
    });
  }
}

constexpr int kPanelResults = BlockLanes::kTileRows * kTileChannels;  // from a panel's results of a tile to the second's

// y[P][R][16] = the product, for parts First .. First+Count-1 of P panels' rows.
template <int Kind, int R, int First, int Count, int P = 1>
EDGE_INLINE void block_parts(const BlockTile& at, float* y) {
  using B = Blocks<Kind>;
  using L = BlockLanes;
  L::Floats total[Count][P][R];
  unrolled<Count>([&](auto part) EDGE_INLINE_LAMBDA {
    unrolled<P * R>([&](auto i) EDGE_INLINE_LAMBDA { total[part][i / R][i % R] = L::zero(); });
  });
  const uint8_t *head = at.head, *codes = at.codes;
  for (int64_t g = 0; g < at.groups; head += B::kShape.head)
    for (int within = 0; within < B::kBlockGroups; ++within, ++g, codes += B::kGroupBytes) {
      for (int line = 0; line < B::kGroupBytes; line += 64) __builtin_prefetch(codes + kPrefetchBytes + line);
      unrolled<Count>([&](auto part) EDGE_INLINE_LAMBDA {
        add_block_group<Kind, R, P>(at, g, within, head, codes, First + part, total[part]);
      });
    }
  unrolled<P * R>([&](auto i) EDGE_INLINE_LAMBDA {
    unrolled<Count>([&](auto part) EDGE_INLINE_LAMBDA {
      L::store(y + i / R * kPanelResults + i % R * kTileChannels + (First + part) * L::kRows, total[part][i / R][i % R]);
    });
  });
}

// All parts at once for a row or two, whose panel comes from memory; else one after the other, whose sums then are in registers.
template <int Kind, int R>
static void block_tile(const BlockTile& at, float* y) {
  constexpr int kParts = BlockLanes::kParts;
  if constexpr (R <= 2) block_parts<Kind, R, 0, kParts>(at, y);
  else unrolled<kParts>([&](auto part) EDGE_INLINE_LAMBDA { block_parts<Kind, R, part, 1>(at, y); });
}

template <int Kind, int R = BlockLanes::kTileRows>
static void block_tile_of(int64_t count, const BlockTile& at, float* y) {
  if (count == R) return block_tile<Kind, R>(at, y);
  if constexpr (R > 1) block_tile_of<Kind, R - 1>(count, at, y);
}

constexpr void (*kBlockTiles[kBlockKinds])(int64_t count, const BlockTile& at, float* y) = {
    block_tile_of<kQ4_0>, block_tile_of<kQ4_1>, block_tile_of<kQ5_0>,  block_tile_of<kQ5_1>,  block_tile_of<kQ8_0>, block_tile_of<kQ4_K>,
    block_tile_of<kQ5_K>, block_tile_of<kQ6_K>, block_tile_of<kIq4Nl>, block_tile_of<kIq4Xs>, block_tile_of<kMxfp4>};

// The same of two panels at once.
template <int Kind, int R = BlockLanes::kPairRows>
static void block_pair_of(int64_t count, const BlockTile& at, float* y) {
  if constexpr (R > 0) {
    if (count == R)
      return unrolled<BlockLanes::kParts>([&](auto part) EDGE_INLINE_LAMBDA { block_parts<Kind, R, part, 1, 2>(at, y); });
    block_pair_of<Kind, R - 1>(count, at, y);
  }
}

constexpr void (*kBlockPairs[kBlockKinds])(int64_t count, const BlockTile& at, float* y) = {
    block_pair_of<kQ4_0>, block_pair_of<kQ4_1>, block_pair_of<kQ5_0>,  block_pair_of<kQ5_1>,  block_pair_of<kQ8_0>, block_pair_of<kQ4_K>,
    block_pair_of<kQ5_K>, block_pair_of<kQ6_K>, block_pair_of<kIq4Nl>, block_pair_of<kIq4Xs>, block_pair_of<kMxfp4>};

// ---- the whole product ----------------------------------------------------------------------------------------

// One part's product, constant during it.
struct BlockPlan {
  const BlockLinearArgs& args;
  const BlockPanels& weight;
  BlockRow layout;
  const int8_t* rows;  // [M, stride]
  int64_t stride;
  int64_t first;  // channel of the part among all
  bool gated() const { return args.gate.kind != kNoGate; }
  int64_t panels() const { return gated() ? weight.panels() / 2 : weight.panels(); }
};

// Rows m..m+count of a panel of results, y [count][16]: bias, then `add`.
static void finish_panel(const BlockPlan& plan, int64_t m, int64_t count, int64_t panel, const float* y) {
  const BlockLinearArgs& a = plan.args;
  const int64_t within = panel * kTileChannels, n = plan.first + within;
  const int lanes = static_cast<int>(min_i64(kLanes, plan.weight.channels - within));
  for (int64_t r = 0; r < count; ++r) {
    f32x16 value = load(y + r * kTileChannels);
    if (a.bias != nullptr) value = add(value, load_some(a.bias + n, lanes));
    const int64_t at = (m + r) * a.channels + n;
    if (a.add != nullptr) value = add(value, load_some(a.add + at, lanes));
    store_some(a.out + at, value, lanes);
  }
}

// The same of a panel of the gate and its panel of the up half, which meet in the results.
static void finish_gated(const BlockPlan& plan, int64_t m, int64_t count, int64_t panel, float* gate, float* up) {
  const BlockLinearArgs& a = plan.args;
  const int64_t n = panel * kTileChannels, width = a.width();
  if (a.bias != nullptr)
    for (int64_t r = 0; r < count; ++r) {
      store(gate + r * kTileChannels, add(load(gate + r * kTileChannels), load(a.bias + n)));
      store(up + r * kTileChannels, add(load(up + r * kTileChannels), load(a.bias + width + n)));
    }
  gate_block(a.gate, gate, up, kTileChannels, count, kTileChannels, a.out + m * width + n, width);
}

// Rows in a tile of at most `most`, where `left` are left; the last two share what is left evenly.
EDGE_INLINE int64_t tile_rows(int64_t left, int64_t most) {
  return left <= most ? left : left >= 2 * most ? most : ceil_div(left, 2);
}

// Rows m.. of a tile times panel `number`.
static BlockTile block_tile_at(const BlockPlan& plan, int64_t m, int64_t number, int64_t apart) {
  const uint8_t* head = plan.weight.panel(number);
  return {plan.rows + m * plan.stride, plan.stride, plan.layout.groups, head, head + plan.weight.head_bytes(),
          apart * plan.weight.panel_bytes()};
}

// Rows begin..end times a panel of results, in tiles.
static void block_panel(const BlockPlan& plan, int64_t begin, int64_t end, int64_t panel) {
  alignas(64) float y[2][kPanelResults];
  for (int64_t m = begin; m < end;) {
    const int64_t count = tile_rows(end - m, BlockLanes::kTileRows);
    const auto product = [&](int64_t number, float* to) {
      kBlockTiles[plan.weight.kind](count, block_tile_at(plan, m, number, 0), to);
    };
    float* out = plan.args.out + m * plan.args.width() + plan.first + panel * kTileChannels;
    for (int64_t r = 0; r < count; ++r) __builtin_prefetch(out + r * plan.args.width(), 1);
    product(panel, y[0]);
    if (plan.gated()) {
      product(plan.panels() + panel, y[1]);
      finish_gated(plan, m, count, panel, y[0], y[1]);
    } else {
      finish_panel(plan, m, count, panel, y[0]);
    }
    m += count;
  }
}

// Rows begin..end times two panels: a pair of results, or a panel of the gate and its panel of the up half.
static void block_pair(const BlockPlan& plan, int64_t begin, int64_t end, int64_t panel, int64_t second) {
  alignas(64) float y[2][kPanelResults];
  for (int64_t m = begin; m < end;) {
    const int64_t count = tile_rows(end - m, BlockLanes::kPairRows);
    float* out = plan.args.out + m * plan.args.width() + plan.first + panel * kTileChannels;
    for (int64_t r = 0; r < count; ++r) {
      __builtin_prefetch(out + r * plan.args.width(), 1);
      if (!plan.gated()) __builtin_prefetch(out + r * plan.args.width() + kTileChannels, 1);
    }
    kBlockPairs[plan.weight.kind](count, block_tile_at(plan, m, panel, second - panel), y[0]);
    if (plan.gated()) {
      finish_gated(plan, m, count, panel, y[0], y[1]);
    } else {
      finish_panel(plan, m, count, panel, y[0]);
      finish_panel(plan, m, count, second, y[1]);
    }
    m += count;
  }
}

// Item `item` of a plan's results for rows begin..end: a pair of panels where the lanes take two at once, else one.
static void block_item(const BlockPlan& plan, int64_t begin, int64_t end, int64_t item) {
  if (BlockLanes::kPairRows == 0) return block_panel(plan, begin, end, item);
  if (plan.gated()) return block_pair(plan, begin, end, item, plan.panels() + item);
  if (2 * item + 1 < plan.panels()) return block_pair(plan, begin, end, 2 * item, 2 * item + 1);
  block_panel(plan, begin, end, 2 * item);
}

// Few rows: the panels pass by once, and memory sets the pace. More in blocks that stay in a core's L2.
static void block_product(const BlockPlan& plan, int workers, ThreadPool& pool) {
  constexpr int64_t kFewRows = 32, kLeastRows = 96, kBlockBytes = 512 << 10;
  const int64_t rows = plan.args.rows, panels = plan.panels();
  if (rows <= kFewRows)
    return pool.for_stream({plan.weight.data, panels, plan.weight.panel_bytes()},
                           [&](int64_t panel, int) { block_panel(plan, 0, rows, panel); }, workers);
  const int64_t blocks = ceil_div(rows, max_i64(kLeastRows, kBlockBytes / plan.stride));
  constexpr bool kPairs = BlockLanes::kPairRows > 0;
  const int64_t tile = kPairs ? BlockLanes::kPairRows : BlockLanes::kTileRows;
  const int64_t block_rows = ceil_div(ceil_div(rows, blocks), tile) * tile;
  const int64_t items = kPairs && !plan.gated() ? ceil_div(panels, 2) : panels;
  pool.for_blocks(
      ceil_div(rows, block_rows) * items, 1,
      [&](int64_t item_begin, int64_t item_end, int) {
        for (int64_t item = item_begin; item < item_end; ++item) {
          const int64_t begin = item / items * block_rows;
          block_item(plan, begin, min_i64(begin + block_rows, rows), item % items);
        }
      },
      workers);
}

static const int8_t* prepare_block_rows(const BlockLinearArgs& a, int64_t stride, ThreadPool& pool) {
  constexpr int64_t kGrainElements = 16384;  // a few microseconds
  auto* to = static_cast<int8_t*>(pool.shared_scratch(1, static_cast<size_t>(a.rows * stride)));
  int refused = 0;
  pool.for_blocks(a.rows, max_i64(1, kGrainElements / max_i64(1, a.columns)), [&](int64_t begin, int64_t end, int) {
    for (int64_t m = begin; m < end; ++m)
      if (!prepare_block_row(a, m, to + m * stride)) __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
  });
  return refused ? nullptr : to;
}

static bool block_linear(const BlockLinearArgs& a, ThreadPool& pool) {
  if (a.rows == 0) return true;
  constexpr int64_t kProductsPerWorker = 128 << 10;  // some microseconds: less is not worth waking a core
  const BlockRow layout = {a.columns / kBlockGroup};
  const int64_t stride = layout.stride();
  const int8_t* rows = prepare_block_rows(a, stride, pool);
  if (rows == nullptr) return false;
  int64_t first = 0;
  for (int64_t i = 0; i < a.part_count; first += a.parts[i++].channels) {
    const BlockPlan plan = {a, a.parts[i], layout, rows, stride, first};
    const int64_t products = a.rows * plan.weight.channels * a.columns;
    const int workers = static_cast<int>(min_i64(pool.threads(), 1 + products / kProductsPerWorker));
    block_product(plan, workers, pool);
  }
  return true;
}

// ---- rows -----------------------------------------------------------------------------------------------------

// Row `row`, as ggml has it: scale times value, less the minimum, each rounded.
template <int Kind>
static void block_row(const BlockPanels& weight, int64_t row, float* out) {
  using B = Blocks<Kind>;
  using L = BlockLanes;
  constexpr int kUp = B::kShift < 0 ? 0 : 1 << (B::kShift < 0 ? 0 : B::kShift);
  const uint8_t *head = weight.panel(row / kTileChannels), *codes = head + weight.head_bytes();
  const int64_t lane = row % kTileChannels;
  for (int64_t g = 0; g < weight.groups(); head += B::kShape.head)
    for (int within = 0; within < B::kBlockGroups; ++within, ++g, codes += B::kGroupBytes) {
      uint8_t bytes[kGroupTiles * kTileBytes];
      float scale[B::kSpans][kTileChannels], least[kTileChannels] = {};
      unrolled<L::kParts>([&](auto part) EDGE_INLINE_LAMBDA {
        unrolled<kGroupTiles>([&](auto tile) EDGE_INLINE_LAMBDA {
          L::store(bytes + tile * kTileBytes + part * B::kPartBytes, B::template bytes<tile>(codes, part));
        });
        unrolled<B::kSpans>([&](auto span) EDGE_INLINE_LAMBDA {
          L::store(scale[span] + part * L::kRows, B::scale(head, within, span, part));
        });
        if constexpr (B::kShape.has_least) L::store(least + part * L::kRows, B::least(head, within, part));
      });
      for (int c = 0; c < kBlockGroup; ++c) {
        const uint8_t byte = bytes[c / kTileDepth * kTileBytes + lane * kTileDepth + c % kTileDepth];
        const int value = B::kShift < 0 && B::kClass == 8 ? static_cast<int8_t>(byte) : byte - kUp;
        const float product = scale[c / B::kShape.width][lane] * static_cast<float>(value);
        out[g * kBlockGroup + c] = !B::kShape.has_least ? product : B::kAdds ? product + least[lane] : product - least[lane];
      }
    }
}

template <int Kind = 0>
static void block_row_of(const BlockPanels& weight, int64_t row, float* out) {
  if (weight.kind == Kind) return block_row<Kind>(weight, row, out);
  if constexpr (Kind + 1 < kBlockKinds) block_row_of<Kind + 1>(weight, row, out);
}

static void block_rows(const BlockPanels& weight, const int64_t* rows, float* out, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) block_row_of(weight, rows[m], out + m * weight.columns);
}

constexpr BlockKernels block_kernels = {&block_linear, &block_rows};

}  // namespace EDGE_VARIANT
}  // namespace edge

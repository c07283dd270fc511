// The turn: every block of p neighbouring channels times Sylvester's matrix H_p of +1 and -1, additions only.
//
// log2 p stages with the distances 1, 2, 4, ... make (a, b) to (a + b, a - b). What a stage gives depends on the stage before
// alone, so every blocking has the same bits. H_p is symmetric and H_p H_p = p: a matrix whose rows are turned and divided by
// p gives with turned rows what it gave before.
#pragma once

#include "pointwise.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// 1 in the lanes of a stage that become sums, -1 in those that become differences.
template <int Distance>
EDGE_INLINE f32x16 stage_signs() {
  alignas(64) static const float kSigns[kLanes] = {
      1.0f,
      Distance & 1 ? -1.0f : 1.0f,
      Distance & 2 ? -1.0f : 1.0f,
      Distance & 3 ? -1.0f : 1.0f,
      Distance & 4 ? -1.0f : 1.0f,
      Distance & 5 ? -1.0f : 1.0f,
      Distance & 6 ? -1.0f : 1.0f,
      Distance & 7 ? -1.0f : 1.0f,
      Distance & 8 ? -1.0f : 1.0f,
      Distance & 9 ? -1.0f : 1.0f,
      Distance & 10 ? -1.0f : 1.0f,
      Distance & 11 ? -1.0f : 1.0f,
      Distance & 12 ? -1.0f : 1.0f,
      Distance & 13 ? -1.0f : 1.0f,
      Distance & 14 ? -1.0f : 1.0f,
      Distance & 15 ? -1.0f : 1.0f,
  };
  return load(kSigns);
}

// The stage of this distance inside of a vector: a * -1 is exact, so the fma rounds once, as a difference does.
template <int Distance>
EDGE_INLINE f32x16 turn_stage(f32x16 a) {
  return fma(a, stage_signs<Distance>(), swap_lanes<Distance>(a));
}

// Blocks of `Block` <= 16 lanes.
template <int Block>
EDGE_INLINE f32x16 turn_lanes(f32x16 a) {
  if constexpr (Block >= 2) a = turn_stage<1>(a);
  if constexpr (Block >= 4) a = turn_stage<2>(a);
  if constexpr (Block >= 8) a = turn_stage<4>(a);
  if constexpr (Block >= 16) a = turn_stage<8>(a);
  return a;
}

// The stage between vectors that lie `Distance` apart.
template <int Distance, int V>
EDGE_INLINE void turn_vectors(f32x16 (&a)[V]) {
  if constexpr (Distance < V) {
    unrolled<V>([&](auto v) EDGE_INLINE_LAMBDA {
      if constexpr ((v & Distance) == 0) {
        const f32x16 sum = add(a[v], a[v + Distance]);
        a[v + Distance] = sub(a[v], a[v + Distance]);
        a[v] = sum;
      }
    });
    turn_vectors<2 * Distance>(a);
  }
}

// put(c, values, lanes) with the turned values of load(c, lanes), sixteen or fewer from column c on. `columns` are whole blocks.
template <int Block, class Load, class Put>
EDGE_INLINE void turn_blocks(int64_t columns, const Load& load, const Put& put) {
  if constexpr (Block <= kLanes) {
    each_vector(columns, [&](int64_t c, int lanes) EDGE_INLINE_LAMBDA { put(c, turn_lanes<Block>(load(c, lanes)), lanes); });
  } else {
    constexpr int V = Block / kLanes;
    for (int64_t c = 0; c < columns; c += Block) {
      f32x16 a[V];
      unrolled<V>([&](auto v) EDGE_INLINE_LAMBDA { a[v] = turn_lanes<kLanes>(load(c + v * kLanes, kLanes)); });
      turn_vectors<1>(a);
      unrolled<V>([&](auto v) EDGE_INLINE_LAMBDA { put(c + v * kLanes, a[v], kLanes); });
    }
  }
}

// `block`: a power of two up to kMaxTurn, or 0, which turns nothing.
template <class Load, class Put>
EDGE_INLINE void turn_channels(int64_t block, int64_t columns, const Load& load, const Put& put) {
  switch (block) {
    case 2: return turn_blocks<2>(columns, load, put);
    case 4: return turn_blocks<4>(columns, load, put);
    case 8: return turn_blocks<8>(columns, load, put);
    case 16: return turn_blocks<16>(columns, load, put);
    case 32: return turn_blocks<32>(columns, load, put);
    case 64: return turn_blocks<64>(columns, load, put);
    case 128: return turn_blocks<128>(columns, load, put);
    default: return turn_blocks<1>(columns, load, put);
  }
}

// x[columns], in place.
static void turn_in_place(float* x, int64_t columns, int64_t block) {
  if (block < 2) return;
  turn_channels(
      block, columns, [&](int64_t c, int lanes) EDGE_INLINE_LAMBDA { return load_some(x + c, lanes); },
      [&](int64_t c, f32x16 values, int lanes) EDGE_INLINE_LAMBDA { store_some(x + c, values, lanes); });
}

static void turn_rows(const TurnArgs& a, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) turn_in_place(a.x + m * a.columns, a.columns, a.block);
}

constexpr PointwiseKernels pointwise_kernels = {norm_rows, rope_rows, gate_rows, activate_rows, turn_rows};

}  // namespace EDGE_VARIANT
}  // namespace edge

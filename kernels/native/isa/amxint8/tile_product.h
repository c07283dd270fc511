// Products of tiles: up to 32 rows of activations times one or two panels, into int32 sums in memory.
#pragma once

#include <tiles.h>

#include "int8_dot.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int kTileRows = 16;                    // of a tile
constexpr int kTileColumns = 64;                 // input channels of a step
constexpr int kStepBytes = 16 * kTileBytes;      // of a panel, that meet in a step
constexpr int kSumRows = 2 * kTileRows;          // of a block of sums
constexpr int kSumStride = 2 * kTileChannels;    // of its rows, [kSumRows][two panels][16]
constexpr int64_t kSumBytes = kSumRows * kSumStride * static_cast<int64_t>(sizeof(int32_t));

// Tiles of a thread are in use as long as this lives.
class TileUse {
 public:
  TileUse() { Tiles::begin(); }
  ~TileUse() { Tiles::end(); }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;
};

// What comes next, asked for into L2 with each step.
struct NextLines {
  const uint8_t* at;
  int64_t lines;  // of 64 bytes, a step
  EDGE_INLINE void ask() {
    for (int64_t i = 0; i < lines; ++i, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

// The registers: sums are tile r * P + p.
constexpr int kActivationTile = 4, kWeightTile = 6;

template <int R, int P>
EDGE_INLINE void begin_sums(const int32_t* sums, bool go_on) {
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      if (go_on) Tiles::load<r * P + p>(sums + r * kTileRows * kSumStride + p * kTileChannels, kSumStride * 4);
      else Tiles::zero<r * P + p>();
    });
  });
}

template <int R, int P>
EDGE_INLINE void end_sums(int32_t* sums) {
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      Tiles::store<r * P + p>(sums + r * kTileRows * kSumStride + p * kTileChannels, kSumStride * 4);
    });
  });
}

// `steps` times 64 columns. Many rows pass by P panels that stay in L1; few rows stay while weights pass by.
template <int R, int P, bool WeightsPass>
EDGE_INLINE void add_steps(const uint8_t* a, int64_t stride, const int8_t* const (&panels)[P], int64_t steps, NextLines& next) {
  for (int64_t step = 0; step < steps; ++step, a += kTileColumns) {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const int8_t* weights = panels[p] + step * kStepBytes;
      if constexpr (WeightsPass) Tiles::load_once<kWeightTile + p>(weights, kTileBytes);
      else Tiles::load<kWeightTile + p>(weights, kTileBytes);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
        const uint8_t* rows = a + r * kTileRows * stride;
        if constexpr (p == 0 && WeightsPass) Tiles::load<kActivationTile + r>(rows, stride);
        else if constexpr (p == 0) Tiles::load_once<kActivationTile + r>(rows, stride);
        Tiles::dot<r * P + p, kActivationTile + r, kWeightTile + p>();
      });
    });
    next.ask();
  }
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// Int8Dot of this instruction set; see int8_dot.h.
#pragma once

#include "dot_base.h"

namespace edge {
namespace EDGE_VARIANT {

struct Int8Dot : SignedActivation {
  struct Broadcast { int16_t v[kTileDepth]; };
  struct Weights { const int8_t* tile; };
  using Accumulator = i32x16;
  static constexpr int kRegisters = 1;
  static constexpr int kRows = 4, kPanels = 1, kStreamRows = 4, kTwoPanelRows = 4;

  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static EDGE_INLINE Weights weights(const int8_t* tile, int) { return {tile}; }
  static EDGE_INLINE Accumulator zero() { return broadcast_i32(0); }
  static EDGE_INLINE void dot(Accumulator& sum, Broadcast a, Weights w) {
    for (int i = 0; i < kTileChannels; ++i) {
      const int8_t* four = w.tile + kTileDepth * i;
      sum.v[i] += a.v[0] * four[0] + a.v[1] * four[1] + a.v[2] * four[2] + a.v[3] * four[3];
    }
  }
  static EDGE_INLINE void add(Accumulator& sum, Accumulator other) { sum = add_i32(sum, other); }
  static EDGE_INLINE i32x16 finish(Accumulator only, Accumulator) { return only; }
};

}  // namespace EDGE_VARIANT
}  // namespace edge

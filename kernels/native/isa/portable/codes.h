// Codes of 4 bits as weights, by this instruction set; see w4.h.
#pragma once

#include "codes_base.h"

namespace edge {
namespace EDGE_VARIANT {

EDGE_INLINE void expand_group(const uint8_t* steps, const uint8_t* codes, int8_t* tiles) {
  for (int i = 0; i < kTileBytes; ++i) {
    const int step = steps[i / kTileDepth], multiplier = step & 15, shift = step >> 4;
    for (int pair = 0; pair < kBlocksPerGroup / 2; ++pair) {
      const int both = codes[pair * kTileBytes + i];
      tiles[2 * pair * kTileBytes + i] = static_cast<int8_t>(multiplier * (kCodebook[both & 15] - shift));
      tiles[(2 * pair + 1) * kTileBytes + i] = static_cast<int8_t>(multiplier * (kCodebook[both >> 4] - shift));
    }
  }
}

// The entry's column of a panel of tiles as floats, in units of kRaisedUnit.
EDGE_INLINE f32x16 raised_column(const int8_t* tiles, ResidualEntry at) {
  const int8_t* tile = tiles + at.tile();
  i32x16 words;
  for (int i = 0; i < kLanes; ++i) words.v[i] = tile[kTileDepth * i + at.byte() / kTileChannels] * (1 << 24);
  return from_i32(words);
}

// Column c of a group. Its codes become words of 0 .. 15, and 0 is 0 in the codebook too.
EDGE_INLINE f32x16 code_column(const uint8_t* steps, const uint8_t* codes, int64_t c) {
  alignas(64) int8_t tiles[kBlocksPerGroup * kTileBytes];
  expand_group(steps, codes, tiles);
  return mul(raised_column(tiles, ResidualEntry(static_cast<int32_t>(c), 0.0f)), broadcast(kRaisedUnit));
}

}  // namespace EDGE_VARIANT
}  // namespace edge

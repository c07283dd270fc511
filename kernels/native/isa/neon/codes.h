// Codes of 4 bits as weights, by this instruction set; see w4.h.
#pragma once

#include "codes_base.h"

namespace edge {
namespace EDGE_VARIANT {

EDGE_INLINE void expand_group(const uint8_t* steps, const uint8_t* codes, int8_t* tiles) {
  alignas(16) static const uint8_t kSpread[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  const uint8x16_t book = vld1q_u8(kCodebook), low = vdupq_n_u8(15), every = vld1q_u8(steps);
  for (int quarter = 0; quarter < 4; ++quarter) {  // four rows
    const uint8x16_t step = vqtbl1q_u8(every, vaddq_u8(vld1q_u8(kSpread), vdupq_n_u8(static_cast<uint8_t>(4 * quarter))));
    const uint8x16_t multiplier = vandq_u8(step, low), offset = vmulq_u8(multiplier, vshrq_n_u8(step, 4));
    for (int pair = 0; pair < kBlocksPerGroup / 2; ++pair) {
      const uint8x16_t both = vld1q_u8(codes + pair * kTileBytes + 16 * quarter);
      const uint8x16_t first = vqtbl1q_u8(book, vandq_u8(both, low)), second = vqtbl1q_u8(book, vshrq_n_u8(both, 4));
      int8_t* tile = tiles + 2 * pair * kTileBytes + 16 * quarter;
      vst1q_s8(tile, vreinterpretq_s8_u8(vsubq_u8(vmulq_u8(first, multiplier), offset)));
      vst1q_s8(tile + kTileBytes, vreinterpretq_s8_u8(vsubq_u8(vmulq_u8(second, multiplier), offset)));
    }
  }
}

// The entry's column of a panel of tiles as floats, in units of kRaisedUnit.
EDGE_INLINE f32x16 raised_column(const int8_t* tiles, ResidualEntry at) {
  const int8_t* tile = tiles + at.tile();
  const uint8x16_t to_top = vld1q_u8(kToTop + at.byte());
  i32x16 words;
  unrolled<4>([&](auto i) EDGE_INLINE_LAMBDA {
    words.v[i] = vreinterpretq_s32_s8(vqtbl1q_s8(vld1q_s8(tile + 16 * i), to_top));
  });
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

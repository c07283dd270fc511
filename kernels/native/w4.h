// W4: a panel of 4-bit codes becomes the tiles of its INT8 weight (kernels/reference/w4.py defines both).
//
//   expand_group       the eight tiles of 32 columns, in <codes.h> of the instruction set
//   code_column        one column of the weight, as floats, there too
//   expand_panel       all of a panel: many rows multiply what lies in a core's cache then
//   multiply_expanded  few rows multiply each group as it is expanded, in <expanded.h>
//   multiply_codes     few rows multiply codes as they are where that pays, in <code_rows.h>
//
// Every form is exact: a product of multiplier and codebook is at most 12 * 19 < 256, so bytes multiply alone.
#pragma once

#include <codes.h>
#include <sizes.h>

namespace edge {
namespace EDGE_VARIANT {

// A row of activations that meets codes as they are: behind the values, from a new line on, the negated sums of each group, two
// int16.
struct CodeRowLayout {
  static EDGE_INLINE int64_t sums_at(int64_t blocks) { return ceil_div(blocks * kTileDepth, 64) * 64; }
  static EDGE_INLINE int64_t columns(int64_t blocks) {
    return sums_at(blocks) + ceil_div(blocks, kBlocksPerGroup) * static_cast<int64_t>(sizeof(int32_t));
  }
};

// The codes of a panel.
struct CodePanel {
  const uint8_t* steps;
  const uint8_t* codes;
  int64_t groups;
  int64_t blocks;  // ceil(K / 4): the last group may have fewer than eight

  CodePanel(const void* panel, int64_t groups, int64_t blocks)
      : steps(static_cast<const uint8_t*>(panel)), codes(steps + code_steps_bytes(groups)), groups(groups), blocks(blocks) {}

  // A group's share of the panels that come next, steps and codes.
  EDGE_INLINE void prefetch(int64_t group) const {
    constexpr int kBytes = kTileChannels + kCodeGroupBytes;
    const uint8_t* next = steps + kCodePrefetchBytes + group * kBytes;
    unrolled<(kBytes + 63) / 64>([&](auto line) EDGE_INLINE_LAMBDA { __builtin_prefetch(next + line * 64); });
  }
  EDGE_INLINE void expand(int64_t group, int8_t* tiles) const {
    prefetch(group);
    expand_group(steps + group * kTileChannels, codes + group * kCodeGroupBytes, tiles);
  }
  EDGE_INLINE f32x16 column(int64_t c) const {
    const int64_t group = c / kCodeGroup;
    return code_column(steps + group * kTileChannels, codes + group * kCodeGroupBytes, c % kCodeGroup);
  }
};

// The whole panel: `groups` * 8 tiles.
static inline void expand_panel(const CodePanel& panel, int8_t* tiles) {
  for (int64_t group = 0; group < panel.groups; ++group) panel.expand(group, tiles + group * kBlocksPerGroup * kTileBytes);
}

}  // namespace EDGE_VARIANT
}  // namespace edge

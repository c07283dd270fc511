// Panels of codes, made ready for many rows: expanded.
#pragma once

#include "linear_panels.h"

namespace edge {
namespace EDGE_VARIANT {

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

}  // namespace EDGE_VARIANT
}  // namespace edge

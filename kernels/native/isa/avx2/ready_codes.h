// A panel of codes, made ready for many rows: looked up.
#pragma once

#include "linear_panels.h"

namespace edge {
namespace EDGE_VARIANT {

// One panel, looked up.
template <int P>
struct WidePanels {
  static_assert(P == 1, "the register tile has one panel");
  const WideGroup* wide;
  CodePanel panel;

  template <int R, int Unroll>
  EDGE_INLINE void multiply_rows_of(const int8_t* a, int64_t stride, i32x16 (&dot)[R][1], Ahead) const {
    multiply_groups<R>(a, stride, panel.blocks, wide, dot);
  }
  template <int R>
  static constexpr int kOffsetBits = 0;
  static constexpr float kColumnUnit = 1.0f;
  static constexpr int kTwoPanelRows = 0;
  EDGE_INLINE f32x16 column(int64_t, ResidualEntry at) const { return wide[at.tile() / sizeof wide->values].column(at); }
};

constexpr int64_t kReadyGroupBytes = sizeof(WideGroup);

template <int P>
static WidePanels<P> make_ready(const Int8Weight& weight, int64_t first, void* memory) {
  auto* wide = static_cast<WideGroup*>(memory);
  const CodePanel panel(weight.panel(first), weight.groups(), weight.blocks());
  for (int64_t group = 0; group < panel.groups; ++group)
    wide[group].look_up(panel.steps + group * kTileChannels, panel.codes + group * kCodeGroupBytes);
  return {wide, panel};
}

}  // namespace EDGE_VARIANT
}  // namespace edge

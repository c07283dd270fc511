// Panels of a linear's weight as products in registers take them: tiles, or codes.
#pragma once

#include <code_rows.h>

#include "linear_plan.h"

namespace edge {
namespace EDGE_VARIANT {

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

}  // namespace EDGE_VARIANT
}  // namespace edge

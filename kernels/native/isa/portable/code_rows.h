// W4 of few rows: all rows meet codes that are expanded, and stay as they are.
#pragma once

#include <expanded.h>

namespace edge {
namespace EDGE_VARIANT {

struct CodeRow {
  static constexpr int64_t kMostRows = 0;
  static constexpr int kTwoPanelRows = 0;
  static EDGE_INLINE int64_t columns(int64_t blocks) { return blocks * kTileDepth; }
  static EDGE_INLINE void complete(Int8Dot::Activation*, int64_t) {}
};

template <int R, int Unroll>
EDGE_INLINE void multiply_codes(const Int8Dot::Activation* a, int64_t stride, const CodePanel (&panels)[1],
                                i32x16 (&dot)[R][1]) {
  multiply_expanded<R, Unroll>(a, stride, panels[0], dot);
}

}  // namespace EDGE_VARIANT
}  // namespace edge

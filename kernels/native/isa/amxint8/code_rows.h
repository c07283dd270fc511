// Activations meet codes that are expanded.
#pragma once

#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

struct CodeRow {
  static constexpr int64_t kMostRows = 0;
  static EDGE_INLINE int64_t columns(int64_t blocks) { return blocks * kTileDepth; }
  static EDGE_INLINE void complete(Int8Dot::Activation*, int64_t) {}
};

}  // namespace EDGE_VARIANT
}  // namespace edge

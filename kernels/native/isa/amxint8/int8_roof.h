// The roof of products in tiles: two by two of them from L1.
#pragma once

#include "isa/amxint8/tile_product.h"
#include "pool.h"

namespace edge {
namespace EDGE_VARIANT {

static int64_t int8_operations(int64_t repeats, ThreadPool& pool) {
  constexpr int64_t kSteps = 4, kStride = kSteps * kTileColumns + 64, kPanelBytes = kSteps * kStepBytes;
  pool.run(pool.threads(), [&](int worker) {
    const size_t bytes = kSumRows * kStride + 2 * kPanelBytes + kSumBytes;
    auto* memory = static_cast<uint8_t*>(pool.scratch(worker, bytes));
    memset(memory, 1, bytes);
    auto* sums = reinterpret_cast<int32_t*>(memory);
    const uint8_t* a = memory + kSumBytes;
    const auto* w = reinterpret_cast<const int8_t*>(a + kSumRows * kStride);
    const int8_t* const panels[2] = {w, w + kPanelBytes};
    const TileUse use;
    NextLines none = {nullptr, 0};
    for (int64_t i = 0; i < repeats; ++i) {
      begin_sums<2, 2>(sums, false);
      add_steps<2, 2, false>(a, kStride, panels, kSteps, none);
    }
    end_sums<2, 2>(sums);
  });
  return 2 * int64_t{kSumRows} * 2 * kTileChannels * kTileColumns * kSteps * repeats * pool.threads();
}

}  // namespace EDGE_VARIANT
}  // namespace edge

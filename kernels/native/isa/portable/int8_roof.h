// The roof of products in registers: the bare microkernel on data in L1.
#pragma once

#include "int8_dot.h"
#include "pool.h"

namespace edge {
namespace EDGE_VARIANT {

static int64_t int8_operations(int64_t repeats, ThreadPool& pool) {
  constexpr int R = Int8Dot::kRows, P = Int8Dot::kPanels;
  constexpr int64_t kBlocks = 64, kStride = kBlocks * kTileDepth + 64;  // some 16 KiB: operands stay in L1
  constexpr int64_t kPanelBytes = kBlocks * kTileBytes;
  pool.run(pool.threads(), [&](int worker) {
    const int64_t activations = R * kStride * static_cast<int64_t>(sizeof(Int8Dot::Activation));
    auto* memory = static_cast<int8_t*>(pool.scratch(worker, static_cast<size_t>(activations + P * kPanelBytes + 64)));
    memset(memory, 1, static_cast<size_t>(activations + P * kPanelBytes));
    const auto* a = reinterpret_cast<const Int8Dot::Activation*>(memory);
    const int8_t* w = memory + (activations + 63) / 64 * 64;
    i32x16 total = broadcast_i32(0);
    for (int64_t i = 0; i < repeats; ++i) {
      i32x16 dot[R][P];
      multiply<R, P, 1>(a, kStride, w, kPanelBytes, kBlocks, dot);
      for (int r = 0; r < R; ++r)
        for (int p = 0; p < P; ++p) total = add_i32(total, dot[r][p]);
      asm volatile("" ::: "memory");  // the operands may have changed: every repeat is done
    }
    int32_t sink[kLanes];
    store_i32(sink, total);
    asm volatile("" ::"r"(sink) : "memory");
  });
  return 2 * int64_t{R} * P * kTileChannels * kTileDepth * kBlocks * repeats * pool.threads();
}

}  // namespace EDGE_VARIANT
}  // namespace edge

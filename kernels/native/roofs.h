// The roofs a kernel is measured against: the bare INT8 microkernel on data in L1, and a streaming read of memory.
#pragma once

#include "int8_dot.h"
#include "pool.h"
#include "table_linear.h"
#include "vec.h"

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

static int32_t read_stream(const int8_t* data, int64_t bytes, ThreadPool& pool) {
  constexpr int64_t kGrain = 256 << 10, kUnroll = 8, kStep = kUnroll * kLanes * 4;
  int32_t total[kMaxThreads] = {};
  const int64_t whole = bytes / kStep * kStep;
  pool.for_blocks(whole, kGrain, [&](int64_t begin, int64_t end, int worker) {
    i32x16 sum[kUnroll];
    for (int u = 0; u < kUnroll; ++u) sum[u] = broadcast_i32(0);
    for (int64_t at = begin; at < end; at += kStep)
      for (int u = 0; u < kUnroll; ++u)
        sum[u] = add_i32(sum[u], load_i32(data + at + u * kLanes * 4));
    for (int u = 1; u < kUnroll; ++u) sum[0] = add_i32(sum[0], sum[u]);
    int32_t lanes[kLanes];
    store_i32(lanes, sum[0]);
    for (int i = 0; i < kLanes; ++i) total[worker] ^= lanes[i];
  });
  for (int worker = 1; worker < pool.threads(); ++worker) total[0] ^= total[worker];
  return total[0];
}

}  // namespace EDGE_VARIANT
}  // namespace edge

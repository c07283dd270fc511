// The roofs a kernel is measured against: the bare INT8 microkernel on data in L1 (<int8_roof.h>), and a streaming read of memory.
#pragma once

#include <int8_roof.h>

#include "pool.h"
#include "table_linear.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

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

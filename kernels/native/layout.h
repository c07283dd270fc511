// The tile layout of an INT8 weight W[N, K], in memory and in the file (see kernels/layout.py):
// tiles[p, kb, i, j] = W[16p + i, 4kb + j], zero padded, so a panel of 16 output channels is one run of memory.
// Plain C++: these run at import and once per token, bound by memory.
#pragma once

#include <stdint.h>
#include <string.h>

#include "table_linear.h"

namespace edge {

// False when a value is -128, which the symmetric range [-127, 127] excludes. Every byte of `tiles` is written.
inline bool pack_tiles(const int8_t* weight, int64_t n, int64_t k, int8_t* tiles) {
  const int64_t panels = (n + kTileChannels - 1) / kTileChannels, blocks = (k + kTileDepth - 1) / kTileDepth;
  memset(tiles, 0, static_cast<size_t>(panels * blocks * kTileBytes));
  uint8_t excluded = 0;
  for (int64_t i = 0; i < n * k; ++i) excluded |= static_cast<uint8_t>(weight[i] == -128);
  if (excluded) return false;
  for (int64_t channel = 0; channel < n; ++channel) {
    const int8_t* from = weight + channel * k;
    int8_t* to = tiles + channel / kTileChannels * blocks * kTileBytes + channel % kTileChannels * kTileDepth;
    for (int64_t kb = 0; kb < k / kTileDepth; ++kb) memcpy(to + kb * kTileBytes, from + kb * kTileDepth, kTileDepth);
    memcpy(to + k / kTileDepth * kTileBytes, from + k / kTileDepth * kTileDepth, static_cast<size_t>(k % kTileDepth));
  }
  return true;
}

// Output channel `channel` -> row[K]
inline void unpack_row(const int8_t* tiles, int64_t k, int64_t channel, int8_t* row) {
  const int64_t blocks = (k + kTileDepth - 1) / kTileDepth;
  const int8_t* from = tiles + channel / kTileChannels * blocks * kTileBytes + channel % kTileChannels * kTileDepth;
  for (int64_t kb = 0; kb < k / kTileDepth; ++kb) memcpy(row + kb * kTileDepth, from + kb * kTileBytes, kTileDepth);
  memcpy(row + k / kTileDepth * kTileDepth, from + k / kTileDepth * kTileBytes, static_cast<size_t>(k % kTileDepth));
}

// sums[n] = sum over K of W[n, :]
inline void row_sums(const int8_t* tiles, int64_t n, int64_t blocks, int32_t* sums) {
  for (int64_t first = 0; first < n; first += kTileChannels) {
    const int8_t* tile = tiles + first / kTileChannels * blocks * kTileBytes;
    int32_t total[kTileChannels] = {};
    for (int64_t kb = 0; kb < blocks; ++kb, tile += kTileBytes)
      for (int i = 0; i < kTileChannels; ++i)
        for (int j = 0; j < kTileDepth; ++j) total[i] += tile[i * kTileDepth + j];
    const int64_t count = n - first < kTileChannels ? n - first : kTileChannels;
    memcpy(sums + first, total, static_cast<size_t>(count) * sizeof(int32_t));
  }
}

}  // namespace edge

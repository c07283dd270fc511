// The look-up of embeddings: a row of the tiles times its scale, and the hot columns in their place.
#pragma once

#include "pointwise.h"
#include "table_embedding.h"
#include "table_linear.h"
#include "turn.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// n <= kLanes values of the row that begins at `row`, from block `block` on; what lies behind them is 0.
EDGE_INLINE f32x16 tiled_values(const int8_t* row, int64_t block, int n) {
  int8_t values[kLanes] = {};
  for (int i = 0; i < kLanes / kTileDepth; ++i)
    if (i * kTileDepth < n) memcpy(values + i * kTileDepth, row + (block + i) * kTileBytes, kTileDepth);
  return from_i8(values);
}

// The 16 values from column i on, a multiple of 16, of row `row` of a panel of codes.
EDGE_INLINE f32x16 coded_values(const uint8_t* panel, int64_t groups, int64_t row, int64_t i) {
  const int64_t group = i / kCodeGroup;
  const int step = panel[group * kTileChannels + row], multiplier = step & 15, shift = step >> 4;
  const uint8_t* pair = panel + code_steps_bytes(groups) + group * kCodeGroupBytes +
                        i % kCodeGroup / (2 * kTileDepth) * kTileBytes + row * kTileDepth;
  int8_t values[kLanes];
  for (int block = 0; block < kLanes / kTileDepth; ++block)
    for (int j = 0; j < kTileDepth; ++j) {
      const int code = pair[block / 2 * kTileBytes + j] >> block % 2 * 4 & 15;
      values[block * kTileDepth + j] = static_cast<int8_t>(multiplier * (kCodebook[code] - shift));
    }
  return from_i8(values);
}

// Values of one token out of the hot columns h..h+n-1, which lie apart.
EDGE_INLINE f32x16 hot_values(const EmbeddingArgs& a, int64_t token, int64_t h, int n) {
  uint16_t values[kLanes] = {};
  for (int i = 0; i < kLanes; ++i)
    if (i < n) values[i] = a.hot_weight[(h + i) * a.rows + token];
  return from_f16(values);
}

EDGE_INLINE void embedding_row(const EmbeddingArgs& a, int64_t token, float* out) {
  const f32x16 scale = broadcast(a.scale[token]);
  if (a.codes != nullptr) {
    const int64_t groups = (a.columns + kCodeGroup - 1) / kCodeGroup;
    const uint8_t* panel = a.codes + token / kTileChannels * (code_steps_bytes(groups) + groups * kCodeGroupBytes);
    each_vector(a.columns, [&](int64_t i, int n) {
      store_some(out + i, mul(coded_values(panel, groups, token % kTileChannels, i), scale), n);
    });
  } else {
    const int8_t* row = a.tiles + token / kTileChannels * a.blocks * kTileBytes + token % kTileChannels * kTileDepth;
    each_vector(a.columns, [&](int64_t i, int n) {
      store_some(out + i, mul(tiled_values(row, i / kTileDepth, n), scale), n);
    });
  }
  each_vector(a.hot_count, [&](int64_t h, int n) {
    float values[kLanes];
    store(values, hot_values(a, token, h, n));
    for (int i = 0; i < n; ++i) out[a.hot[h + i]] = values[i];
  });
  turn_in_place(out, a.columns, a.turn);
}

static void embedding_rows(const EmbeddingArgs& a, const int64_t* tokens, float* out, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) embedding_row(a, tokens[m], out + m * a.columns);
}

constexpr EmbeddingKernels embedding_kernels = {embedding_rows};

}  // namespace EDGE_VARIANT
}  // namespace edge

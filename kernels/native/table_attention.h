// Function pointers and argument structs of attention.h.
#pragma once

#include <stdint.h>

#include "pool.h"
#include "table_pointwise.h"

namespace edge {

constexpr int64_t kPage = 16;      // tokens in a page
constexpr int64_t kSegment = 256;  // tokens in a segment: one softmax each, merged in ascending order
constexpr int64_t kMaxHeadDim = 512;  // 512 * 127 * 32767 < 2^31
constexpr int64_t kMaxTileRows = 64;
constexpr int64_t kNoWindow = INT64_MAX;

struct AppendArgs {
  float* source;  // [M, Hkv, D], the row stride in elements
  int64_t row_stride;
  int64_t kv_heads, head_dim;
  int8_t* pages;         // keys [P, Hkv, D/2, 16, 2], values [P, Hkv, 8, D, 2]
  uint16_t* scales;      // [P, Hkv, 16], float16
  const int64_t* slots;  // [M]: page * 16 + offset, or -1
};

// In this order, on the rows of a joint q|k|v matrix.
struct RopeAppendArgs {
  NormArgs q_norm, k_norm;  // gain null: none
  RopeArgs rope;            // query and key heads, the first 2 * half channels of each
  const float* k_offset;    // [Hkv, D], subtracted from the keys
  int64_t turn;             // block of a head's channels that is turned in queries and keys, last (see turn.h); 0: none
  AppendArgs k, v;
  NormArgs v_norm = {};            // gain null: none
  bool norm_last = false;          // queries and keys are normed behind the rotation
  const float* q_scale = nullptr;  // [C]: the factor of the queries at a position; null: none
};

struct AttentionArgs {
  const float* q;  // [M, Hq, D], row and head strides in elements
  int64_t row_stride, head_stride;
  int64_t q_heads, kv_heads, head_dim;
  const int8_t *k_pages, *v_pages;      // as in AppendArgs
  const uint16_t *k_scales, *v_scales;  // [P, Hkv, 16], float16
  const int32_t* page_table;            // [S, max_pages]
  int64_t max_pages;
  const int32_t *row_sequence, *row_position;  // [M]
  float softmax_scale;
  float* out;  // [M, Hq, D]
  int64_t window = kNoWindow;    // a row at position p sees the tokens j with p - j < window
  float cap = 0.0f;              // scores become cap * tanh(score / cap); 0: they stay
  const float* sinks = nullptr;  // [Hq]: one more logit of each head, whose value is zero; or null
};

// Query rows row .. row+rows-1 (one sequence) with the query heads of one kv head: the queries that share keys.
// Query n of a tile is row n / group, head kv_head * group + n % group.
struct AttentionTile {
  int64_t row, rows, kv_head;
  int64_t segments;   // up to the tile's last position
  int64_t first = 0;  // the first of them that a row sees
};

// The tile and segment that a worker probably does next: its keys are fetched meanwhile. `tile` null: none.
struct NextSegment {
  const AttentionTile* tile;
  int64_t segment;
};

// The softmax of some keys, per query of a tile: maximum, sum of exponentials, weighted sum of values [n][padded dim].
struct SoftmaxPart {
  float *top, *sum, *value;
};

inline int64_t attention_padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
inline int64_t attention_part_floats(int64_t queries, int64_t head_dim) {
  return (2 * queries + 15) / 16 * 16 + queries * attention_padded(head_dim);
}
inline SoftmaxPart attention_part(float* memory, int64_t queries) {
  return {memory, memory + queries, memory + (2 * queries + 15) / 16 * 16};
}

struct AttentionKernels {
  // Rows begin..end-1 into their pages; false when a key or value is not finite (its head is stored as zeros).
  bool (*rope_append)(const RopeAppendArgs&, int64_t begin, int64_t end);
  // Floats of scratch that the functions below need for a tile of so many queries.
  int64_t (*scratch_floats)(int64_t queries, int64_t head_dim);
  // All segments of a tile, to the result. `next`: the tile that this worker probably does next, or null.
  void (*attend)(const AttentionArgs&, const AttentionTile&, const AttentionTile* next, float* scratch);
  // A tile's queries into the scratch, for its segments there.
  void (*load_queries)(const AttentionArgs&, const AttentionTile&, float* scratch);
  // One segment of a tile.
  void (*attend_segment)(const AttentionArgs&, const AttentionTile&, int64_t segment, NextSegment, SoftmaxPart, float* scratch);
  // The parts of a tile's segments from its first one on, `stride` floats apart, merged in ascending order into the first, to the
  // result.
  void (*join)(const AttentionArgs&, const AttentionTile&, float* parts, int64_t stride);
};

}  // namespace edge

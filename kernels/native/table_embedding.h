// Function pointers and argument structs of embedding.h.
#pragma once

#include <stdint.h>

#include "pool.h"

namespace edge {

// An embedding table W[N, K]: INT8 tiles, or the codes that expand to them, with a scale per row, and hot columns in float16.
struct EmbeddingArgs {
  const int8_t* tiles;         // [>= N/16, blocks, 16, 4]; or null and
  const uint8_t* codes;        // [N/16, panel bytes]
  int64_t blocks;              // >= K/4
  int64_t columns;             // K
  const float* scale;          // [N]
  const int32_t* hot;          // [H] ascending
  int64_t hot_count;           // H
  const uint16_t* hot_weight;  // [H, N] float16
  int64_t rows;                // N
  int64_t turn = 0;            // block of columns that is turned last, see turn.h; 0: none
};

struct EmbeddingKernels {
  // out[m, :] = row tokens[m] of the table, for the rows begin..end-1.
  void (*rows)(const EmbeddingArgs&, const int64_t* tokens, float* out, int64_t begin, int64_t end);
};

}  // namespace edge

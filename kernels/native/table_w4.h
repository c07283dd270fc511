// Function pointers and argument structs of w4.h and w4_search.h.
#pragma once

#include <stdint.h>

#include "table_linear.h"

namespace edge {

// Codes for the rows of a matrix, see kernels/reference/w4.py, `search`.
struct CodeSearch {
  const float* weight;      // [N, K], finite
  const float* importance;  // [K], not negative
  int64_t columns;          // K
  uint8_t* codes;           // [N, K]
  uint8_t* multiplier;      // [N, ceil(K/32)]
  uint8_t* shift;           // the same
  float* scale;             // [N]
};

// The nearest codes under given steps, see kernels/reference/w4.py, `encode`.
struct CodeEncoding {
  const float* weight;        // [N, K]
  const float* scale;         // [N]
  const uint8_t* multiplier;  // [N, ceil(K/32)]
  const uint8_t* shift;       // the same
  int64_t columns;            // K
  uint8_t* codes;             // [N, K]
};

struct CodeKernels {
  // Panels begin..end-1 of a weight of codes as tiles [.., blocks(), 16, 4]; `scratch` holds tile_bytes() rounded up to groups.
  void (*expand)(const Int8Weight& weight, int64_t begin, int64_t end, int8_t* scratch, int8_t* tiles);
  void (*search)(const CodeSearch& args, int64_t begin, int64_t end);    // rows
  void (*encode)(const CodeEncoding& args, int64_t begin, int64_t end);  // rows
};

}  // namespace edge

// Function pointers and argument structs of floats.h.
#pragma once

#include <stdint.h>

namespace edge {

// out[m, n] = x[m] . weight[n]; all row-major and contiguous.
struct FloatProduct {
  const float* x;       // [M, K]
  int64_t rows;         // M
  const float* weight;  // [N, K]
  int64_t channels;     // N
  int64_t columns;      // K
  float* out;           // [M, N]
};

struct FloatKernels {
  // The channels begin..end-1 of all rows.
  void (*product)(const FloatProduct& args, int64_t begin, int64_t end);
  // out[i] = exp(x[i]) for i in begin..end-1; `out` may be x.
  void (*exp)(const float* x, float* out, int64_t begin, int64_t end);
};

}  // namespace edge

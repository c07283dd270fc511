// Function pointers and argument structs of half_linear.h.
#pragma once

#include <stdint.h>

#include "pool.h"
#include "table_pointwise.h"

namespace edge {

// A linear with float16 weights; all arrays are row-major and contiguous.
struct HalfLinearArgs {
  const float* x;  // [M, K]
  int64_t rows, columns, channels;  // M, K, N
  const uint16_t* weight;  // [K, N] float16
  const float* bias;       // [N] or null
  const float* gain;       // [K]: the rows are root mean square normed first; or null
  float eps;
  const float* add;  // [M, N] or null; null with a gate
  float* out;        // [M, width()]; may be `x` or `add`
  Gate gate;         // y[:, :N/2] of the product y, which meets y[:, N/2:]; or none
  int64_t width() const { return gate.kind != kNoGate ? channels / 2 : channels; }
};

struct HalfKernels {
  // y[m, n] = 0; y[m, n] = fma(x[m, k], weight[k, n], y[m, n]) for k ascending; + bias, then + add or the gate.
  // False: an activation, normed where it is to be, is not finite; `out` is untouched.
  bool (*linear)(const HalfLinearArgs& args, ThreadPool& pool);
  // The roof: fused multiply-adds in registers, `repeats` times on every worker; returns the operations done, two each.
  int64_t (*float_operations)(int64_t repeats, ThreadPool& pool);
};

}  // namespace edge

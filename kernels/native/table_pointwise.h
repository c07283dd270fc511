// Function pointers and argument structs of pointwise.h.
#pragma once

#include <stdint.h>

#include "pool.h"

namespace edge {

// Heads of rows: element (m, h, i) at data + m * row_stride + h * head_stride + i.
struct NormArgs {
  const float* x;
  int64_t row_stride, head_stride;
  float* out;  // may be x
  int64_t out_row_stride, out_head_stride;
  int64_t heads, dim;
  const float* gain;  // [dim]
  float eps;
  // What is beyond the root mean square norm of heads, for rows of one head:
  bool centred = false;         // the mean is subtracted first
  const float* bias = nullptr;  // [dim]: added to the result, or null
  const float* add = nullptr;   // [M, dim]: added last, or null; may be `out`
  int64_t add_row_stride = 0;
};

struct RopeArgs {
  float* x;
  int64_t row_stride, head_stride;
  int64_t heads, half;       // the first 2 * half values of a head are rotated
  const int32_t* positions;  // [M]
  const float *cos, *sin;    // [C, half]
};

// What the gate g of a gated product goes through before it meets the up half u.
enum GateKind : int32_t {
  kNoGate = 0,
  kSilu,
  kGeluTanh,
  kGeluErf,
  kRelu,
  kReluSquared,
  kClampedSilu,  // (clamp(u, -limit, limit) + 1) * g * sigmoid(1.702 g) with g = min(g, limit)
  kSoftCap,      // limit * tanh(x / limit); of a plain activation only
  kGateKinds,
};
struct Gate {
  GateKind kind;
  float limit;
};

struct GateArgs {
  const float* gate_up;  // [M, 2 * width]
  float* out;            // [M, width]
  int64_t width;
  Gate gate = {kSilu, 0.0f};
};

struct ActivateArgs {
  const float* x;  // [M, width]
  float* out;      // [M, width]; may be x
  int64_t width;
  Gate kind;
};

constexpr int64_t kMaxTurn = 128;  // channels of the largest block that is turned

// Blocks of neighbouring channels are turned in place, see turn.h.
struct TurnArgs {
  float* x;  // [M, columns]
  int64_t columns;
  int64_t block;  // a power of two up to kMaxTurn that divides `columns`; 0: none
};

// Each works on the rows begin..end-1.
struct PointwiseKernels {
  void (*norm)(const NormArgs&, int64_t begin, int64_t end);
  void (*rope)(const RopeArgs&, int64_t begin, int64_t end);
  void (*gate)(const GateArgs&, int64_t begin, int64_t end);
  void (*activate)(const ActivateArgs&, int64_t begin, int64_t end);
  void (*turn)(const TurnArgs&, int64_t begin, int64_t end);
};

}  // namespace edge

// Function pointers and argument structs of recurrent.h: mixers that keep a state of fixed size of a sequence.
#pragma once

#include <stdint.h>

namespace edge {

// Rows of one sequence, which follow each other: begin..end-1 continue what slot `reads` holds, and slot `writes`, which may be
// the same, takes what comes behind them.
struct Run {
  int32_t begin, end, reads, writes;
};

constexpr int64_t kMaxTaps = 16;
constexpr int64_t kMaxKeys = 256;  // channels of a head's keys

// Every channel's sum of its last `taps` inputs, each times a weight: those before a run lie in the tail of its slot.
struct ConvolutionArgs {
  const float* x;  // [M, C]
  int64_t row_stride;
  int64_t channels, taps;
  const float* weight;  // [taps, C], the oldest input first
  const float* bias;    // [C] or null
  float* tails;         // slot s: [taps - 1, C] at tails + s * tail_stride; the oldest first
  int64_t tail_stride;
  const Run* runs;
  int64_t run_count;
  bool silu;   // the activation of the sum
  float* out;  // [M, C]
};

// How a head's state fades, and how much a row writes into it.
struct RatesArgs {
  const float* steps;  // [M, H]
  int64_t step_stride;
  const float* bias;   // [H]
  const float* rate;   // [H], below 0
  const float* write;  // [M, H] or null: then the step itself is the strength
  int64_t write_stride;
  float low, high;  // of a step
  int64_t heads;
  float *decay, *strength;  // [M, H]
};

// A state S [K, V] of every head: S = decay S + k u', out = S' q (+ skip v) with u = strength (v - decay S' k), or strength v.
struct RecurrenceArgs {
  const float *q, *k;  // [M, G, K]
  const float* v;      // [M, H, V]
  int64_t q_row, q_head, k_row, k_head, v_row, v_head;  // strides
  const float *decay, *strength;                         // [M, H]
  const float* skip;                                     // [H] or null
  bool corrects;  // what the state holds of a key already is taken off its value (the delta rule)
  int64_t heads, groups, key_dim, value_dim;  // groups: heads of q and k, each for heads / groups neighbouring heads of v
  float* states;  // slot s: [H, K, V] at states + s * state_stride
  int64_t state_stride;
  const Run* runs;
  float* out;  // [M, H, V]
  static constexpr int64_t kTile = 32;  // columns of a state that are worked on at a time
  int64_t tiles() const { return (value_dim + kTile - 1) / kTile; }
};

// Root mean square norms of groups of columns beside a gate: norm(x) silu(gate), or norm(x silu(gate)).
struct GatedNormArgs {
  const float* x;  // [M, W]
  const float* gate;
  int64_t x_stride, gate_stride, width, group;
  const float* gain;     // [group], or [W]
  int64_t gain_stride;   // from group to group
  float eps;
  bool gate_first;
  float* out;  // [M, W]; may be x
};

struct SigmoidGateArgs {
  const float *x, *gate;  // [M, W]
  int64_t width;
  float* out;  // may be x
};

struct RecurrentKernels {
  void (*convolve)(const ConvolutionArgs&, int64_t begin, int64_t end);        // rows
  void (*keep_tails)(const ConvolutionArgs&);                                  // behind all rows
  void (*rates)(const RatesArgs&, int64_t begin, int64_t end);                 // rows
  void (*recur)(const RecurrenceArgs&, int64_t begin, int64_t end);            // tiles of heads of runs
  void (*gated_norm)(const GatedNormArgs&, int64_t begin, int64_t end);        // rows
  void (*sigmoid_gate)(const SigmoidGateArgs&, int64_t begin, int64_t end);    // rows
};

}  // namespace edge

// Function pointers and argument structs of neurons.h: products with the neurons of an MLP that are named, and no others.
#pragma once

#include <stdint.h>

namespace edge {

constexpr int64_t kNeuronChannels = 256;  // of the result, that a worker takes at a time, at least

// Neuron neurons[a] lies at held + places[a]: an int8 row of the up matrix, or a column of the down matrix.
struct NeuronsArgs {
  const int8_t* q;       // [M, stride] in [-127, 127]
  int64_t rows, stride;  // M
  const int64_t *neurons, *places;  // [count]
  int64_t count;
  const int8_t* held;    // bytes in [-127, 127]
  int64_t width;         // of what lies at a place
  int32_t* sums;
};

struct NeuronKernels {
  // sums[M, width] += q[:, neurons] @ held columns, for channels begin..end-1; `pairs` [count] is room.
  void (*add_columns)(const NeuronsArgs& args, int64_t begin, int64_t end, int64_t* pairs);
  // sums[M, stride][:, neurons] = q[M, width] . held rows, for neurons begin..end-1 of those that are named.
  void (*dot_rows)(const NeuronsArgs& args, int64_t columns, int64_t begin, int64_t end);
};

}  // namespace edge

// Function pointers and argument structs of experts.h: the gated MLPs of a layer, of which every row meets a few.
#pragma once

#include <stdint.h>

#include "pool.h"
#include "table_blocks.h"
#include "table_linear.h"
#include "table_pointwise.h"

namespace edge {

// A linear of an expert: INT8 whose rows have scales of their own, or in blocks.
struct ExpertLinear {
  Int8Weight int8;     // where it is not in blocks; no bias is of any other type
  BlockPanels blocks;  // without data: INT8
  const float* bias;   // of blocks: [N] or null
  int64_t turn;        // of INT8, see QuantizeInput
  bool in_blocks() const { return blocks.data != nullptr; }
  int64_t channels() const { return in_blocks() ? blocks.channels : int8.channels; }
  int64_t columns() const { return in_blocks() ? blocks.columns : int8.columns; }
};

// An expert, and the rows that go to it.
struct ExpertRows {
  const ExpertLinear *gate_up, *down;  // [2 * width, K] and [K, width]
  const int64_t* rows;                 // [count] ascending
  const float* shares;                 // [count]: how much what it gives of them counts
  int64_t count;
};

// All gate_up are of one type, width and turn, and so are all down.
struct ExpertsArgs {
  const float* x;  // [M, K]
  int64_t rows, columns, width;
  const ExpertRows* experts;  // [expert_count], in the order in which what they give is added
  int64_t expert_count;
  Gate gate;
  const float* add;  // [M, K] or null
  float* out;        // [M, K]; may be `x` or `add`
};

struct ExpertKernels {
  // See kernels/reference/experts.py. False: an activation is not finite; `out` is untouched.
  bool (*experts)(const ExpertsArgs& args, ThreadPool& pool);
};

}  // namespace edge

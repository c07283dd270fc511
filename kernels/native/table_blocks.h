// Function pointers and argument structs of blocks.h: weights in the blocks of GGUF files (see kernels/blocks.py).
#pragma once

#include <stdint.h>

#include "pool.h"
#include "table_linear.h"
#include "table_pointwise.h"

namespace edge {

constexpr int kBlockGroup = 32;  // input channels that share a scale of the activations

enum BlockKind : int { kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K, kIq4Nl, kIq4Xs, kMxfp4, kBlockKinds };

// What `kernels.blocks.KINDS` says of a kind.
struct BlockShape {
  int columns, file_bytes;  // of a block in a file
  int bits;                 // of a code
  int width;                // columns that share a scale
  int head;                 // bytes of the scales of 16 rows and one block
  bool has_least;
};
constexpr BlockShape kBlockShapes[kBlockKinds] = {
    {32, 18, 4, 32, 32, false},  {32, 20, 4, 32, 64, true},     {32, 22, 5, 32, 32, false},   {32, 24, 5, 32, 64, true},
    {32, 34, 8, 32, 32, false},  {256, 144, 4, 32, 320, true},  {256, 176, 5, 32, 320, true}, {256, 210, 6, 16, 288, false},
    {32, 18, 4, 32, 32, false},  {256, 136, 4, 32, 160, false}, {32, 17, 4, 32, 16, false},
};

// A weight [N, K] in panels of 16 rows: heads up to a whole line, then codes.
struct BlockPanels {
  const uint8_t* data;
  int kind;
  int64_t channels, columns;  // N, K
  const BlockShape& shape() const { return kBlockShapes[kind]; }
  int64_t panels() const { return (channels + kTileChannels - 1) / kTileChannels; }
  int64_t groups() const { return columns / kBlockGroup; }
  int64_t group_bytes() const { return kTileChannels * kBlockGroup * shape().bits / 8; }
  int64_t head_bytes() const { return (columns / shape().columns * shape().head + 63) / 64 * 64; }
  int64_t panel_bytes() const { return head_bytes() + groups() * group_bytes(); }
  const uint8_t* panel(int64_t number) const { return data + number * panel_bytes(); }
};

struct BlockLinearArgs {
  const float* x;  // [M, K]
  int64_t rows, columns, channels;  // M, K, N of all parts
  const BlockPanels* parts;
  int64_t part_count;
  const float* bias;  // [N] or null
  const float* gain;  // [K]: the rows are root mean square normed first; or null
  float eps;
  const float* add;  // [M, N] or null; null with a gate
  float* out;        // [M, width()]; may be `x` or `add`: all rows are quantized before anything is written
  Gate gate;         // of one part, whose halves are whole panels; or none
  int64_t width() const { return gate.kind != kNoGate ? channels / 2 : channels; }
};

struct BlockKernels {
  // See kernels/reference/blocks.py. False: an activation is not finite; `out` is untouched.
  bool (*linear)(const BlockLinearArgs& args, ThreadPool& pool);
  // out[m, :] = the values of row rows[m], for m in begin..end.
  void (*rows)(const BlockPanels& weight, const int64_t* rows, float* out, int64_t begin, int64_t end);
};

}  // namespace edge

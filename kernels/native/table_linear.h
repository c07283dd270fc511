// Function pointers and argument structs of quantize.h, linear.h and roofs.h.
//
// All arrays are row-major and contiguous; M rows, K input channels, N output channels.
#pragma once

#include <stdint.h>

#include "pool.h"
#include "table_pointwise.h"

namespace edge {

constexpr int kTileChannels = 16;  // output channels of a panel
constexpr int kTileDepth = 4;      // input channels next to each other in a panel
constexpr int kTileBytes = kTileChannels * kTileDepth;

// 4-bit codes, see kernels/reference/w4.py.
constexpr int kCodeGroup = 32;  // input channels that share a multiplier and a shift
constexpr int kCodeGroupBytes = kTileChannels * kCodeGroup / 2;
constexpr int kMaxMultiplier = 12, kMinShift = 3;
alignas(16) constexpr uint8_t kCodebook[16] = {0, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 17, 19};
// Multipliers and shifts before the codes of a panel: whole lines of 64 bytes.
constexpr int64_t code_steps_bytes(int64_t groups) { return (groups * kTileChannels + 63) / 64 * 64; }

// What quantization cut off at one place.
struct ResidualEntry {
  uint32_t place;  // 16 times the column: also the bytes to its tile in a panel of tiles, and 16 times its byte of each word
  float value;     // in units of the input scale

  ResidualEntry(int32_t column, float value) : place(static_cast<uint32_t>(column) * kTileChannels), value(value) {}
  int32_t column() const { return static_cast<int32_t>(place / kTileChannels); }
  uint32_t tile() const { return place / kTileBytes * kTileBytes; }
  uint32_t byte() const { return place % kTileBytes; }
};

// Where a row's entries are: entries(worker)[offset .. offset + count).
struct ResidualRow {
  int64_t offset;
  int32_t worker;
  int32_t count;
};

// Activations to be quantized.
struct QuantizeInput {
  const float* x;  // [M, K]
  int64_t rows;
  int64_t columns;
  float input_scale;
  const int32_t* hot;  // [H] ascending: columns that quantize to 0 and leave no residual
  int64_t hot_count;
  bool residual;  // whether to keep the residual
  const float* gain;  // [K]: the rows are root mean square normed first; or null
  float eps;
  int64_t turn = 0;         // block of channels that is turned, behind the norm (see turn.h); 0: none. There are no hot columns then
  bool row_scales = false;  // every row has a scale of its own, and `input_scale` is not used. There are no hot columns then
};

// An INT8 weight and what turns its integer product into floats.
//
// As it is: y = float(dot) * product_scale (+ bias). Rounded, as a card that ends in float16 gives it:
//   y = float16(clamp(float(dot + rounded_bias) * rounded_scale, -65504, 65504)), and there is no bias besides.
// Where rows have scales of their own: y = float(dot) * product_scale * row_scale (+ bias).
struct Int8Weight {
  const int8_t* tiles;         // [ceil(N/16), ceil(K/4), 16, 4], zero padded; or null and
  const uint8_t* codes;        // [ceil(N/16), panel bytes] that expand to them
  int64_t channels;            // N
  int64_t columns;             // K
  const float* product_scale;  // [N] input scale * weight scale; where rows have scales of their own: weight scale
  const int32_t* row_sum;      // [N] sum of W[n, :]
  const float* bias;           // [N] or null
  const float* rounded_scale;  // [N], or null where the product is not rounded
  const int32_t* rounded_bias; // [N] or null; |rounded_bias| + 127 * 127 * K < 2^31
  // Those of `whole` for the channels from `first` on.
  void take_vectors(const Int8Weight& whole, int64_t first) {
    product_scale = whole.product_scale + first;
    row_sum = whole.row_sum + first;
    bias = whole.bias == nullptr ? nullptr : whole.bias + first;
    rounded_scale = whole.rounded_scale == nullptr ? nullptr : whole.rounded_scale + first;
    rounded_bias = whole.rounded_bias == nullptr ? nullptr : whole.rounded_bias + first;
  }
  int64_t panels() const { return (channels + kTileChannels - 1) / kTileChannels; }
  int64_t blocks() const { return (columns + kTileDepth - 1) / kTileDepth; }
  int64_t groups() const { return (columns + kCodeGroup - 1) / kCodeGroup; }
  // Of a panel of codes, of tiles, and of whatever there is.
  int64_t code_bytes() const { return code_steps_bytes(groups()) + groups() * kCodeGroupBytes; }
  int64_t tile_bytes() const { return blocks() * kTileBytes; }
  int64_t panel_bytes() const { return codes != nullptr ? code_bytes() : tile_bytes(); }
  const void* panel(int64_t number) const {
    return codes != nullptr ? static_cast<const void*>(codes + number * code_bytes()) : tiles + number * tile_bytes();
  }
};

// What overflows of M rows, R values: those of row m are at row_start[m] to row_start[m + 1].
struct ResidualRows {
  const int64_t* row_start;  // [M+1]
  const int32_t* column;     // [R]
  const float* value;        // [R]
};

// y[M, N] += hot_sum; = fma(overflow_sum, product_scale, y) where a row overflows; += add. Null: nothing to add.
struct MergeArgs {
  float* y;
  int64_t rows, channels;
  const float* hot_sum;        // [M, N] or null
  const int64_t* row_start;    // [M+1] of a residual, or null; then the next two are not read
  const float* overflow_sum;   // [M, N]
  const float* product_scale;  // [N]
  const float* add;            // [M, N] or null
};

struct LinearKernels {
  // q[M, K]; residual_rows[M] and each worker's pool.extend() hold the residual. False: an activation is not finite.
  bool (*quantize)(const QuantizeInput& input, int8_t* q, ResidualRow* residual_rows, ThreadPool& pool);
  // out[M, N] = the product of q[M, K] and W, rounded or not, see Int8Weight. False: q holds -128, which the symmetric range excludes.
  bool (*linear_int8)(const int8_t* q, int64_t rows, const Int8Weight& weight, float* out, ThreadPool& pool);
  // out[m, :] = 0; out[m, :] = fma(x[m, hot[h]], hot_weight[h, :], out[m, :]) for h ascending; hot_weight f16[H, N]
  void (*hot_product)(float* out, const float* x, int64_t rows, int64_t columns, int64_t channels, const int32_t* hot,
                      int64_t hot_count, const uint16_t* hot_weight, ThreadPool& pool);
  // out[M, N] = residual . W of the tiles, where a row has values: from 0, one fma for each of them in their order.
  void (*overflow_product)(float* out, int64_t rows, const Int8Weight& weight, const ResidualRows& residual, ThreadPool& pool);
  // What follows linear_int8, in place.
  void (*merge)(const MergeArgs& args, ThreadPool& pool);
  // All in one: quantize, then one pass over the output. W is its `parts` in the order of their channels; `out` is not in `x` where there are several.
  // `add` [M, N] or null is added last; it may be `out`. False: an activation is not finite, `out` is untouched.
  bool (*linear)(const QuantizeInput& input, const Int8Weight* parts, int64_t part_count, const uint16_t* hot_weight,
                 const float* add, float* out, ThreadPool& pool);
  // The gate y[:, :N/2] and the up half y[:, N/2:] of the y that `linear` gives, met in out [M, N/2]; N/2 must be whole panels.
  bool (*linear_gated)(const QuantizeInput& input, const Int8Weight& weight, const uint16_t* hot_weight, Gate gate, float* out,
                       ThreadPool& pool);
  // Roofs: the bare microkernel on data in L1, `repeats` times on every worker, returns the operations done; and a
  // streaming read, returns a value that depends on every byte.
  int64_t (*int8_operations)(int64_t repeats, ThreadPool& pool);
  int32_t (*read_stream)(const int8_t* data, int64_t bytes, ThreadPool& pool);
};

}  // namespace edge

// The INT8 linear y = x . W^T: activations quantized row by row, exact int32 products, and one epilogue per register tile
// that scales, adds bias, hot columns, residual and `add` before the tile's only store (or before the gate meets the up half).
//
// Per output element the float operations and their order are fixed (see kernels/reference/linear.py, `linear`), whatever the
// tile it falls in; that is why a row does not depend on the number of rows, threads or on the ISA.
//
// Memory of a call: activations [M, stride], hot columns of x [M, H] and the residual rows live in the pool's shared
// scratch; residual entries in the workers' own.
#pragma once

#include <code_rows.h>
#include <linear_product.h>

#include "linear_plan.h"
#include "pool.h"
#include "quantize.h"
#include "table_linear.h"

namespace edge {
namespace EDGE_VARIANT {

static Activation* activation_scratch(ThreadPool& pool, int64_t rows, int64_t stride) {
  const int64_t whole_groups = ceil_div(rows, Int8Dot::kRowGroup) * Int8Dot::kRowGroup;
  return static_cast<Activation*>(pool.shared_scratch(1, static_cast<size_t>(whole_groups * stride) * sizeof(Activation)));
}

// Whether the plan's activations meet codes that are not expanded.
EDGE_INLINE bool has_code_rows(const LinearPlan& plan) {
  return plan.weight.codes != nullptr && plan.rows <= CodeRow::kMostRows;
}

// The stride of the plan's activations.
EDGE_INLINE int64_t stride_for(const LinearPlan& plan) {
  return activation_stride(has_code_rows(plan) ? CodeRow::columns(plan.weight.blocks()) : plan.weight.columns);
}

EDGE_INLINE void complete_row(const LinearPlan& plan, Activation* activations, int64_t m) {
  if (has_code_rows(plan)) CodeRow::complete(activations + m * plan.stride, plan.weight.blocks());
}

// One row of q, and zeros up to a whole block. False: it holds -128.
static bool place_row(const int8_t* q, int64_t columns, Activation* activations, int64_t stride, int64_t m) {
  bool in_range = true;
  for (int64_t c = 0; c < columns; ++c) {
    in_range &= q[c] != -128;
    *Int8Dot::place(activations, stride, m, c) = Int8Dot::activation(q[c]);
  }
  for (int64_t c = columns; c < ceil_div(columns, kTileDepth) * kTileDepth; ++c)
    *Int8Dot::place(activations, stride, m, c) = Int8Dot::activation(0);
  return in_range;
}

static bool linear_int8(const int8_t* q, int64_t rows, const Int8Weight& weight, float* out, ThreadPool& pool) {
  LinearPlan plan = {};
  plan.weight = weight;
  plan.rows = rows;
  plan.out = out;
  plan.width = weight.channels;
  plan.stride = stride_for(plan);
  Activation* activations = activation_scratch(pool, rows, plan.stride);
  plan.activations = activations;
  return linear_product(plan, pool, [&](int) {
    return [&](int64_t begin, int64_t end) {
      bool in_range = true;
      for (int64_t m = begin; m < end; ++m) {
        in_range &= place_row(q + m * weight.columns, weight.columns, activations, plan.stride, m);
        complete_row(plan, activations, m);
      }
      return in_range;
    };
  });
}

// Quantizes into the pool's memory and runs the plan, which says what to multiply and where to write.
static bool quantized_product(const QuantizeInput& input, LinearPlan& plan, ThreadPool& pool) {
  plan.rows = input.rows;
  plan.stride = stride_for(plan);
  Activation* activations = activation_scratch(pool, input.rows, plan.stride);
  auto* hot_x = static_cast<float*>(
      pool.shared_scratch(2, static_cast<size_t>(input.rows * plan.hot_count) * sizeof(float)));
  auto* residual_rows =
      static_cast<ResidualRow*>(pool.shared_scratch(3, static_cast<size_t>(input.rows) * sizeof(ResidualRow)));
  auto* row_scales = static_cast<float*>(
      pool.shared_scratch(5, static_cast<size_t>(input.row_scales ? input.rows : 0) * sizeof(float)));
  plan.activations = activations;
  plan.hot_x = hot_x;
  plan.row_scales = input.row_scales ? row_scales : nullptr;
  if (input.residual) plan.residual_rows = residual_rows;
  const float* factor = factors_of(input, pool);
  return linear_product(plan, pool, [&](int worker) {
    return [&, ready = ready_room(input, pool, worker), writer = ResidualWriter(pool, worker)](int64_t begin, int64_t end) mutable {
      bool finite = true;
      for (int64_t m = begin; m < end; ++m) {
        const RowRest rest = {residual_rows + m, plan.hot_count == 0 ? nullptr : hot_x + m * plan.hot_count,
                              input.row_scales ? row_scales + m : nullptr};
        finite &= quantize_row(input, m, factor, rest, ready, writer, [&](int64_t c, i32x16 q) EDGE_INLINE_LAMBDA {
          Int8Dot::store(Int8Dot::place(activations, plan.stride, m, c), q);
        });
        complete_row(plan, activations, m);
      }
      return finite;
    };
  });
}

// Multiplies what the last quantized_product made of the activations: this weight takes them in the same form.
static void product_again(LinearPlan& plan, ThreadPool& pool) {
  linear_product(plan, pool, [](int) { return [](int64_t, int64_t) { return true; }; });
}

static bool linear(const QuantizeInput& input, const Int8Weight* parts, int64_t part_count, const uint16_t* hot_weight,
                   const float* add, float* out, ThreadPool& pool) {
  LinearPlan plan = {};
  bool code_rows = false;
  plan.hot_count = hot_weight != nullptr ? input.hot_count : 0;
  for (int64_t i = 0; i < part_count; ++i) plan.width += parts[i].channels;
  plan.hot_stride = plan.width;
  for (int64_t i = 0, first = 0; i < part_count; first += parts[i++].channels) {
    plan.weight = parts[i];
    plan.hot_weight = hot_weight == nullptr ? nullptr : hot_weight + first;
    plan.add = add == nullptr ? nullptr : add + first;
    plan.out = out + first;
    const bool same_form = i > 0 && has_code_rows(plan) == code_rows;
    if (same_form) product_again(plan, pool);
    else if (!quantized_product(input, plan, pool)) return false;
    code_rows = has_code_rows(plan);
  }
  count_overflow(input, plan.residual_rows, pool);
  return true;
}

// The plan multiplies the gate and the up half of `weight`.
static void split_halves(LinearPlan& plan, const Int8Weight& weight) {
  const int64_t width = weight.channels / 2, half = width / kTileChannels;
  plan.weight = weight;
  plan.width = plan.weight.channels = plan.up.channels = width;
  plan.up.columns = weight.columns;
  if (weight.codes != nullptr) plan.up.codes = weight.codes + half * weight.code_bytes();
  else plan.up.tiles = weight.tiles + half * weight.tile_bytes();
  plan.up.take_vectors(weight, width);
}

static bool linear_gated(const QuantizeInput& input, const Int8Weight& weight, const uint16_t* hot_weight, Gate gate, float* out,
                         ThreadPool& pool) {
  LinearPlan plan = {};
  plan.gate = gate;
  split_halves(plan, weight);
  plan.hot_weight = hot_weight;
  plan.hot_stride = weight.channels;
  plan.hot_count = hot_weight != nullptr ? input.hot_count : 0;
  plan.out = out;
  if (!quantized_product(input, plan, pool)) return false;
  count_overflow(input, plan.residual_rows, pool);
  return true;
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// The unit of tiles: linears of many rows, and attention of many queries. Everything else is of another set (<set.h>).
#pragma once

#pragma GCC diagnostic ignored "-Wunused-function"  // of the shared headers some are used

#include <int8_roof.h>
#include <permit.h>
#include <set.h>

#include "attention_calls.h"
#include "linear_calls.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int64_t kLeastTileRows = 13;  // from here on tiles win at every shape, from every cache

static bool linear_int8_by_rows(const int8_t* q, int64_t rows, const Int8Weight& weight, float* out, ThreadPool& pool) {
  if (rows < kLeastTileRows) return few_rows::families.linear.linear_int8(q, rows, weight, out, pool);
  return linear_int8(q, rows, weight, out, pool);
}

static bool linear_by_rows(const QuantizeInput& input, const Int8Weight* parts, int64_t part_count, const uint16_t* hot_weight,
                           const float* add, float* out, ThreadPool& pool) {
  const auto& way = input.rows < kLeastTileRows ? few_rows::families.linear.linear : &linear;
  return way(input, parts, part_count, hot_weight, add, out, pool);
}

static bool linear_gated_by_rows(const QuantizeInput& input, const Int8Weight& weight, const uint16_t* hot_weight, Gate gate, float* out,
                                 ThreadPool& pool) {
  const auto& way = input.rows < kLeastTileRows ? few_rows::families.linear.linear_gated : &linear_gated;
  return way(input, weight, hot_weight, gate, out, pool);
}

// A kernel of the other set.
template <auto Family, auto Member>
struct Shared;
template <class Kernels, Kernels KernelFamilies::*Family, class Result, class... Args, Result (*Kernels::*Member)(Args...)>
struct Shared<Family, Member> {
  static Result call(Args... args) { return (few_rows::families.*Family.*Member)(args...); }
};

static const LinearKernels tile_linears = {
    &Shared<&KernelFamilies::linear, &LinearKernels::quantize>::call,
    &linear_int8_by_rows,
    &Shared<&KernelFamilies::linear, &LinearKernels::hot_product>::call,
    &Shared<&KernelFamilies::linear, &LinearKernels::overflow_product>::call,
    &Shared<&KernelFamilies::linear, &LinearKernels::merge>::call,
    &linear_by_rows,
    &linear_gated_by_rows,
    &int8_operations,
    &Shared<&KernelFamilies::linear, &LinearKernels::read_stream>::call,
};

// Half a tile of queries is not worth its operands.
EDGE_INLINE bool is_of_few(const AttentionArgs& a, const AttentionTile& tile) {
  constexpr int64_t kLeastTileQueries = 13;
  return tile.rows * (a.q_heads / a.kv_heads) < kLeastTileQueries;
}

static int64_t scratch_floats(int64_t queries, int64_t head_dim) {
  return max_i64(attention_scratch_floats(queries, head_dim), few_rows::families.attention.scratch_floats(queries, head_dim));
}

static void attend_by_queries(const AttentionArgs& a, const AttentionTile& tile, const AttentionTile* next, float* scratch) {
  const auto& way = is_of_few(a, tile) ? few_rows::families.attention.attend : &attend;
  way(a, tile, next, scratch);
}

static void load_queries_by_queries(const AttentionArgs& a, const AttentionTile& tile, float* scratch) {
  const auto& way = is_of_few(a, tile) ? few_rows::families.attention.load_queries : &load_queries;
  way(a, tile, scratch);
}

static void attend_segment_by_queries(const AttentionArgs& a, const AttentionTile& tile, int64_t segment, NextSegment next,
                                      SoftmaxPart part, float* scratch) {
  const auto& way = is_of_few(a, tile) ? few_rows::families.attention.attend_segment : &attend_segment;
  way(a, tile, segment, next, part, scratch);
}

static const AttentionKernels tile_attention = {
    &Shared<&KernelFamilies::attention, &AttentionKernels::rope_append>::call,
    &scratch_floats,
    &attend_by_queries,
    &load_queries_by_queries,
    &attend_segment_by_queries,
    &Shared<&KernelFamilies::attention, &AttentionKernels::join>::call,
};

extern const KernelTable table;
constexpr KernelTable table_by_rows() {
  KernelTable made = table_of(kName, few_rows::families, few_rows::recurrent_table);
  made.linear = &tile_linears;
  made.attention = &tile_attention;
  made.emulated = kEmulated;
  made.permit = permit;
  return made;
}
constexpr KernelTable table = table_by_rows();

}  // namespace EDGE_VARIANT
}  // namespace edge

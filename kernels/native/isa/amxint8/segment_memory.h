// Memory of a tile's segment whose products are made in tiles: the scores of all queries, and operands as tiles take them.
#pragma once

#include "table_attention.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int64_t kQueryRows = 16;     // of a tile
constexpr int64_t kQuadBytes = 64;     // of a row of operands: 64 channels or tokens of a query, or fours of 16 tokens or channels

EDGE_INLINE int64_t score_rows(int64_t queries) { return queries; }

// What the products of a segment work on. Bytes of queries and of weights are high or low ones, [query][...]; `stride` is a row's.
struct SegmentOperands {
  int64_t rows;             // of queries, whole tiles
  int64_t query_stride;     // bytes: channels, whole rows of operands
  int64_t weight_stride;    // bytes: tokens
  int64_t value_stride;     // bytes of a four of tokens: channels, whole vectors
  uint8_t *query[2];        // low, high: [rows][query_stride]
  uint8_t *weight[2];       // low, high: [rows][weight_stride]
  int8_t* keys;             // [pages][query_stride / 4][16 tokens][4 channels]
  int8_t* values;           // [64 fours of tokens][channels][4 tokens]
  int32_t* sums;            // [4 tiles][16][16]
  int64_t bytes;            // of all

  SegmentOperands(void* memory, int64_t queries, int64_t head_dim) {
    rows = ceil_div(queries, kQueryRows) * kQueryRows;
    query_stride = ceil_div(head_dim, kQuadBytes) * kQuadBytes;
    weight_stride = kSegment + kQuadBytes;
    value_stride = 4 * attention_padded(head_dim) + kQuadBytes;
    auto* at = static_cast<uint8_t*>(memory);
    auto* const begin = at;
    const auto take = [&](int64_t count) {
      uint8_t* const found = at;
      at += count;
      return found;
    };
    for (auto& one : query) one = take(rows * query_stride);
    for (auto& one : weight) one = take(rows * weight_stride);
    keys = reinterpret_cast<int8_t*>(take(kSegment * query_stride));
    values = reinterpret_cast<int8_t*>(take(kSegment / 4 * value_stride));
    sums = reinterpret_cast<int32_t*>(take(4 * 16 * kQuadBytes));
    bytes = at - begin;
  }
};

EDGE_INLINE int64_t segment_floats(int64_t queries, int64_t head_dim) {
  return (SegmentOperands(nullptr, queries, head_dim).bytes + kQuadBytes) / 4;  // it begins at a whole line
}

}  // namespace EDGE_VARIANT
}  // namespace edge

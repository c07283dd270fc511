// Weights in the blocks of GGUF files: random blocks of every kind, laid out, looked up and multiplied.
#pragma once

#include <cmath>
#include <initializer_list>

#include "block_layout.h"
#include "check.h"

namespace edge_test {

struct BlockProblem {
  int64_t m, n, k;
  Array<uint8_t> raw, panels;
  Array<float> x, gain, bias, add;

  edge::BlockPanels view(int kind) const { return {panels.data(), kind, n, k}; }
};

inline void put_half(uint8_t* at, uint16_t half) { memcpy(at, &half, 2); }

// One block as a file may have it: any codes, and scales that are numbers.
inline void random_block(int kind, Random& random, uint8_t* block) {
  const edge::BlockShape& shape = edge::kBlockShapes[kind];
  for (int i = 0; i < shape.file_bytes; ++i) block[i] = static_cast<uint8_t>(random.bits());
  if (kind == edge::kMxfp4) block[0] = static_cast<uint8_t>(random.between(110, 130));
  else put_half(block + (kind == edge::kQ6_K ? 208 : 0), random.half());
  if (shape.has_least) put_half(block + 2, random.half());
}

inline BlockProblem block_problem(int kind, int64_t m, int64_t n, int64_t k) {
  Random random(static_cast<uint64_t>(((kind * 1009 + m) * 1009 + n) * 1009 + k));
  const edge::BlockShape& shape = edge::kBlockShapes[kind];
  BlockProblem p;
  p.m = m, p.n = n, p.k = k;
  p.raw = Array<uint8_t>(n * (k / shape.columns) * shape.file_bytes);
  for (int64_t at = 0; at < p.raw.size(); at += shape.file_bytes) random_block(kind, random, p.raw.data() + at);
  const edge::BlockPanels empty = {nullptr, kind, n, k};
  p.panels = Array<uint8_t>(empty.panels() * empty.panel_bytes());
  for (int64_t panel = 0; panel < empty.panels(); ++panel)
    edge::lay_out_panel(p.raw.data(), empty, panel, p.panels.data() + panel * empty.panel_bytes());
  p.x = random.floats(m * k, 3.0f);
  for (float& x : p.x)
    if (random.chance(2)) x *= 40.0f;
  p.gain = random.floats(k, 1.0f);
  p.bias = random.floats(n, 1.0f);
  p.add = random.floats(m * n, 1.0f);
  return p;
}

inline double half_value(const uint8_t* at) {
  uint16_t half;
  memcpy(&half, at, 2);
  const int exponent = half >> 10 & 31, mantissa = half & 1023;
  const double value = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return half >> 15 ? -value : value;
}

// The value of column c of a block, as written on paper (ggml's formats).
inline double plain_block_value(int kind, const uint8_t* block, int c) {
  static const int nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  static const int twice_e2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  edge::FileBlock found;
  edge::read_file_block(block, kind, found);
  const int code = found.codes[c];
  const double scale = kind == edge::kMxfp4 ? 0.0 : half_value(found.scale), least = found.least ? half_value(found.least) : 0.0;
  switch (kind) {
    case edge::kQ4_0: return scale * (code - 8);
    case edge::kQ5_0: return scale * (code - 16);
    case edge::kQ8_0: return scale * (code - 128);
    case edge::kQ4_1:
    case edge::kQ5_1: return scale * code + least;
    case edge::kQ4_K:
    case edge::kQ5_K: return scale * found.fine[c / 32] * code - least * found.fine_least[c / 32];
    case edge::kQ6_K: return scale * static_cast<int8_t>(found.fine[c / 16]) * (code - 32);
    case edge::kIq4Nl: return scale * nl[code];
    case edge::kIq4Xs: return scale * static_cast<int8_t>(found.fine[c / 32]) * nl[code];
    default: return std::ldexp(twice_e2m1[code], *found.scale - 128);
  }
}

// Rows that are looked up have the values on paper; a product is the one of its rows alone, of its parts, and of any threads.
inline void run_blocks(const edge::KernelTable& table, Result& result, int kind, const BlockProblem& p, edge::ThreadPool& pool) {
  const edge::BlockShape& shape = edge::kBlockShapes[kind];
  const edge::BlockPanels weight = p.view(kind);
  Array<int64_t> which(p.n);
  for (int64_t i = 0; i < p.n; ++i) which[i] = p.n - 1 - i;
  Array<float> values(p.n * p.k, -1.0f);
  table.blocks->rows(weight, which.data(), values.data(), 0, p.n);
  result.add(values);
  const int64_t row_bytes = p.k / shape.columns * shape.file_bytes;
  for (int64_t i = 0; i < p.n; ++i)
    for (int64_t c = 0; c < p.k; ++c) {
      const uint8_t* block = p.raw.data() + which[i] * row_bytes + c / shape.columns * shape.file_bytes;
      const double plain = plain_block_value(kind, block, static_cast<int>(c % shape.columns));
      const double most = std::fabs(plain) + 4 * std::fabs(kind == edge::kMxfp4 ? 0.0 : half_value(shape.has_least ? block + 2 : block));
      result.expect(std::fabs(values[i * p.k + c] - plain) <= 1e-6 * most, "a row that is looked up is not the one on paper");
    }

  Array<float> whole(p.m * p.n, -1.0f), found(p.m * p.n, -1.0f);
  edge::BlockLinearArgs args = {p.x.data(), p.m, p.k, p.n, &weight, 1, p.bias.data(), p.gain.data(), 1e-5f, p.add.data(),
                                whole.data(), {}};
  result.add_flag(table.blocks->linear(args, pool));
  result.add(whole);
  for (int64_t m = 0; m < p.m; ++m) {
    edge::BlockLinearArgs row = args;
    row.rows = 1;
    row.x += m * p.k;
    row.add += m * p.n;
    row.out = found.data() + m * p.n;
    result.add_flag(table.blocks->linear(row, pool));
  }
  result.expect(memcmp(found.data(), whole.data(), static_cast<size_t>(found.size()) * 4) == 0, "a row depends on its neighbours");
  if (p.n > 16) {
    edge::BlockPanels parts[2] = {weight, weight};
    parts[0].channels = 16;
    parts[1].data = weight.panel(1);
    parts[1].channels = p.n - 16;
    edge::BlockLinearArgs both = args;
    both.parts = parts;
    both.part_count = 2;
    both.out = found.data();
    result.add_flag(table.blocks->linear(both, pool));
    result.expect(memcmp(found.data(), whole.data(), static_cast<size_t>(found.size()) * 4) == 0, "two parts are not the whole");
  }
  if (p.n % 32 == 0) {
    Array<float> gated(p.m * p.n / 2, -1.0f), steps(p.m * p.n / 2, -1.0f);
    edge::BlockLinearArgs plain = args;
    plain.add = nullptr;
    plain.out = found.data();
    result.add_flag(table.blocks->linear(plain, pool));
    table.pointwise->gate({found.data(), steps.data(), p.n / 2, {edge::kSilu, 0.0f}}, 0, p.m);
    plain.gate = {edge::kSilu, 0.0f};
    plain.out = gated.data();
    result.add_flag(table.blocks->linear(plain, pool));
    result.expect(memcmp(gated.data(), steps.data(), static_cast<size_t>(gated.size()) * 4) == 0, "a gate at once is not a gate behind");
    result.add(gated);
  }
}

}  // namespace edge_test

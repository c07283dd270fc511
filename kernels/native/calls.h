// Kernel calls over arrays that are checked once: a binding runs one on all of its rows, a program (bind_program.cpp) runs
// many, one after the other, on as many of the first rows as there are.
//
// A call keeps no array alive. run() works without the interpreter, and with the pool's lease.
#pragma once

#include <vector>

#include "bind.h"

namespace edge {

constexpr const char* kNotFinite = "non-finite activation";
constexpr const char* kNotFiniteKey = "non-finite key or value";

// A linear's weight, checked once; it keeps its arrays alive.
struct Int8Linear {
  std::vector<nb::object> arrays;
  std::vector<Int8Weight> parts;  // in the order of their channels
  int64_t channels, columns;
  float input_scale;  // 0: every row has a scale of its own
  int64_t turn;       // block of input channels that is turned; 0: none
  Array<const int32_t, 1> hot;
  Array<const half, 2> hot_weight;

  // Whether gate and up channels meet tile by tile.
  bool swiglu_in_one_pass() const { return parts.size() == 1 && channels % (2 * kTileChannels) == 0; }
};

struct LinearCall {
  LinearCall(nb::handle x, const Int8Linear& linear, nb::handle add, bool shadow, nb::handle gain, double eps, int gate_kind,
             double limit);
  nb::object write_to(nb::handle out);              // None: a new array
  bool run(int64_t count, ThreadPool& pool) const;  // false: an activation is not finite
  bool gated() const { return gate.kind != kNoGate; }
  int64_t width() const { return gated() ? channels / 2 : channels; }  // of `out`
  void set_out(float* to) { out = to; }

  std::vector<Int8Weight> parts;
  int64_t channels;
  QuantizeInput input;
  const uint16_t* shadow_weight;
  const float* add;
  float* out = nullptr;
  Gate gate;
  int64_t rows;  // of the arrays
};

struct HalfCall {
  HalfCall(nb::handle x, nb::handle weight, nb::handle bias, nb::handle add, nb::handle gain, double eps, int gate, double limit);
  nb::object write_to(nb::handle out);              // None: a new array
  bool run(int64_t count, ThreadPool& pool) const;  // false: an activation is not finite
  int64_t width() const { return args.width(); }    // of `out`
  void set_out(float* to) { args.out = to; }

  HalfLinearArgs args;
  int64_t rows;  // of the arrays
};

// A weight in blocks, checked once; it keeps its arrays alive.
struct BlockLinear {
  std::vector<nb::object> arrays;
  std::vector<BlockPanels> parts;  // in the order of their channels
  int64_t channels = 0, columns = 0;

  // Whether gate and up channels meet tile by tile.
  bool gated_in_one_pass() const { return parts.size() == 1 && channels % (2 * kTileChannels) == 0; }
};

struct BlockCall {
  BlockCall(nb::handle x, const BlockLinear& linear, nb::handle bias, nb::handle add, nb::handle gain, double eps, int gate,
            double limit);
  nb::object write_to(nb::handle out);              // None: a new array
  bool run(int64_t count, ThreadPool& pool) const;  // false: an activation is not finite
  int64_t width() const { return args.width(); }    // of `out`
  void set_out(float* to) { args.out = to; }

  std::vector<BlockPanels> parts;
  BlockLinearArgs args = {};
  int64_t rows;  // of the arrays
};

// What adapters add to a linear's products: an entry for each adapter by its number - 1, checked once; it keeps its arrays alive.
struct LowRank {
  // Some ranks' share in some output channels.
  struct Part {
    int64_t first_rank, ranks, first_channel, channels;
    const uint16_t* up;  // [ranks, channels] float16
  };
  struct Entry {
    int64_t rank = 0;                // 0: this adapter leaves the linear alone
    const uint16_t* down = nullptr;  // [columns, rank] float16
    std::vector<Part> parts = {};
  };
  std::vector<nb::object> arrays;
  std::vector<Entry> entries;
  std::vector<int32_t> every;  // 0..columns-1
  int64_t columns = 0, channels = 0, widest = 0;
};

// t = x . down of every row's adapter; t [M, widest]. Rows without one, and what lies behind an adapter's rank, hold anything.
struct LowRankDownCall {
  LowRankDownCall(nb::handle x, const LowRank& low_rank, nb::handle gain, double eps, nb::handle t);
  // adapters [count]: numbers from 1, or 0; null: no row has one. False: an activation is not finite.
  bool run(int64_t count, const int32_t* adapters, ThreadPool& pool) const;

  const LowRank* low_rank;
  HalfLinearArgs args;
  float* t;
  int64_t rows;  // of the arrays
};

// out += t . up of every row's adapter, each product a linear with float16 weights: its chain of multiply-adds, then the addition.
struct LowRankUpCall {
  LowRankUpCall(nb::handle t, const LowRank& low_rank, nb::handle out);
  bool run(int64_t count, const int32_t* adapters, ThreadPool& pool) const;  // false: a value is not finite

  const LowRank* low_rank;
  const float* t;
  float* out;
  int64_t rows;  // of the arrays
};

// Look-ups of embeddings in blocks, times a factor.
struct BlockRowsCall {
  BlockRowsCall(nb::handle panels, int64_t kind, int64_t channels, int64_t columns, float factor);
  nb::object write_to(nb::handle out, int64_t rows);
  void run(int64_t count, const int64_t* tokens, ThreadPool& pool) const;

  BlockPanels weight;
  float factor;
  float* out = nullptr;
};

struct NormCall {
  NormCall(nb::handle x, nb::handle gain, float eps, nb::handle add);
  nb::object write_to(nb::handle out);
  void run(int64_t count, ThreadPool& pool) const;

  NormArgs args;
  int64_t rows;
};

struct LayerNormCall : NormCall {
  LayerNormCall(nb::handle x, nb::handle gain, nb::handle bias, float eps, nb::handle add);
};

struct GateCall {
  GateCall(nb::handle gate_up, int gate, double limit);
  nb::object write_to(nb::handle out);
  void run(int64_t count, ThreadPool& pool) const;

  GateArgs args;
  int64_t rows;
};

struct ActivateCall {
  ActivateCall(nb::handle x, int kind, double limit);
  nb::object write_to(nb::handle out);
  void run(int64_t count, ThreadPool& pool) const;

  ActivateArgs args;
  int64_t rows;
};

struct TurnCall {
  TurnCall(nb::handle x, int64_t block);
  void run(int64_t count, ThreadPool& pool) const;

  TurnArgs args;
  int64_t rows;
};

// What kernels/attention.py `rope_append` says of these.
struct AppendArrays {
  nb::handle qkv;
  int64_t heads, kv_heads, head_dim;
  nb::handle cos, sin;
  struct Norms {
    nb::handle q_gain, k_gain, v_gain;
    float eps;
    bool last;
  } norms;
  nb::handle k_offset;
  struct Pages {
    nb::handle k, k_scales, v, v_scales;
  } pages;
  int64_t turn;
  nb::handle q_scale;
};

struct AppendCall {
  explicit AppendCall(const AppendArrays& arrays);
  // False: a key or value is not finite.
  bool run(int64_t count, const int32_t* row_position, const int64_t* slots, ThreadPool& pool) const;

  RopeAppendArgs args;
  int64_t rows, width;
  int64_t positions, pages;  // that there are
};

// Which keys the rows of an attention see.
struct AttentionRows {
  const int32_t* page_table;  // [S, max_pages]
  int64_t max_pages;
  const int32_t *row_sequence, *row_position;  // [M]
};

struct AttentionCall {
  AttentionCall(nb::handle q, nb::handle k_pages, nb::handle k_scales, nb::handle v_pages, nb::handle v_scales,
                float softmax_scale, int64_t window, float cap, nb::handle sinks);
  nb::object write_to(nb::handle out);
  void run(int64_t count, const AttentionRows& rows, ThreadPool& pool) const;

  AttentionArgs args;
  int64_t rows, pages;
};

// The largest depth whose int32 sum cannot overflow: 127 * 127 * K < 2^31.
constexpr int64_t kMaxColumns = 131072;

struct EmbeddingCall {
  // `integers`: tiles, or codes.
  EmbeddingCall(nb::handle integers, int64_t columns, nb::handle scale, nb::handle hot, nb::handle hot_weight, int64_t turn);
  nb::object write_to(nb::handle out, int64_t rows);
  void run(int64_t count, const int64_t* tokens, ThreadPool& pool) const;

  EmbeddingArgs args = {};
  float* out = nullptr;

 private:
  void read_tiles(nb::handle tiles, int64_t rows, int64_t columns);
};

// These raise ValueError, which names the argument.
Gate gate_of(int kind, double limit);  // of a gated product, or none
Array<const int32_t, 1> read_hot(nb::handle hot, int64_t columns);
Array<const half, 2> read_hot_weight(nb::handle hot_weight, int64_t hot_count, int64_t channels);
void expect_tokens(const Array<const int64_t, 1>& tokens, int64_t limit);
Int8Weight read_code_panels(nb::handle codes, int64_t n, int64_t columns);  // a weight of 4-bit codes
Int8Weight read_codes(nb::handle codes, int64_t n, int64_t columns);  // the same; all multipliers and shifts fit, so sums do
void expect_positions(const Array<const int32_t, 1>& positions, int64_t limit);
void expect_turn(int64_t turn, int64_t columns);
void expect_rotated(int64_t half, int64_t head_dim);  // a head has two halves of so many channels
void expect_slots(const Array<const int64_t, 1>& slots, int64_t pages);
// The rows' sequences and positions hold, and every page that they see through this window exists.
void expect_rows(const AttentionRows& a, int64_t rows, int64_t sequences, int64_t page_count, int64_t window);

}  // namespace edge

// The experts of a layer in one call: y = sum of share * down(gate(gate_up(x))) over the experts of a row (+ add).
//
// Rows are rounded once, into the places that their experts read. Experts are taken in waves, whose results between their
// linears stay in a cache. A worker of a wave's second product has channels of its own and takes the experts in their order,
// so what is added to a row is added in that order; a product gives a row the bits that it has alone (linear.h, blocks.h).
#pragma once

#include "blocks.h"
#include "linear.h"
#include "table_experts.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int64_t kItemPanels = 4;  // of the results, that a worker takes at a time
static_assert(kItemPanels % Int8Dot::kPanels == 0 && kItemPanels % 2 == 0, "whole groups of panels");

// A linear of one expert, and its rows as the linear takes them.
struct ExpertProduct {
  LinearPlan plan;       // of INT8
  BlockLinearArgs args;  // of blocks
  BlockPanels blocks;
  int8_t* activations;
  float* scales;         // [rows], of INT8
  int64_t stride, rows;  // stride: bytes of a row of activations
  bool in_blocks() const { return blocks.data != nullptr; }
  bool gated() const { return args.gate.kind != kNoGate; }
  int64_t panels() const { return in_blocks() ? blocks.panels() / (gated() ? 2 : 1) : plan.weight.panels(); }  // of the results
  const void* panel(int64_t number) const { return in_blocks() ? blocks.panel(number) : plan.weight.panel(number); }
};

// `rows` rows meet `linear`, with a `gate` its halves each other.
static ExpertProduct expert_product(const ExpertLinear& linear, Gate gate, int64_t rows) {
  ExpertProduct made = {};
  made.rows = rows;
  made.args.gate = made.plan.gate = gate;
  if (linear.in_blocks()) {
    made.blocks = linear.blocks;
    made.args.columns = linear.blocks.columns;
    made.args.bias = linear.bias;
    made.args.rows = rows;
    made.stride = BlockRow{linear.blocks.groups()}.stride();
    return made;
  }
  LinearPlan& plan = made.plan;
  plan.weight = linear.int8;
  if (gate.kind != kNoGate) split_halves(plan, linear.int8);
  plan.rows = rows;
  plan.stride = stride_for(plan);
  made.stride = plan.stride * static_cast<int64_t>(sizeof(Activation));
  return made;
}

EDGE_INLINE int64_t activation_bytes(const ExpertProduct& of) {
  return ceil_div(of.rows, int64_t{Int8Dot::kRowGroup}) * Int8Dot::kRowGroup * of.stride;
}

EDGE_INLINE void set_activations(ExpertProduct& of, int8_t* activations, float* scales) {
  of.activations = activations;
  of.scales = scales;
  of.plan.activations = reinterpret_cast<const Activation*>(activations);
  of.plan.row_scales = scales;
}

// Where a row goes: it is row `index` of a product.
struct ExpertPlace {
  const ExpertProduct* product;
  int64_t index;
};

// A row x [columns] into `count` places, one or more; `ready` [columns] is room for it. False: a value is not finite.
static bool place_expert_row(const float* x, int64_t columns, int64_t turn, const ExpertPlace* places, int64_t count, float* ready) {
  const auto place = [&](int64_t i) { return places[i].product->activations + places[i].index * places[i].product->stride; };
  if (places[0].product->in_blocks()) {
    BlockLinearArgs row = {};
    row.x = x;
    row.columns = columns;
    if (!prepare_block_row(row, 0, place(0))) return false;
    for (int64_t i = 1; i < count; ++i) memcpy(place(i), place(0), static_cast<size_t>(places[0].product->stride));
    return true;
  }
  QuantizeInput input = {};
  input.columns = columns;
  input.turn = turn;
  const ReadyRow made = make_ready(input, PlainRow{x}, ready);
  float scale;
  quantize_ready(input, ready, made.most, &scale, [&](int64_t c, i32x16 q) EDGE_INLINE_LAMBDA {
    for (int64_t i = 0; i < count; ++i) {
      const ExpertProduct& to = *places[i].product;
      Int8Dot::store(Int8Dot::place(reinterpret_cast<Activation*>(to.activations), to.plan.stride, places[i].index, c), q);
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    const ExpertProduct& to = *places[i].product;
    to.scales[places[i].index] = scale;
    complete_row(to.plan, reinterpret_cast<Activation*>(to.activations), places[i].index);
  }
  return made.finite;
}

// Rows begin..end of `of` times kItemPanels panels of results from `first` on, or what is left of them, into `out`, whose row 0
// and channel 0 it is, rows `width` apart. `next_bytes`: to the panels that this worker probably takes next; 0: unknown.
static void expert_item(const ExpertProduct& of, int64_t begin, int64_t end, int64_t first, float* out, int64_t width,
                        int64_t next_bytes, int worker, ThreadPool& pool) {
  const int64_t last = min_i64(first + kItemPanels, of.panels());
  if (of.in_blocks()) {
    constexpr int64_t kFewRows = 32;
    BlockLinearArgs args = of.args;
    args.out = out;
    args.channels = of.gated() ? 2 * width : width;
    const BlockPlan plan = {args, of.blocks, {of.blocks.groups()}, of.activations, of.stride, 0};
    const bool pairs = of.rows > kFewRows && BlockLanes::kPairRows > 0;
    const int64_t step = pairs && !of.gated() ? 2 : 1;
    for (int64_t p = first; p < last; p += step) {
      if (pairs) block_item(plan, begin, end, p / step);
      else block_panel(plan, begin, end, p);
    }
    return;
  }
  LinearPlan plan = of.plan;
  plan.out = out;
  plan.width = width;
  plan.next_bytes = next_bytes;
  if (plan.rows > stream_rows(plan.weight)) {
    for (int64_t p = first; p < last; p += Int8Dot::kPanels) block_item(plan, begin, end, p / Int8Dot::kPanels, worker, pool);
    return;
  }
  for (int64_t p = first; p < last; ++p) {
    if (plan.weight.codes == nullptr) linear_rows<Int8Dot::kStreamRows, 1>(plan, begin, end, tile_panels<1>(plan, p));
    else linear_rows<Int8Dot::kStreamRows, 1>(plan, begin, end, code_panels(plan, p));
  }
}

// Rows of an expert that stay in a core's L2 beside panels.
struct ExpertUnit {
  int64_t expert, begin, end;
};

// What all of a call's work knows.
struct ExpertCall {
  const ExpertsArgs& args;
  ExpertProduct *gate_up, *down;  // [experts]
  const int64_t* first;           // [experts + 1]: places of the rows of every expert, one after the other
  float *activated, *sums;        // [places of a wave, width], [items, M, kItemChannels]
};

// The units of experts begin..end into `units`; their number is given.
static int64_t cut_units(const ExpertCall& call, int64_t begin, int64_t end, ExpertUnit* units) {
  constexpr int64_t kLeastRows = 132, kBlockBytes = 512 << 10, kWhole = 12;  // whole tiles
  int64_t count = 0;
  for (int64_t e = begin; e < end; ++e) {
    const ExpertProduct& product = call.gate_up[e];
    const int64_t most = max_i64(kLeastRows, kBlockBytes / product.stride);
    const int64_t rows = ceil_div(ceil_div(product.rows, ceil_div(product.rows, most)), kWhole) * kWhole;
    for (int64_t m = 0; m < product.rows; m += rows) units[count++] = {e, m, min_i64(m + rows, product.rows)};
  }
  return count;
}

EDGE_INLINE int64_t bytes_between(const void* from, const void* to) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) - reinterpret_cast<uintptr_t>(from));
}

static int expert_workers(const ExpertCall& call, int64_t places, int64_t channels, const ThreadPool& pool) {
  constexpr int64_t kProductsPerWorker = 128 << 10;  // some microseconds: less is not worth waking a core
  return static_cast<int>(min_i64(pool.threads(), 1 + places * channels * call.args.columns / kProductsPerWorker));
}

// The first product of experts begin..end and its gate, into `activated`.
static void run_gate_up(const ExpertCall& call, int64_t begin, int64_t end, const ExpertUnit* units, int64_t unit_count,
                        ThreadPool& pool) {
  const int64_t width = call.args.width, items = ceil_div(call.gate_up[begin].panels(), kItemPanels);
  const int workers = expert_workers(call, call.first[end] - call.first[begin], 2 * width, pool);
  const auto panels_of = [&](int64_t item) { return call.gate_up[units[item / items].expert].panel(item % items * kItemPanels); };
  pool.for_blocks(
      unit_count * items, 1,
      [&](int64_t from, int64_t to, int worker) {
        for (int64_t item = from; item < to; ++item) {
          const ExpertUnit& unit = units[item / items];
          const int64_t next = item + workers;
          const int64_t ahead = next < unit_count * items ? bytes_between(panels_of(item), panels_of(next)) : 0;
          float* out = call.activated + (call.first[unit.expert] - call.first[begin]) * width;
          expert_item(call.gate_up[unit.expert], unit.begin, unit.end, item % items * kItemPanels, out, width, ahead, worker, pool);
        }
      },
      workers);
}

// The results of the first product as the second one takes them. False: one is not finite.
static bool place_activated(const ExpertCall& call, int64_t begin, int64_t end, ThreadPool& pool) {
  constexpr int64_t kGrainElements = 16384;  // a few microseconds
  const int64_t width = call.args.width, start = call.first[begin], turn = call.args.experts[begin].down->turn;
  int refused = 0;
  pool.for_blocks(call.first[end] - start, max_i64(1, kGrainElements / width), [&](int64_t from, int64_t to, int worker) {
    auto* ready = static_cast<float*>(pool.scratch(worker, static_cast<size_t>(width) * sizeof(float)));
    int64_t e = begin;
    for (int64_t place = start + from; place < start + to; ++place) {
      while (place >= call.first[e + 1]) ++e;
      const ExpertPlace at = {call.down + e, place - call.first[e]};
      if (!place_expert_row(call.activated + (place - start) * width, width, turn, &at, 1, ready))
        __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
    }
  });
  return refused == 0;
}

constexpr int64_t kItemChannels = kItemPanels * kTileChannels;

// The sums of all rows for the channels of `item`, [M, kItemChannels]: rows side by side share no cache sets.
EDGE_INLINE float* sums_of_item(const ExpertCall& call, int64_t item) { return call.sums + item * call.args.rows * kItemChannels; }

// sums[row] += share * product for rows begin..end of an expert, `product` [end - begin, kItemChannels].
static void add_shares(const ExpertRows& expert, int64_t begin, int64_t end, const float* product, float* sums) {
  for (int64_t m = begin; m < end; ++m, product += kItemChannels) {
    float* sum = sums + expert.rows[m] * kItemChannels;
    const f32x16 share = broadcast(expert.shares[m]);
    for (int64_t i = 0; i < kItemChannels; i += kLanes) store(sum + i, add(load(sum + i), mul(load(product + i), share)));
  }
}

// The sums of `item` (+ add) into the results.
static void end_sums(const ExpertCall& call, int64_t item) {
  const ExpertsArgs& a = call.args;
  const int64_t channel = item * kItemChannels, lanes = min_i64(kItemChannels, a.columns - channel);
  const float* sum = sums_of_item(call, item);
  for (int64_t m = 0; m < a.rows; ++m, sum += kItemChannels) {
    const int64_t at = m * a.columns + channel;
    each_vector(lanes, [&](int64_t i, int some) EDGE_INLINE_LAMBDA {
      const f32x16 y = load(sum + i);
      store_some(a.out + at + i, a.add == nullptr ? y : add(load_some(a.add + at + i, some), y), some);
    });
  }
}

EDGE_INLINE void begin_sums(const ExpertCall& call, int64_t item) {
  memset(sums_of_item(call, item), 0, static_cast<size_t>(call.args.rows * kItemChannels) * sizeof(float));
}

// The second product of experts begin..end, and its sums.
static void run_down(const ExpertCall& call, int64_t begin, int64_t end, const ExpertUnit* units, int64_t unit_count,
                     ThreadPool& pool) {
  const ExpertsArgs& a = call.args;
  const int workers = expert_workers(call, call.first[end] - call.first[begin], a.width, pool);
  int64_t most = 0;
  for (int64_t i = 0; i < unit_count; ++i) most = max_i64(most, units[i].end - units[i].begin);
  auto* products = static_cast<float*>(pool.shared_scratch(6, static_cast<size_t>(workers * most * kItemChannels) * sizeof(float)));
  pool.for_blocks(
      ceil_div(a.columns, kItemChannels), 1,
      [&](int64_t from, int64_t to, int worker) {
        float* product = products + worker * most * kItemChannels;
        for (int64_t item = from; item < to; ++item) {
          const int64_t panel = item * kItemPanels;
          if (begin == 0) begin_sums(call, item);
          for (int64_t i = 0; i < unit_count; ++i) {
            const ExpertUnit& unit = units[i];
            const ExpertProduct& down = call.down[unit.expert];
            const int64_t ahead = i + 1 < unit_count ? bytes_between(down.panel(panel), call.down[units[i + 1].expert].panel(panel)) : 0;
            float* out = product - unit.begin * kItemChannels - panel * kTileChannels;
            expert_item(down, unit.begin, unit.end, panel, out, kItemChannels, ahead, worker, pool);
            add_shares(a.experts[unit.expert], unit.begin, unit.end, product, sums_of_item(call, item));
          }
          if (end == a.expert_count) end_sums(call, item);
        }
      },
      workers);
}

// Memory for a call's lists: `count` of T, 64-byte aligned.
template <class T>
EDGE_INLINE T* take_room(int8_t*& memory, int64_t count) {
  auto* found = reinterpret_cast<T*>(memory);
  memory += ceil_div(count * static_cast<int64_t>(sizeof(T)), 64) * 64;
  return found;
}

// Products of all experts whose activations lie one after the other from `memory` on, and their scales.
static void lay_out_products(const ExpertCall& call, ExpertProduct* products, int64_t begin, int64_t end, int slot, ThreadPool& pool) {
  int64_t bytes = 0;
  for (int64_t e = begin; e < end; ++e) bytes += activation_bytes(products[e]);
  const int64_t places = call.first[end] - call.first[begin];
  auto* memory = static_cast<int8_t*>(pool.shared_scratch(slot, static_cast<size_t>(bytes) + static_cast<size_t>(places) * sizeof(float)));
  auto* scales = reinterpret_cast<float*>(memory + bytes);
  for (int64_t e = begin; e < end; ++e) {
    set_activations(products[e], memory, scales + call.first[e] - call.first[begin]);
    memory += activation_bytes(products[e]);
  }
}

// All rows into the places of their experts. False: a value is not finite.
static bool place_rows(const ExpertCall& call, const int64_t* starts, const ExpertPlace* places, ThreadPool& pool) {
  constexpr int64_t kGrainElements = 16384;
  const ExpertsArgs& a = call.args;
  int refused = 0;
  pool.for_blocks(a.rows, max_i64(1, kGrainElements / a.columns), [&](int64_t begin, int64_t end, int worker) {
    auto* ready = static_cast<float*>(pool.scratch(worker, static_cast<size_t>(a.columns) * sizeof(float)));
    for (int64_t m = begin; m < end; ++m) {
      const int64_t count = starts[m + 1] - starts[m];
      if (count != 0 && !place_expert_row(a.x + m * a.columns, a.columns, a.experts[0].gate_up->turn, places + starts[m], count, ready))
        __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
    }
  });
  return refused == 0;
}

// Where every row goes: places[starts[m] .. starts[m + 1]].
static void list_places(const ExpertCall& call, int64_t* starts, ExpertPlace* places) {
  const ExpertsArgs& a = call.args;
  memset(starts, 0, static_cast<size_t>(a.rows + 2) * sizeof(int64_t));
  for (int64_t e = 0; e < a.expert_count; ++e)
    for (int64_t i = 0; i < a.experts[e].count; ++i) ++starts[a.experts[e].rows[i] + 2];
  for (int64_t m = 0; m < a.rows; ++m) starts[m + 2] += starts[m + 1];
  for (int64_t e = 0; e < a.expert_count; ++e)  // starts[m + 1] runs from the first place of a row to behind its last
    for (int64_t i = 0; i < a.experts[e].count; ++i) places[starts[a.experts[e].rows[i] + 1]++] = {call.gate_up + e, i};
}

static bool experts(const ExpertsArgs& a, ThreadPool& pool) {
  constexpr int64_t kWaveRows = 1024;  // places whose results between the linears stay in a cache
  const int64_t count = a.expert_count;
  int64_t total = 0;
  for (int64_t e = 0; e < count; ++e) total += a.experts[e].count;
  const auto bytes = [](int64_t of, size_t size) { return ceil_div(of * static_cast<int64_t>(size), 64) * 64; };
  auto* memory = static_cast<int8_t*>(pool.shared_scratch(
      4, static_cast<size_t>(2 * bytes(count, sizeof(ExpertProduct)) + bytes(count + 1, 8) + bytes(a.rows + 2, 8) +
                             bytes(total, sizeof(ExpertPlace)) + bytes(count + total, sizeof(ExpertUnit)))));
  auto* gate_up = take_room<ExpertProduct>(memory, count);
  auto* down = take_room<ExpertProduct>(memory, count);
  auto* first = take_room<int64_t>(memory, count + 1);
  auto* starts = take_room<int64_t>(memory, a.rows + 2);
  auto* places = take_room<ExpertPlace>(memory, total);
  auto* units = take_room<ExpertUnit>(memory, count + total);
  first[0] = 0;
  for (int64_t e = 0; e < count; ++e) {
    gate_up[e] = expert_product(*a.experts[e].gate_up, a.gate, a.experts[e].count);
    down[e] = expert_product(*a.experts[e].down, {kNoGate, 0.0f}, a.experts[e].count);
    first[e + 1] = first[e] + a.experts[e].count;
  }
  ExpertCall call = {a, gate_up, down, first, nullptr, nullptr};
  const int64_t items = ceil_div(a.columns, kItemChannels);
  call.sums = static_cast<float*>(pool.shared_scratch(1, static_cast<size_t>(items * a.rows * kItemChannels) * sizeof(float)));
  for (int64_t item = 0; count == 0 && item < items; ++item) {
    begin_sums(call, item);
    end_sums(call, item);
  }
  if (count == 0) return true;
  lay_out_products(call, gate_up, 0, count, 0, pool);
  list_places(call, starts, places);
  if (!place_rows(call, starts, places, pool)) return false;
  for (int64_t begin = 0, end; begin < count; begin = end) {
    for (end = begin + 1; end < count && first[end + 1] - first[begin] <= kWaveRows;) ++end;
    const int64_t some = first[end] - first[begin];
    call.activated = static_cast<float*>(pool.shared_scratch(2, static_cast<size_t>(some * a.width) * sizeof(float)));
    lay_out_products(call, down, begin, end, 3, pool);
    const int64_t unit_count = cut_units(call, begin, end, units);
    run_gate_up(call, begin, end, units, unit_count, pool);
    if (!place_activated(call, begin, end, pool)) return false;
    run_down(call, begin, end, units, unit_count, pool);
  }
  return true;
}

constexpr ExpertKernels expert_kernels = {&experts};

}  // namespace EDGE_VARIANT
}  // namespace edge

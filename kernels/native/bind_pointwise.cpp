// Norms, rope, gates, activations: arguments checked, rows shared out over the pool.
#include <algorithm>
#include <cmath>

#include "calls.h"

namespace edge {
namespace {

constexpr int64_t kValuesPerBlock = 8192;  // a microsecond of work or more; less is not worth waking a worker

// rows(begin, end) over 0..count, each row `values` long.
template <class Rows>
void share_rows(ThreadPool& pool, int64_t count, int64_t values, Rows&& rows) {
  const int64_t grain = std::max<int64_t>(1, kValuesPerBlock / std::max<int64_t>(1, values));
  pool.for_blocks(count, grain, [&](int64_t begin, int64_t end, int) { rows(begin, end); });
}

void norm(ThreadPool& pool, const NormArgs& args, int64_t rows) {
  const auto kernel = kernels().pointwise->norm;
  share_rows(pool, rows, args.heads * args.dim, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

}  // namespace

NormCall::NormCall(nb::handle x_arg, nb::handle gain_arg, float eps, nb::handle add_arg) {
  const auto x = strided<const float, 2>(x_arg, "x");
  const int64_t width = x.shape[1];
  rows = x.shape[0];
  const auto gain = read<float, 1>(gain_arg, "gain");
  expect_shape(gain, "gain", {width});
  args = {x.data, x.stride[0], 0, nullptr, width, 0, 1, width, gain.data, eps};
  if (add_arg.is_none()) return;
  const auto add = strided<const float, 2>(add_arg, "add");
  expect_shape(add, "add", {rows, width});
  args.add = add.data;
  args.add_row_stride = add.stride[0];
}

nb::object NormCall::write_to(nb::handle out_arg) {
  if (out_arg.is_none()) {
    nb::object out = new_array<float, 2>({rows, args.dim});
    args.out = data_of<float, 2>(out);
    return out;
  }
  const auto out = strided<float, 2>(out_arg, "out");
  expect_shape(out, "out", {rows, args.dim});
  args.out = out.data;
  args.out_row_stride = out.stride[0];
  return nb::borrow<nb::object>(out_arg);
}

LayerNormCall::LayerNormCall(nb::handle x_arg, nb::handle gain_arg, nb::handle bias_arg, float eps, nb::handle add_arg)
    : NormCall(x_arg, gain_arg, eps, add_arg) {
  const auto bias = read_optional<float, 1>(bias_arg, "bias");
  if (bias) expect_shape(bias, "bias", {args.dim});
  args.bias = bias.data;
  args.centred = true;
}

void NormCall::run(int64_t count, ThreadPool& pool) const { norm(pool, args, count); }

namespace {

constexpr bool has_limit(int kind) { return kind == kClampedSilu || kind == kSoftCap; }

Gate activation_of(int kind, double limit) {
  if (kind < kNoGate || kind >= kGateKinds) throw nb::value_error(("no activation has the number `" + std::to_string(kind) + "`").c_str());
  const auto most = static_cast<float>(limit);
  if (has_limit(kind) && !(most > 0.0f && std::isfinite(most)))
    throw nb::value_error(("`limit` must be positive; got `" + std::to_string(limit) + "`").c_str());
  return {static_cast<GateKind>(kind), most};
}

}  // namespace

Gate gate_of(int kind, double limit) {
  const Gate gate = activation_of(kind, limit);
  if (kind == kSoftCap) throw nb::value_error("a soft cap is no gate");
  return gate;
}

ActivateCall::ActivateCall(nb::handle x_arg, int kind, double limit) {
  const auto x = read<float, 2>(x_arg, "x");
  rows = x.shape[0];
  args = {x.data, nullptr, x.shape[1], activation_of(kind, limit)};
  if (kind == kNoGate || kind == kClampedSilu) throw nb::value_error("`kind` must be an activation without an up half");
}

nb::object ActivateCall::write_to(nb::handle out_arg) {
  nb::object out = output<float, 2>(out_arg, "out", {rows, args.width});
  args.out = data_of<float, 2>(out);
  return out;
}

void ActivateCall::run(int64_t count, ThreadPool& pool) const {
  const auto kernel = kernels().pointwise->activate;
  share_rows(pool, count, 4 * args.width, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

GateCall::GateCall(nb::handle gate_up_arg, int gate, double limit) {
  const auto gate_up = read<float, 2>(gate_up_arg, "gate_up");
  if (gate_up.shape[1] % 2 != 0)
    throw nb::value_error(("`gate_up` must have an even width; got `" + std::to_string(gate_up.shape[1]) + "`").c_str());
  rows = gate_up.shape[0];
  args = {gate_up.data, nullptr, gate_up.shape[1] / 2, gate_of(gate, limit)};
  if (args.gate.kind == kNoGate) throw nb::value_error("`gate` must be an activation");
}

nb::object GateCall::write_to(nb::handle out_arg) {
  nb::object out = output<float, 2>(out_arg, "out", {rows, args.width});
  args.out = data_of<float, 2>(out);
  return out;
}

void expect_turn(int64_t turn, int64_t columns) {
  if (turn == 0) return;
  if (turn < 2 || turn > kMaxTurn || (turn & (turn - 1)) != 0 || columns % turn != 0)
    throw nb::value_error(("`turn` must be 0, or a power of two from 2 to " + std::to_string(kMaxTurn) +
                           " that divides " + std::to_string(columns) +
                           " channels; got `" + std::to_string(turn) + "`")
                              .c_str());
}

void expect_rotated(int64_t half, int64_t head_dim) {
  if (2 * half > head_dim)
    throw nb::value_error(("`cos` must have at most half of a head's `" + std::to_string(head_dim) + "` channels; got `" +
                           std::to_string(half) + "`")
                              .c_str());
}

TurnCall::TurnCall(nb::handle x_arg, int64_t block) {
  const auto x = write<float, 2>(x_arg, "x");
  expect_turn(block, x.shape[1]);
  args = {x.data, x.shape[1], block};
  rows = x.shape[0];
}

void TurnCall::run(int64_t count, ThreadPool& pool) const {
  const auto kernel = kernels().pointwise->turn;
  share_rows(pool, count, args.columns, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

void GateCall::run(int64_t count, ThreadPool& pool) const {
  const auto kernel = kernels().pointwise->gate;
  share_rows(pool, count, 4 * args.width, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

namespace {

// A call on all of its rows.
template <class Call>
nb::object run_whole(Call& call, ThreadPool& pool, nb::handle out_arg) {
  nb::object out = call.write_to(out_arg);
  KernelCall held(pool);
  call.run(call.rows, pool);
  return out;
}

nb::object rms_norm(nb::handle x, nb::handle gain, float eps, ThreadPool& pool, nb::handle out, nb::handle add) {
  NormCall call(x, gain, eps, add);
  return run_whole(call, pool, out);
}

nb::object layer_norm(nb::handle x, nb::handle gain, nb::handle bias, float eps, ThreadPool& pool, nb::handle out, nb::handle add) {
  LayerNormCall call(x, gain, bias, eps, add);
  return run_whole(call, pool, out);
}

void head_norm(nb::handle x_arg, nb::handle gain_arg, float eps, ThreadPool& pool) {
  const auto x = strided<float, 3>(x_arg, "x");
  const auto gain = read<float, 1>(gain_arg, "gain");
  expect_shape(gain, "gain", {x.shape[2]});
  const NormArgs args = {x.data,      x.stride[0], x.stride[1], x.data,    x.stride[0],
                         x.stride[1], x.shape[1],  x.shape[2],  gain.data, eps};
  KernelCall call(pool);
  norm(pool, args, x.shape[0]);
}

void rope(nb::handle x_arg, nb::handle positions_arg, nb::handle cos_arg, nb::handle sin_arg, ThreadPool& pool) {
  const auto x = strided<float, 3>(x_arg, "x");
  const auto positions = read<int32_t, 1>(positions_arg, "positions");
  expect_shape(positions, "positions", {x.shape[0]});
  const auto cos = read<float, 2>(cos_arg, "cos");
  const int64_t half = cos.shape[1];
  expect_rotated(half, x.shape[2]);
  const auto sin = read<float, 2>(sin_arg, "sin");
  expect_shape(sin, "sin", {cos.shape[0], half});
  for (int64_t m = 0; m < x.shape[0]; ++m)
    if (positions.data[m] < 0 || positions.data[m] >= cos.shape[0])
      throw nb::value_error(("`positions` must be in 0.." + std::to_string(cos.shape[0] - 1) + ", the rows of `cos`; got `" +
                             std::to_string(positions.data[m]) + "`")
                                .c_str());
  const RopeArgs args = {x.data, x.stride[0], x.stride[1], x.shape[1], half, positions.data, cos.data, sin.data};
  KernelCall call(pool);
  const auto kernel = kernels().pointwise->rope;
  share_rows(pool, x.shape[0], args.heads * 2 * half, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

nb::object gated(nb::handle gate_up, int gate, double limit, ThreadPool& pool, nb::handle out) {
  GateCall call(gate_up, gate, limit);
  return run_whole(call, pool, out);
}

nb::object activate(nb::handle x, int kind, double limit, ThreadPool& pool, nb::handle out) {
  ActivateCall call(x, kind, limit);
  return run_whole(call, pool, out);
}

void turn(nb::handle x, int64_t block, ThreadPool& pool) {
  const TurnCall call(x, block);
  const KernelCall held(pool);
  call.run(call.rows, pool);
}

}  // namespace

void bind_pointwise(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg number, team;
  module.def("rms_norm", &rms_norm, any, any, number, team, any, any);
  module.def("layer_norm", &layer_norm, any, any, any, number, team, any, any);
  module.def("head_norm", &head_norm, nb::arg("x"), nb::arg("gain"), nb::arg("eps"), nb::arg("pool"));
  module.def("rope", &rope, nb::arg("x"), nb::arg("positions"), nb::arg("cos"), nb::arg("sin"), nb::arg("pool"));
  module.def("turn", &turn, nb::arg("x"), nb::arg("block"), nb::arg("pool"));
  module.def("gated", &gated, any, number, number, team, any);
  module.def("activate", &activate, any, number, number, team, any);
}

}  // namespace edge

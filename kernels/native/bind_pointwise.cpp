// rms_norm, head_norm, rope, swiglu: arguments checked, rows shared out over the pool.
#include <algorithm>

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
  const auto kernel = kernels().pointwise.norm;
  share_rows(pool, rows, args.heads * args.dim, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

}  // namespace

NormCall::NormCall(nb::handle x_arg, nb::handle gain_arg, float eps) {
  const auto x = strided<const float, 2>(x_arg, "x");
  const int64_t width = x.shape[1];
  rows = x.shape[0];
  const auto gain = read<float, 1>(gain_arg, "gain");
  expect_shape(gain, "gain", {width});
  args = {x.data, x.stride[0], 0, nullptr, width, 0, 1, width, gain.data, eps};
}

nb::object NormCall::write_to(nb::handle out_arg) {
  nb::object out = output<float, 2>(out_arg, "out", {rows, args.dim});
  args.out = data_of<float, 2>(out);
  return out;
}

void NormCall::run(int64_t count, ThreadPool& pool) const { norm(pool, args, count); }

SwigluCall::SwigluCall(nb::handle gate_up_arg) {
  const auto gate_up = read<float, 2>(gate_up_arg, "gate_up");
  if (gate_up.shape[1] % 2 != 0)
    throw nb::value_error(("`gate_up` must have an even width; got `" + std::to_string(gate_up.shape[1]) + "`").c_str());
  rows = gate_up.shape[0];
  args = {gate_up.data, nullptr, gate_up.shape[1] / 2};
}

nb::object SwigluCall::write_to(nb::handle out_arg) {
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

TurnCall::TurnCall(nb::handle x_arg, int64_t block) {
  const auto x = write<float, 2>(x_arg, "x");
  expect_turn(block, x.shape[1]);
  args = {x.data, x.shape[1], block};
  rows = x.shape[0];
}

void TurnCall::run(int64_t count, ThreadPool& pool) const {
  const auto kernel = kernels().pointwise.turn;
  share_rows(pool, count, args.columns, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

void SwigluCall::run(int64_t count, ThreadPool& pool) const {
  const auto kernel = kernels().pointwise.swiglu;
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

nb::object rms_norm(nb::handle x, nb::handle gain, float eps, ThreadPool& pool, nb::handle out) {
  NormCall call(x, gain, eps);
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
  const int64_t half = x.shape[2] / 2;
  if (x.shape[2] % 2 != 0)
    throw nb::value_error(("`x` must have an even head size; got `" + std::to_string(x.shape[2]) + "`").c_str());
  const auto positions = read<int32_t, 1>(positions_arg, "positions");
  expect_shape(positions, "positions", {x.shape[0]});
  const auto cos = read<float, 2>(cos_arg, "cos");
  expect_shape(cos, "cos", {-1, half});
  const auto sin = read<float, 2>(sin_arg, "sin");
  expect_shape(sin, "sin", {cos.shape[0], half});
  for (int64_t m = 0; m < x.shape[0]; ++m)
    if (positions.data[m] < 0 || positions.data[m] >= cos.shape[0])
      throw nb::value_error(("`positions` must be in 0.." + std::to_string(cos.shape[0] - 1) + ", the rows of `cos`; got `" +
                             std::to_string(positions.data[m]) + "`")
                                .c_str());
  const RopeArgs args = {x.data, x.stride[0], x.stride[1], x.shape[1], half, positions.data, cos.data, sin.data};
  KernelCall call(pool);
  const auto kernel = kernels().pointwise.rope;
  share_rows(pool, x.shape[0], args.heads * 2 * half, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
}

nb::object swiglu(nb::handle gate_up, ThreadPool& pool, nb::handle out) {
  SwigluCall call(gate_up);
  return run_whole(call, pool, out);
}

void turn(nb::handle x, int64_t block, ThreadPool& pool) {
  const TurnCall call(x, block);
  const KernelCall held(pool);
  call.run(call.rows, pool);
}

}  // namespace

void bind_pointwise(nb::module_& module) {
  module.def("rms_norm", &rms_norm, nb::arg("x"), nb::arg("gain"), nb::arg("eps"), nb::arg("pool"),
             nb::arg("out") = nb::none());
  module.def("head_norm", &head_norm, nb::arg("x"), nb::arg("gain"), nb::arg("eps"), nb::arg("pool"));
  module.def("rope", &rope, nb::arg("x"), nb::arg("positions"), nb::arg("cos"), nb::arg("sin"), nb::arg("pool"));
  module.def("turn", &turn, nb::arg("x"), nb::arg("block"), nb::arg("pool"));
  module.def("swiglu", &swiglu, nb::arg("gate_up"), nb::arg("pool"), nb::arg("out") = nb::none());
}

}  // namespace edge

// Bindings of half_linear.h: arguments are checked here, once, and kernels trust them.
#include "calls.h"

namespace edge {

HalfCall::HalfCall(nb::handle x_arg, nb::handle weight_arg, nb::handle bias_arg, nb::handle add_arg, nb::handle gain_arg,
                   double eps, int gate, double limit) {
  const auto weight = read<half, 2>(weight_arg, "weight");
  const int64_t columns = weight.shape[0], channels = weight.shape[1];
  const auto x = read<float, 2>(x_arg, "x");
  expect_shape(x, "x", {-1, columns});
  rows = x.shape[0];
  const auto bias = read_optional<float, 1>(bias_arg, "bias");
  if (bias) expect_shape(bias, "bias", {channels});
  const auto gain = read_optional<float, 1>(gain_arg, "gain");
  if (gain) expect_shape(gain, "gain", {columns});
  const auto add = read_optional<float, 2>(add_arg, "add");
  if (add) expect_shape(add, "add", {rows, channels});
  const Gate meets = gate_of(gate, limit);
  if (meets.kind != kNoGate && !add_arg.is_none()) throw nb::value_error("`gate` takes no `add`");
  if (meets.kind != kNoGate && channels % 2 != 0)
    throw nb::value_error(("`gate` takes an even number of channels; got `" + std::to_string(channels) + "`").c_str());
  args = {x.data,    rows,      columns,
          channels,  reinterpret_cast<const uint16_t*>(weight.data),
          bias.data, gain.data, static_cast<float>(eps),
          add.data,  nullptr,   meets};
}

nb::object HalfCall::write_to(nb::handle out_arg) {
  nb::object array = output<float, 2>(out_arg, "out", {rows, width()});
  args.out = data_of<float, 2>(array);
  return array;
}

bool HalfCall::run(int64_t count, ThreadPool& pool) const {
  HalfLinearArgs these = args;
  these.rows = count;
  return kernels().half->linear(these, pool);
}

namespace {

nb::object half_linear(nb::handle x, nb::handle weight, ThreadPool& pool, nb::handle bias, nb::handle add, nb::handle gain,
                       double eps, int gate, double limit, nb::handle out_arg) {
  HalfCall call(x, weight, bias, add, gain, eps, gate, limit);
  nb::object out = call.write_to(out_arg);
  bool finite;
  {
    const KernelCall held(pool);
    finite = call.run(call.rows, pool);
  }
  if (!finite) throw nb::value_error(kNotFinite);
  return out;
}

int64_t float_operations(int64_t repeats, ThreadPool& pool) {
  const KernelCall call(pool);
  return kernels().half->float_operations(repeats, pool);
}

}  // namespace

void bind_half(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg number, pool;
  module.def("half_linear", &half_linear, any, any, pool, any, any, any, number, number, number, any);
  module.def("float_operations", &float_operations);
}

}  // namespace edge

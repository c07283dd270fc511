// Bindings of recurrent.h: arguments checked, rows or tiles of states shared out over the pool.
#include <algorithm>

#include "bind.h"

namespace edge {
namespace {

constexpr int64_t kValuesPerBlock = 8192;  // a microsecond of work or more; less is not worth waking a worker

void refuse(const std::string& problem) { throw nb::value_error(problem.c_str()); }

// Runs [R, 4] that cover `rows` in order; none reads or writes a slot that another writes.
Array<const int32_t, 2> read_runs(nb::handle arg, int64_t rows, int64_t slots) {
  static_assert(sizeof(Run) == 4 * sizeof(int32_t));
  const auto runs = read<int32_t, 2>(arg, "runs");
  expect_shape(runs, "runs", {-1, 4});
  int64_t at = 0;
  for (int64_t r = 0; r < runs.shape[0]; ++r) {
    const int32_t* run = runs.data + 4 * r;
    if (run[0] != at || run[1] <= run[0]) refuse("`runs` must follow each other and have rows");
    if (std::min(run[2], run[3]) < 0 || std::max(run[2], run[3]) >= slots)
      refuse("`runs` must have slots below " + std::to_string(slots) + "; got `" + std::to_string(std::max(run[2], run[3])) + "`");
    for (int64_t o = 0; o < runs.shape[0]; ++o)
      if (o != r && (runs.data[4 * o + 3] == run[3] || runs.data[4 * o + 2] == run[3]))
        refuse("`runs` must not share a slot that one writes; `" + std::to_string(run[3]) + "` is shared");
    at = run[1];
  }
  if (at != rows) refuse("`runs` must cover " + std::to_string(rows) + " rows; they cover " + std::to_string(at));
  return runs;
}

template <class Rows>
void share_rows(ThreadPool& pool, int64_t count, int64_t values, Rows&& rows) {
  const int64_t grain = std::max<int64_t>(1, kValuesPerBlock / std::max<int64_t>(1, values));
  pool.for_blocks(count, grain, [&](int64_t begin, int64_t end, int) { rows(begin, end); });
}

nb::object short_convolution(nb::handle x_arg, nb::handle weight_arg, nb::handle bias_arg, nb::handle tails_arg, nb::handle runs_arg,
                             bool silu, ThreadPool& pool, nb::handle out_arg) {
  const auto x = strided<const float, 2>(x_arg, "x");
  const int64_t rows = x.shape[0], channels = x.shape[1];
  const auto weight = read<float, 2>(weight_arg, "weight");
  expect_shape(weight, "weight", {-1, channels});
  const int64_t taps = weight.shape[0];
  if (taps < 1 || taps > kMaxTaps) refuse("`weight` must have 1 to " + std::to_string(kMaxTaps) + " taps");
  const auto bias = read_optional<float, 1>(bias_arg, "bias");
  if (bias) expect_shape(bias, "bias", {channels});
  const auto tails = strided<float, 3>(tails_arg, "tails");
  expect_shape(tails, "tails", {-1, taps - 1, channels});
  if (taps > 2 && tails.stride[1] != channels) refuse("`tails` must have contiguous slots");
  const auto runs = read_runs(runs_arg, rows, tails.shape[0]);
  nb::object out = output<float, 2>(out_arg, "out", {rows, channels});
  const ConvolutionArgs args = {x.data, x.stride[0], channels, taps, weight.data, bias.data, tails.data, tails.stride[0],
                                reinterpret_cast<const Run*>(runs.data), runs.shape[0], silu, data_of<float, 2>(out)};
  const KernelCall call(pool);
  const auto& kernel = *kernels().recurrent;
  share_rows(pool, rows, taps * channels, [&](int64_t begin, int64_t end) { kernel.convolve(args, begin, end); });
  kernel.keep_tails(args);
  return out;
}

nb::object recurrent_rates(nb::handle steps_arg, nb::handle bias_arg, nb::handle rate_arg, nb::handle write_arg, float low, float high,
                           ThreadPool& pool) {
  const auto steps = strided<const float, 2>(steps_arg, "steps");
  const int64_t rows = steps.shape[0], heads = steps.shape[1];
  const auto bias = read<float, 1>(bias_arg, "bias"), rate = read<float, 1>(rate_arg, "rate");
  expect_shape(bias, "bias", {heads});
  expect_shape(rate, "rate", {heads});
  Array<const float, 2> write;
  if (!write_arg.is_none()) {
    write = strided<const float, 2>(write_arg, "write");
    expect_shape(write, "write", {rows, heads});
  }
  nb::object decay = new_array<float, 2>({rows, heads}), strength = new_array<float, 2>({rows, heads});
  const RatesArgs args = {steps.data, steps.stride[0], bias.data, rate.data, write.data, write.stride[0], low, high, heads,
                          data_of<float, 2>(decay), data_of<float, 2>(strength)};
  {
    const KernelCall call(pool);
    const auto kernel = kernels().recurrent->rates;
    share_rows(pool, rows, 8 * heads, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  }
  return nb::make_tuple(decay, strength);
}

nb::object recurrence(nb::handle q_arg, nb::handle k_arg, nb::handle v_arg, nb::handle decay_arg, nb::handle strength_arg,
                      nb::handle skip_arg, nb::handle states_arg, nb::handle runs_arg, bool corrects, ThreadPool& pool,
                      nb::handle out_arg) {
  const auto q = strided<const float, 3>(q_arg, "q"), k = strided<const float, 3>(k_arg, "k"), v = strided<const float, 3>(v_arg, "v");
  const int64_t rows = v.shape[0], heads = v.shape[1], values = v.shape[2], groups = k.shape[1], keys = k.shape[2];
  expect_shape(q, "q", {rows, groups, keys});
  expect_shape(k, "k", {rows, -1, -1});
  if (groups < 1 || heads % groups) refuse("`v` must have whole groups of heads for each head of `k`");
  if (keys < 1 || keys > kMaxKeys) refuse("`k` must have 1 to " + std::to_string(kMaxKeys) + " channels a head");
  if (values < 1 || values % 16) refuse("`v` must have a multiple of 16 channels a head; got `" + std::to_string(values) + "`");
  const auto decay = read<float, 2>(decay_arg, "decay"), strength = read<float, 2>(strength_arg, "strength");
  expect_shape(decay, "decay", {rows, heads});
  expect_shape(strength, "strength", {rows, heads});
  const auto skip = read_optional<float, 1>(skip_arg, "skip");
  if (skip) expect_shape(skip, "skip", {heads});
  const auto states = strided<float, 4>(states_arg, "states");
  expect_shape(states, "states", {-1, heads, keys, values});
  if ((keys > 1 && states.stride[2] != values) || (heads > 1 && states.stride[1] != keys * values))
    refuse("`states` must have contiguous slots");
  const auto runs = read_runs(runs_arg, rows, states.shape[0]);
  nb::object out = output<float, 3>(out_arg, "out", {rows, heads, values});
  const RecurrenceArgs args = {q.data, k.data, v.data, q.stride[0], q.stride[1], k.stride[0], k.stride[1], v.stride[0], v.stride[1],
                               decay.data, strength.data, skip.data, corrects, heads, groups, keys, values, states.data,
                               states.stride[0], reinterpret_cast<const Run*>(runs.data), data_of<float, 3>(out)};
  const KernelCall call(pool);
  const auto kernel = kernels().recurrent->recur;
  const int64_t count = runs.shape[0] * heads * args.tiles(), longest = std::max<int64_t>(1, rows / std::max<int64_t>(1, runs.shape[0]));
  const int64_t grain = std::max<int64_t>(1, 2 * kValuesPerBlock / (longest * keys * args.kTile));
  pool.for_blocks(count, grain, [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
  return out;
}

nb::object gated_norm(nb::handle x_arg, nb::handle gate_arg, nb::handle gain_arg, float eps, int64_t group, bool gate_first,
                      ThreadPool& pool, nb::handle out_arg) {
  const auto x = strided<const float, 2>(x_arg, "x"), gate = strided<const float, 2>(gate_arg, "gate");
  const int64_t rows = x.shape[0], width = x.shape[1];
  expect_shape(gate, "gate", {rows, width});
  const auto gain = read<float, 1>(gain_arg, "gain");
  if (group < 1 || width % group) refuse("`group` must divide " + std::to_string(width) + " channels; got `" + std::to_string(group) + "`");
  if (gain.shape[0] != group) expect_shape(gain, "gain", {width});
  nb::object out = output<float, 2>(out_arg, "out", {rows, width});
  const GatedNormArgs args = {x.data, gate.data, x.stride[0], gate.stride[0], width, group, gain.data,
                              gain.shape[0] == group ? 0 : group, eps, gate_first, data_of<float, 2>(out)};
  const KernelCall call(pool);
  const auto kernel = kernels().recurrent->gated_norm;
  share_rows(pool, rows, 4 * width, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return out;
}

nb::object sigmoid_gate(nb::handle x_arg, nb::handle gate_arg, ThreadPool& pool, nb::handle out_arg) {
  const auto x = read<float, 2>(x_arg, "x"), gate = read<float, 2>(gate_arg, "gate");
  expect_shape(gate, "gate", {x.shape[0], x.shape[1]});
  nb::object out = output<float, 2>(out_arg, "out", {x.shape[0], x.shape[1]});
  const SigmoidGateArgs args = {x.data, gate.data, x.shape[1], data_of<float, 2>(out)};
  const KernelCall call(pool);
  const auto kernel = kernels().recurrent->sigmoid_gate;
  share_rows(pool, x.shape[0], 4 * args.width, [&](int64_t begin, int64_t end) { kernel(args, begin, end); });
  return out;
}

}  // namespace

void bind_recurrent(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg number, team;
  module.def("short_convolution", &short_convolution, any, any, any, any, any, number, team, any);
  module.def("recurrent_rates", &recurrent_rates, any, any, any, any, number, number, team);
  module.def("recurrence", &recurrence, any, any, any, any, any, any, any, any, number, team, any);
  module.def("gated_norm", &gated_norm, any, any, any, number, number, number, team, any);
  module.def("sigmoid_gate", &sigmoid_gate, any, any, team, any);
}

}  // namespace edge

// Bindings of neurons.h: arguments are checked here, once, and kernels trust them.
#include <algorithm>

#include "bind.h"
#include "isa.h"
#include "table_neurons.h"

namespace edge {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// `neurons` are below `most`, and `width` bytes of `held` lie at each of `places`.
void read_neurons(NeuronsArgs& args, nb::handle neurons_arg, int64_t most, nb::handle held_arg, nb::handle places_arg) {
  const auto neurons = read<int64_t, 1>(neurons_arg, "neurons"), places = read<int64_t, 1>(places_arg, "places");
  const auto held = read<int8_t, 1>(held_arg, "held");
  expect_shape(places, "places", {neurons.shape[0]});
  for (int64_t a = 0; a < neurons.shape[0]; ++a) {
    if (neurons.data[a] < 0 || neurons.data[a] >= most)
      refuse("`neurons` must be in 0.." + std::to_string(most - 1) + "; got `" + std::to_string(neurons.data[a]) + "`");
    if (places.data[a] < 0 || places.data[a] > held.shape[0] - args.width)
      refuse("`places` must be in 0.." + std::to_string(held.shape[0] - args.width) + "; got `" + std::to_string(places.data[a]) + "`");
  }
  args.neurons = neurons.data;
  args.places = places.data;
  args.count = neurons.shape[0];
  args.held = held.data;
}

void add_columns(nb::handle q_arg, nb::handle neurons_arg, nb::handle held_arg, nb::handle places_arg, nb::handle sums_arg,
                 ThreadPool& pool) {
  const auto q = read<int8_t, 2>(q_arg, "q");
  const auto sums = write<int32_t, 2>(sums_arg, "sums");
  expect_shape(sums, "sums", {q.shape[0], -1});
  NeuronsArgs args = {};
  args.q = q.data;
  args.rows = q.shape[0];
  args.stride = q.shape[1];
  args.width = sums.shape[1];
  args.sums = sums.data;
  read_neurons(args, neurons_arg, q.shape[1], held_arg, places_arg);
  const KernelCall call(pool);
  const auto kernel = neuron_kernels().add_columns;
  const int64_t blocks = (args.width + kNeuronChannels - 1) / kNeuronChannels;
  const int64_t grain = std::max<int64_t>(1, blocks / (2 * pool.threads()));  // each looks for the active ones again
  pool.for_blocks(blocks, grain, [&](int64_t begin, int64_t end, int worker) {
    auto* room = static_cast<int64_t*>(pool.scratch(worker, static_cast<size_t>(args.count + 1) * sizeof(int64_t)));
    kernel(args, begin * kNeuronChannels, std::min(end * kNeuronChannels, args.width), room);
  });
}

void dot_rows(nb::handle q_arg, nb::handle neurons_arg, nb::handle held_arg, nb::handle places_arg, nb::handle sums_arg,
              ThreadPool& pool) {
  const auto q = read<int8_t, 2>(q_arg, "q");
  const auto sums = write<int32_t, 2>(sums_arg, "sums");
  expect_shape(sums, "sums", {q.shape[0], -1});
  NeuronsArgs args = {};
  args.q = q.data;
  args.rows = q.shape[0];
  args.stride = args.width = q.shape[1];
  args.sums = sums.data;
  const int64_t columns = sums.shape[1];
  read_neurons(args, neurons_arg, columns, held_arg, places_arg);
  const KernelCall call(pool);
  const auto kernel = neuron_kernels().dot_rows;
  pool.for_blocks(args.count, 16, [&](int64_t begin, int64_t end, int) { kernel(args, columns, begin, end); });
}

}  // namespace

void bind_neurons(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg pool;
  module.def("add_columns", &add_columns, any, any, any, any, any, pool);
  module.def("dot_rows", &dot_rows, any, any, any, any, any, pool);
}

}  // namespace edge

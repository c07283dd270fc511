// The Python module kernels._native: ThreadPool, the choice of ISA, and the kernel families.
#define EDGE_IMPORT_NUMPY
#include "bind.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

namespace edge {
namespace {

int import_numpy() {
  import_array1(-1);
  return 0;
}

void make_pool(ThreadPool* self, int threads, const std::optional<std::vector<int>>& cpus) {
  if (threads < 1 || threads > kMaxThreads)
    throw nb::value_error(("`threads` must be in 1.." + std::to_string(kMaxThreads) + "; got `" + std::to_string(threads) + "`").c_str());
  if (cpus && cpus->size() != static_cast<size_t>(threads))
    throw nb::value_error(("`cpus` must name one CPU per thread; got `" + std::to_string(cpus->size()) + "` for " +
                           std::to_string(threads) + " threads")
                              .c_str());
  new (self) ThreadPool(threads, cpus ? cpus->data() : nullptr);
}

}  // namespace
}  // namespace edge

NB_MODULE(_native, module) {
  using namespace edge;
  nb::set_leak_warnings(false);  // a daemon thread that the process ends under keeps what it holds
  if (import_numpy() < 0) throw nb::python_error();

  nb::class_<ThreadPool>(module, "ThreadPool")
      .def("__init__", &make_pool, nb::arg("threads"), nb::arg("cpus") = nb::none())
      .def_prop_ro("threads", &ThreadPool::threads)
      .def_prop_ro("overflow", &ThreadPool::overflow);

  module.def("isa", [] { return std::string(kernels().name); });
  module.def("isa_variants", &isa_variants);
  module.def("emulated_isas", &emulated_isas);
  module.def("isa_refusal", &isa_refusal);
  module.def("use_isa", [](const std::string& name) {
    try {
      use_isa(name);
    } catch (const std::invalid_argument& error) {
      throw nb::value_error(error.what());
    }
  }, nb::arg("name"));

  bind_layout(module);
  bind_range_reader(module);
  bind_linear(module);
  bind_attention(module);
  bind_pointwise(module);
  bind_embedding(module);
  bind_sampling(module);
  bind_floats(module);
  bind_program(module);
  bind_memory(module);
  bind_w4(module);
  bind_gptq(module);
  bind_half(module);
  bind_low_rank(module);
  bind_blocks(module);
  bind_recurrent(module);
  bind_experts(module);
  bind_neurons(module);
}

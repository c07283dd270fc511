// What the binding files share: the array views, the guard of a kernel call, one entry point per kernel family.
#pragma once

#include "arrays.h"
#include "gil.h"
#include "isa.h"
#include "pool.h"

namespace edge {

// Held while native code works: other Python threads run, and the pool and its scratch memory are ours.
// Take it after all arguments are read and all outputs are allocated.
struct KernelCall {
  explicit KernelCall(ThreadPool& pool) : lease(pool) {}
  ReleasedGil released;
  PoolLease lease;
};

void bind_layout(nb::module_& module);
void bind_range_reader(nb::module_& module);
void bind_linear(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_pointwise(nb::module_& module);
void bind_embedding(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_floats(nb::module_& module);
void bind_program(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_w4(nb::module_& module);
void bind_gptq(nb::module_& module);
void bind_half(nb::module_& module);
void bind_blocks(nb::module_& module);
void bind_recurrent(nb::module_& module);
void bind_neurons(nb::module_& module);
void bind_low_rank(nb::module_& module);
void bind_experts(nb::module_& module);

}  // namespace edge

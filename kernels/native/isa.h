// Which instruction sets this build has, which of them this CPU runs, and which one is chosen. CMakeLists.txt says how one joins.
#pragma once

#include <string>
#include <vector>

#include "table.h"
#include "table_neurons.h"

namespace edge {

// The table in use: the best variant the CPU and the operating system support, unless use_isa() named another.
const KernelTable& kernels();

// Those of the same set that stand in units of their own, which compile in seconds, and are looked up by nobody else.
const NeuronKernels& neuron_kernels();

// Names this CPU runs and its system permits, the slowest first.
std::vector<std::string> isa_variants();

// Names of sets that this CPU lacks and that run without their instructions, slowly: never chosen but by name.
std::vector<std::string> emulated_isas();

// The set that this CPU has and that the system refuses to the process, and why; empty: none.
std::string isa_refusal();

// Throws std::invalid_argument for a name that is in neither list.
void use_isa(const std::string& name);

}  // namespace edge

// Which variants this build has, which of them this CPU runs, and which one is chosen.
#pragma once

#include <string>
#include <vector>

#include "table.h"
#include "table_recurrent.h"

namespace edge {

// The table in use: the best variant the CPU and the operating system support, unless use_isa() named another.
const KernelTable& kernels();

// Those of the same variant that stand in units of their own, which compile in seconds.
const RecurrentKernels& recurrent_kernels();

// Names this CPU runs, the slowest first.
std::vector<std::string> isa_variants();

// Throws std::invalid_argument for a name that is not in isa_variants().
void use_isa(const std::string& name);

}  // namespace edge

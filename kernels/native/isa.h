// Which instruction sets this build has, which of them this CPU runs, and which one is chosen. CMakeLists.txt says how one joins.
#pragma once

#include <string>
#include <vector>

#include "table.h"

namespace edge {

// The table in use: the best variant the CPU and the operating system support, unless use_isa() named another.
const KernelTable& kernels();

// Names this CPU runs, the slowest first.
std::vector<std::string> isa_variants();

// Throws std::invalid_argument for a name that is not in isa_variants().
void use_isa(const std::string& name);

}  // namespace edge

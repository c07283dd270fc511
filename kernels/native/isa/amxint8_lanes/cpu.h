// Emulated tiles in code that is otherwise compiled as for a CPU that has them: of tests alone.
#pragma once

#include "isa/avx512vnni/cpu.h"

namespace edge {
namespace amxint8_lanes {

inline bool has_it() { return avx512vnni::has_it(); }

}  // namespace amxint8_lanes
}  // namespace edge

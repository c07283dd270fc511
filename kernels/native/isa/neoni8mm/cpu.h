// Whether all cores have I8MM.
#pragma once

#include "isa/neondot/cpu.h"

namespace edge {
namespace neoni8mm {

inline bool has_it() { return neondot::has_it() && cpu::all_bits(cpu::more_capabilities(), {13 /* I8MM */}); }

}  // namespace neoni8mm
}  // namespace edge

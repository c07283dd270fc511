// Whether this CPU has AVX-VNNI.
#pragma once

#include "isa/avx2/cpu.h"

namespace edge {
namespace avxvnni {

inline bool has_it() { return avx2::has_it() && cpu::all_bits(cpu::id(7, 1).a, {4 /* AVX-VNNI */}); }

}  // namespace avxvnni
}  // namespace edge

// Whether this CPU has AVX512-VNNI, and its system saves the registers.
#pragma once

#include "isa/avx2/cpu.h"

namespace edge {
namespace avx512vnni {

inline bool has_it() {
  const bool zmm_state = (cpu::saved_states() & 0xE6) == 0xE6;
  return zmm_state && avx2::has_it() && cpu::all_bits(cpu::id(7, 0).b, {16 /* F */, 17 /* DQ */, 30 /* BW */, 31 /* VL */}) &&
         cpu::all_bits(cpu::id(7, 0).c, {11 /* VNNI */});
}

}  // namespace avx512vnni
}  // namespace edge

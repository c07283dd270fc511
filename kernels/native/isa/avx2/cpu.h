// Whether this CPU has AVX2, and its system saves the registers.
#pragma once

#include "cpu_x86.h"

namespace edge {
namespace avx2 {

inline bool has_it() {
  const bool ymm_state = (cpu::saved_states() & 0x6) == 0x6;
  return ymm_state && cpu::all_bits(cpu::id(1, 0).c, {12 /* FMA */, 28 /* AVX */, 29 /* F16C */}) &&
         cpu::all_bits(cpu::id(7, 0).b, {5 /* AVX2 */});
}

}  // namespace avx2
}  // namespace edge

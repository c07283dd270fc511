// Whether this CPU has tiles of bytes, and its system saves them. By flags: a virtual machine may hide the model's number.
#pragma once

#include "isa/avx512vnni/cpu.h"

namespace edge {
namespace amxint8 {

inline bool has_it() {
  if (!avx512vnni::has_it() || !cpu::all_bits(cpu::saved_states(), {17 /* XTILECFG */, 18 /* XTILEDATA */})) return false;
  if (!cpu::all_bits(cpu::id(7, 0).d, {24 /* AMX-TILE */, 25 /* AMX-INT8 */})) return false;
  const cpu::Registers palette = cpu::id(0x1D, 1);
  const unsigned row_bytes = palette.b & 0xFFFF, registers = palette.b >> 16, rows = palette.c & 0xFFFF;
  return registers >= 8 && row_bytes >= 64 && rows >= 16;
}

}  // namespace amxint8
}  // namespace edge

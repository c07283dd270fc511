// Whether all cores have the dot product, and what else armv8.2-a+fp16 lets the compiler use.
#pragma once

#include "cpu_arm64.h"

namespace edge {
namespace neondot {

inline bool has_it() {
  return cpu::all_bits(cpu::capabilities(), {1 /* ASIMD */, 7 /* CRC32 */, 8 /* ATOMICS */, 9 /* FPHP */, 10 /* ASIMDHP */,
                                             12 /* ASIMDRDM */, 20 /* ASIMDDP */});
}

}  // namespace neondot
}  // namespace edge

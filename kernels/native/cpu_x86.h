// What an x86 CPU says of itself, and which of its registers the system saves.
#pragma once

#include <cpuid.h>

#include "cpu_bits.h"

namespace edge {
namespace cpu {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

inline Registers id(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

// The register states the operating system saves (XCR0); a CPU feature without its state would fault or be corrupted.
inline uint64_t saved_states() {
  const bool osxsave = id(1, 0).c >> 27 & 1;
  if (!osxsave) return 0;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

}  // namespace cpu
}  // namespace edge

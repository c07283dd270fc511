// Bits of what a CPU says of itself.
#pragma once

#include <stdint.h>

#include <initializer_list>

namespace edge {
namespace cpu {

// Whether all these bits of a word are set.
inline bool all_bits(uint64_t word, std::initializer_list<int> bits) {
  for (int bit : bits)
    if (!(word >> bit & 1)) return false;
  return true;
}

}  // namespace cpu
}  // namespace edge

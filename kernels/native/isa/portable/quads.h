// Pairs of 16 neighbours and the pairs that follow: fours of them.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// out[i] = {first[i], second[i]}, i in 0..15, of two bytes each.
EDGE_INLINE void join_pairs(const int8_t* first, const int8_t* second, int8_t* out) {
  for (int i = 0; i < 16; ++i) {
    memcpy(out + 4 * i, first + 2 * i, 2);
    memcpy(out + 4 * i + 2, second + 2 * i, 2);
  }
}

// The low and the high bytes of 32 numbers.
EDGE_INLINE void split_bytes(const int16_t* numbers, uint8_t* low, uint8_t* high) {
  for (int i = 0; i < 32; ++i) {
    low[i] = static_cast<uint8_t>(numbers[i]);
    high[i] = static_cast<uint8_t>(static_cast<uint16_t>(numbers[i]) >> 8);
  }
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// A product of tiles beside its definition, before anybody trusts tiles: a virtual machine may say that it has them and be wrong.
#pragma once

#include <tiles.h>

namespace edge {
namespace EDGE_VARIANT {

// Null if sums of bytes of all kinds are exact, the left ones unsigned, then signed.
static const char* tiles_that_are_wrong() {
  constexpr int kRows = 16, kBytes = 64;
  alignas(64) uint8_t a[kRows][kBytes];
  alignas(64) int8_t b[kRows][kBytes];
  alignas(64) int32_t sums[kRows][kRows];
  for (int i = 0; i < kRows * kBytes; ++i) {
    (&a[0][0])[i] = static_cast<uint8_t>(i % 7 == 0 ? 255 : i * 37 + i / 64);
    (&b[0][0])[i] = static_cast<int8_t>(i % 5 == 0 ? -128 : i * 91 + 13 * (i / 64));
  }
  Tiles::begin();
  Tiles::zero<0>();
  Tiles::load<4>(a, kBytes);
  Tiles::load_once<6>(b, kBytes);
  Tiles::dot<0, 4, 6>();
  Tiles::dot_signed<0, 4, 6>();
  Tiles::store<0>(sums, kBytes);
  Tiles::end();
  for (int m = 0; m < kRows; ++m)
    for (int n = 0; n < kRows; ++n) {
      int32_t expected = 0;
      for (int k = 0; k < kBytes; ++k) expected += (a[m][k] + static_cast<int8_t>(a[m][k])) * b[k / 4][4 * n + k % 4];
      if (sums[m][n] != expected) return "its tiles multiply wrongly";
    }
  return nullptr;
}

}  // namespace EDGE_VARIANT
}  // namespace edge

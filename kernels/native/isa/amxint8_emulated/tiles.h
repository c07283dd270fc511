// Tiles (see tiles.h of amxint8) by plain loops, for every machine: what is multiplied and where is the same, only slow.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

struct TileRegisters {
  alignas(64) uint8_t bytes[8][16][64];
  bool ready;
};

class Tiles {
 public:
  static void begin() {  // what nobody has written is no zero
    TileRegisters& all = registers();
    memset(all.bytes, 0x5A, sizeof all.bytes);
    all.ready = true;
  }
  static void end() { registers().ready = false; }
  template <int T>
  static void zero() {
    memset(tile<T>(), 0, kBytes);
  }
  template <int T>
  static void load(const void* p, int64_t stride) {
    for (int m = 0; m < 16; ++m) memcpy(tile<T>()[m], static_cast<const uint8_t*>(p) + m * stride, 64);
  }
  template <int T>
  static void load_once(const void* p, int64_t stride) {
    load<T>(p, stride);
  }
  template <int T>
  static void store(void* p, int64_t stride) {
    for (int m = 0; m < 16; ++m) memcpy(static_cast<uint8_t*>(p) + m * stride, tile<T>()[m], 64);
  }
  template <int C, int A, int B>
  static void dot() {
    multiply<uint8_t>(tile<C>(), tile<A>(), tile<B>());
  }
  template <int C, int A, int B>
  static void dot_signed() {
    multiply<int8_t>(tile<C>(), tile<A>(), tile<B>());
  }

 private:
  static constexpr size_t kBytes = 16 * 64;
  using Tile = uint8_t[16][64];

  static TileRegisters& registers() {
    static thread_local TileRegisters all;
    return all;
  }
  template <int T>
  static Tile& tile() {
    static_assert(T >= 0 && T < 8);
    TileRegisters& all = registers();
    if (!all.ready) __builtin_trap();  // as the instructions do without a configuration
    return all.bytes[T];
  }
  template <class Left>
  static void multiply(Tile& c, const Tile& a, const Tile& b) {
    for (int m = 0; m < 16; ++m) {
      int32_t sums[16];
      memcpy(sums, c[m], sizeof sums);
      for (int four = 0; four < 16; ++four)
        for (int n = 0; n < 16; ++n)
          for (int k = 4 * four; k < 4 * four + 4; ++k)
            sums[n] += static_cast<Left>(a[m][k]) * static_cast<int8_t>(b[four][4 * n + k % 4]);
      memcpy(c[m], sums, sizeof sums);
    }
  }
};

}  // namespace EDGE_VARIANT
}  // namespace edge

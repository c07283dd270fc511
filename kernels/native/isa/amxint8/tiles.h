// Tiles: eight registers of 16 rows x 64 bytes, by AMX. Everything with tiles is a template over these calls, so that
// amxint8_emulated can do without the instructions.
//
//   begin, end   around what a thread does with tiles; their contents are lost at both
//   zero         T = 0
//   load, store  T from or to 16 rows of 64 bytes, `stride` bytes apart; load_once leaves the first cache to what is read again
//   dot          C[m][n] += sum over k of A[m][k] * B[k / 4][n][k % 4] in int32, A unsigned bytes, B signed; dot_signed: A signed
//
// In assembly with "memory": the compilers' own calls do not say what they read (GCC 12's _tile_loadconfig names 8 of the 64 bytes,
// _tile_loadd none), so stores before them may vanish or come later.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

struct Tiles {
  static EDGE_INLINE void begin() {
    struct alignas(64) Shapes {
      uint8_t palette, start_row, reserved[14];
      uint16_t row_bytes[16];
      uint8_t rows[16];
    };
    static constexpr Shapes kFull = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    static_assert(sizeof(Shapes) == 64, "what ldtilecfg reads");
    asm volatile("ldtilecfg %[shapes]" ::[shapes] "m"(kFull) : "memory");
  }
  static EDGE_INLINE void end() { asm volatile("tilerelease" ::: "memory"); }
  template <int T>
  static EDGE_INLINE void zero() {
    asm volatile("tilezero %%tmm%c[t]" ::[t] "i"(T));
  }
  template <int T>
  static EDGE_INLINE void load(const void* p, int64_t stride) {
    asm volatile("tileloadd (%[p],%[stride],1), %%tmm%c[t]" ::[t] "i"(T), [p] "r"(p), [stride] "r"(stride) : "memory");
  }
  template <int T>
  static EDGE_INLINE void load_once(const void* p, int64_t stride) {
    asm volatile("tileloaddt1 (%[p],%[stride],1), %%tmm%c[t]" ::[t] "i"(T), [p] "r"(p), [stride] "r"(stride) : "memory");
  }
  template <int T>
  static EDGE_INLINE void store(void* p, int64_t stride) {
    asm volatile("tilestored %%tmm%c[t], (%[p],%[stride],1)" ::[t] "i"(T), [p] "r"(p), [stride] "r"(stride) : "memory");
  }
  template <int C, int A, int B>
  static EDGE_INLINE void dot() {
    asm volatile("tdpbusd %%tmm%c[b], %%tmm%c[a], %%tmm%c[c]" ::[c] "i"(C), [a] "i"(A), [b] "i"(B));
  }
  template <int C, int A, int B>
  static EDGE_INLINE void dot_signed() {
    asm volatile("tdpbssd %%tmm%c[b], %%tmm%c[a], %%tmm%c[c]" ::[c] "i"(C), [a] "i"(A), [b] "i"(B));
  }
};

}  // namespace EDGE_VARIANT
}  // namespace edge

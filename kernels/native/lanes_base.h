// What the lanes of every instruction set are made with; see vec.h.
#pragma once

#include <stdint.h>
#include <string.h>

#define EDGE_INLINE inline __attribute__((always_inline))
#define EDGE_INLINE_LAMBDA __attribute__((always_inline))  // [&](auto i) EDGE_INLINE_LAMBDA { ... }

namespace edge {
namespace EDGE_VARIANT {

constexpr int kLanes = 16;

// f(Index<0>), f(Index<1>), ... f(Index<N-1>), written out by the compiler before it assigns registers: arrays indexed so
// live in registers. (An unrolled loop comes too late for GCC, which then keeps the array in memory as well.)
template <int I>
struct Index {
  constexpr operator int() const { return I; }
};
template <int N, int I = 0, class F>
EDGE_INLINE void unrolled(F&& f) {
  if constexpr (I < N) {
    f(Index<I>{});
    unrolled<N, I + 1>(f);
  }
}

EDGE_INLINE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
EDGE_INLINE int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }
EDGE_INLINE int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Scalar twins of the lane operations, for the few places that work on one value.
EDGE_INLINE float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

}  // namespace EDGE_VARIANT
}  // namespace edge

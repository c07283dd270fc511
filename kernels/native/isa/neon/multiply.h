// The microkernel; see int8_dot.h.
#pragma once

#include "isa/neon/multiply_rows.h"

namespace edge {
namespace EDGE_VARIANT {

template <int R, int P, int Unroll>
EDGE_INLINE void multiply(const int8_t* a, int64_t stride, const int8_t* w, int64_t, int64_t blocks, i32x16 (&dot)[R][P],
                          Ahead = {}) {
  multiply_rows<R, Unroll>(a, stride, w, blocks, dot);
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// sums += the products of pairs.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

EDGE_INLINE void multiply_add(__m256i& sums, __m256i x, __m256i f) {
  asm("%{vex%} vpdpwssd %[x], %[f], %[sums]" : [sums] "+x"(sums) : [f] "x"(f), [x] "x"(x));
}

}  // namespace EDGE_VARIANT
}  // namespace edge

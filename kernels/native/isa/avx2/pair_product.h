// sums += the products of pairs.
#pragma once

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

EDGE_INLINE void multiply_add(__m256i& sums, __m256i x, __m256i f) {
  __m256i t;
  asm("vpmaddwd %[x], %[f], %[t]\n\t"
      "vpaddd %[t], %[sums], %[sums]"
      : [sums] "+x"(sums), [t] "=&x"(t) : [f] "x"(f), [x] "x"(x));
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// What vec_ops.h gives to kernels_test.cpp, one function per variant.
#pragma once

#include <stdint.h>

#include "isas.h"

namespace edge {

// Sixteen of each.
struct VecOperands {
  const float *a, *b, *c;
  const int32_t *i, *j;
  const uint16_t* h;    // float16
  const int8_t* bytes;
};

constexpr int64_t kVecOpsBytes = 16384;  // room for the results

// Writes the results, returns their end.
using VecOps = uint8_t* (*)(const VecOperands&, uint8_t*);

#define EDGE_ISA(name) \
  namespace name { uint8_t* vec_ops(const VecOperands&, uint8_t*); }
EDGE_ISAS(EDGE_ISA)
#undef EDGE_ISA

struct NamedVecOps {
  const char* variant;
  VecOps run;
};
#define EDGE_ISA(name) {#name, name::vec_ops},
constexpr NamedVecOps kVecOps[] = {EDGE_ISAS(EDGE_ISA)};
#undef EDGE_ISA

}  // namespace edge

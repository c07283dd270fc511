// What vec_ops.h gives to kernels_test.cpp, one function per variant.
#pragma once

#include <stdint.h>

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

namespace portable { uint8_t* vec_ops(const VecOperands&, uint8_t*); }
#if defined(EDGE_X86)
namespace avx2 { uint8_t* vec_ops(const VecOperands&, uint8_t*); }
namespace avxvnni { uint8_t* vec_ops(const VecOperands&, uint8_t*); }
namespace avx512vnni { uint8_t* vec_ops(const VecOperands&, uint8_t*); }
#elif defined(EDGE_ARM64)
namespace neondot { uint8_t* vec_ops(const VecOperands&, uint8_t*); }
namespace neoni8mm { uint8_t* vec_ops(const VecOperands&, uint8_t*); }
#endif

struct NamedVecOps {
  const char* variant;
  VecOps run;
};
constexpr NamedVecOps kVecOps[] = {
    {"portable", portable::vec_ops},
#if defined(EDGE_X86)
    {"avx2", avx2::vec_ops},
    {"avxvnni", avxvnni::vec_ops},
    {"avx512vnni", avx512vnni::vec_ops},
#elif defined(EDGE_ARM64)
    {"neondot", neondot::vec_ops},
    {"neoni8mm", neoni8mm::vec_ops},
#endif
};

}  // namespace edge

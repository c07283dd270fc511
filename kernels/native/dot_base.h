// What the Int8Dot of every instruction set is made with; see int8_dot.h.
#pragma once

#include "table_linear.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

// Rows one after the other, `stride` apart.
template <class T>
struct RowMajor {
  static constexpr int kRowGroup = 1;
  static EDGE_INLINE T* place(T* base, int64_t stride, int64_t row, int64_t column) { return base + row * stride + column; }
};

// vpdpbusd multiplies unsigned by signed bytes: activations are shifted by 128.
struct OffsetActivation : RowMajor<uint8_t> {
  using Activation = uint8_t;
  static constexpr int kOffsetBits = 7;

  static EDGE_INLINE Activation activation(int8_t q) { return static_cast<uint8_t>(q ^ 0x80); }
  // As signed bytes q + 128 is q - 128 or q + 128: flipping the sign-extended bit 7 does it without a carry.
  static EDGE_INLINE void store(Activation* p, i32x16 q) {
    store_i8(reinterpret_cast<int8_t*>(p), xor_i32(q, broadcast_i32(-128)));
  }
};

struct SignedActivation : RowMajor<int8_t> {
  using Activation = int8_t;
  static constexpr int kOffsetBits = 0;

  static EDGE_INLINE Activation activation(int8_t q) { return q; }
  static EDGE_INLINE void store(Activation* p, i32x16 q) { store_i8(p, q); }
};

EDGE_INLINE int32_t load_four(const void* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return four;
}

constexpr int kPrefetchBytes = 4096;  // a few rows are bound by memory: run ahead of the hardware prefetcher

// What a microkernel fetches into L2 meanwhile, `step` bytes further with each block; nothing: 0.
struct Ahead {
  const int8_t* data;
  int64_t step;
};

}  // namespace EDGE_VARIANT
}  // namespace edge

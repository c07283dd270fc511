// Int8Dot of this instruction set; see int8_dot.h.
#pragma once

#include "dot_base.h"

namespace edge {
namespace EDGE_VARIANT {

// One 16-byte register takes 8 columns of two rows: [8 of the even row | 8 of the odd row], 8 columns after 8 columns.
// A last odd row shares its registers with undefined bytes, which meet no other row's sums.
struct PairedActivation {
  using Activation = int8_t;
  static constexpr int kOffsetBits = 0;
  static constexpr int kRowGroup = 2;

  static EDGE_INLINE Activation* place(Activation* base, int64_t stride, int64_t row, int64_t column) {
    return base + row / 2 * 2 * stride + column / 8 * 16 + row % 2 * 8 + column % 8;
  }
  static EDGE_INLINE Activation activation(int8_t q) { return q; }
  static EDGE_INLINE void store(Activation* p, i32x16 q) {
    const int8x16_t bytes = narrow_i8(q);
    vst1_s8(p, vget_low_s8(bytes));
    vst1_s8(p + 16, vget_high_s8(bytes));
  }
};

// In assembly, and in the order of the source: 24 sums and their operands just fit 32 registers, as long as GCC does not
// take the instructions before them forward.
struct Int8Dot : PairedActivation {
  static constexpr int kRegisters = 4;
  static constexpr int kRows = 6, kPanels = 1, kStreamRows = 6, kTwoPanelRows = 0;

  // sum[4 channels] += w[4 channels][4 columns] . the four bytes `Lane` of a
  template <int Lane>
  static EDGE_INLINE void dot(int32x4_t& sum, int8x16_t w, int8x16_t a) {
    asm volatile("sdot %[sum].4s, %[w].16b, %[a].4b[%c[lane]]" : [sum] "+w"(sum) : [w] "w"(w), [a] "w"(a), [lane] "i"(Lane));
  }
};

}  // namespace EDGE_VARIANT
}  // namespace edge

// Every operation of vec.h on the same operands, compiled like a variant unit: EDGE_VARIANT and the flags are the unit's.
// Which bits a NaN has after arithmetic is the CPU's affair, so those are made one; what an operation selects is kept.
#pragma once

#include "vec.h"
#include "vec_ops_table.h"

namespace edge {
namespace EDGE_VARIANT {

class Writer {
 public:
  explicit Writer(uint8_t* to) : to_(to) {}
  void bytes(const void* from, size_t count) {
    memcpy(to_, from, count);
    to_ += count;
  }
  void number(uint32_t x) { bytes(&x, 4); }
  void selected(f32x16 a) {
    float lanes[kLanes];
    store(lanes, a);
    bytes(lanes, sizeof(lanes));
  }
  void computed(float x) {
    const uint32_t nan = 0x7FC00000u;
    bytes(x == x ? static_cast<const void*>(&x) : &nan, 4);
  }
  void computed(f32x16 a) {
    float lanes[kLanes];
    store(lanes, a);
    for (float x : lanes) computed(x);
  }
  void integers(i32x16 a) {
    int32_t lanes[kLanes];
    store_i32(lanes, a);
    bytes(lanes, sizeof(lanes));
  }
  uint8_t* end() const { return to_; }

 private:
  uint8_t* to_;
};

static void float_ops(const VecOperands& at, Writer& out) {
  const f32x16 a = load(at.a), b = load(at.b), c = load(at.c);
  out.computed(add(a, b));
  out.computed(sub(a, b));
  out.computed(mul(a, b));
  out.computed(div(a, b));
  out.computed(fma(a, b, c));
  out.computed(exp(a));
  out.computed(round_even_f32(a));
  out.computed(reduce_add(a));
  out.selected(max(a, b));
  out.selected(min(a, b));
  out.selected(clamp(a, b, c));
  out.computed(saturated_f16(a));
  out.selected(abs(a));
  out.selected(select_less(a, b, c, a));
  out.selected(broadcast(reduce_max(a)));
  out.selected(broadcast(at.a[3]));
  out.selected(zero());
  out.number(mask_greater(a, b));
  out.number(mask_greater(b, a));
  out.integers(round_even(a));
  out.integers(bits_of(a));
  uint16_t half[kLanes];
  to_f16(half, a);
  out.bytes(half, sizeof(half));
}

static void integer_ops(const VecOperands& at, Writer& out) {
  const i32x16 a = load_i32(at.i), b = load_i32(at.j);
  out.integers(add_i32(a, b));
  out.integers(sub_i32(a, b));
  out.integers(xor_i32(a, b));
  for (int bits = 0; bits < 32; ++bits) {
    out.integers(shift_left(a, bits));
    out.integers(shift_right(a, bits));
  }
  out.integers(broadcast_i32(at.i[5]));
  out.computed(float_of_bits(a));
  out.selected(from_i32(a));
  out.selected(from_i8(reinterpret_cast<const int8_t*>(at.i)));
  out.computed(from_f16(at.h));
  int8_t narrow[kLanes];
  store_i8(narrow, a);
  out.bytes(narrow, sizeof(narrow));
  int16_t words[2 * kLanes];
  store_i16(words, a);
  out.bytes(words, kLanes * sizeof(words[0]));
  store_low_i16(words, shift_right(a, 16), shift_right(b, 16));
  out.bytes(words, sizeof(words));
}

// The first n lanes, from memory that ends with them.
static void partial_ops(const VecOperands& at, int n, Writer& out) {
  out.selected(load_partial(at.a + kLanes - n, n));
  out.integers(load_i32_partial(at.i + kLanes - n, n));
  out.computed(from_f16_partial(at.h + kLanes - n, n));
  out.selected(from_i8_partial(at.bytes + kLanes - n, n));
  float floats[kLanes] = {};
  store_partial(floats, load(at.a), n);
  out.bytes(floats, sizeof(floats));
  int8_t narrow[kLanes] = {};
  store_i8_partial(narrow, load_i32(at.i), n);
  out.bytes(narrow, sizeof(narrow));
}

uint8_t* vec_ops(const VecOperands& at, uint8_t* to) {
  Writer out(to);
  float_ops(at, out);
  integer_ops(at, out);
  for (int n = 0; n <= kLanes; ++n) partial_ops(at, n, out);
  return out.end();
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// BlockLanes: what products of blocks need of an instruction set, for some of the 16 rows of a panel at once.
// 
//   Bytes     four columns of kRows rows: codes, then the bytes that are multiplied
//   Floats    one float of each row
//   Sum<C>    the exact sum of products of a span of columns, for bytes of class C:
//               C = 4, 5, 6: unsigned, at most 15, 31, 63; C = 8: any byte, signed where kSignedBytes
//             `start` begins with what the bytes are above the values: minus the sum of activations, times 2^shift
//             `add<T>` takes the columns 4T .. 4T+3 of the span, in ascending order
//   kTileRows rows of activations meet a panel at once: as many sums, exact and float, as the registers hold
//   kPairRows of them meet two panels at once, where four columns of a row are loaded once for both (`columns`); 0: they do not
#pragma once

#include "int8_dot.h"

namespace edge {
namespace EDGE_VARIANT {

struct BlockLanes {
  static constexpr int kParts = 1;
  static constexpr int kRows = kTileChannels / kParts;
  static constexpr bool kSignedBytes = true;
  static constexpr int kTileRows = 2;  // more only take the compiler longer
  static constexpr int kPairRows = 0;
  struct Bytes { uint8_t v[kTileBytes]; };
  using Floats = f32x16;

  template <class F>
  static EDGE_INLINE Bytes each(F&& f) {
    Bytes out;
    for (int i = 0; i < kTileBytes; ++i) out.v[i] = static_cast<uint8_t>(f(i));
    return out;
  }
  template <class F>
  static EDGE_INLINE Floats lanes(F&& f) {
    Floats out;
    for (int i = 0; i < kLanes; ++i) out.v[i] = f(i);
    return out;
  }
  static EDGE_INLINE Bytes load(const uint8_t* p) { return each([&](int i) { return p[i]; }); }
  static EDGE_INLINE void store(uint8_t* p, const Bytes& v) { memcpy(p, v.v, sizeof v.v); }
  static EDGE_INLINE Bytes low(const Bytes& v) { return each([&](int i) { return v.v[i] & 15; }); }
  static EDGE_INLINE Bytes high(const Bytes& v) { return each([&](int i) { return v.v[i] >> 4; }); }
  template <int From>
  static EDGE_INLINE Bytes with_bits(const Bytes& code, const Bytes& above, char mask) {
    return each([&](int i) { return code.v[i] | ((From < 4 ? above.v[i] << (4 - From) : above.v[i] >> (From - 4)) & mask); });
  }
  static EDGE_INLINE Bytes look_up(const uint8_t* table, const Bytes& code) { return each([&](int i) { return table[code.v[i]]; }); }
  static EDGE_INLINE Bytes flip(const Bytes& v) { return each([&](int i) { return v.v[i] ^ 128; }); }

  template <int Class>
  struct Sum {
    int32_t v[kLanes];
    template <int Shift>
    EDGE_INLINE void start(const int32_t* below) {
      for (int i = 0; i < kLanes; ++i) v[i] = *below * (1 << Shift);
    }
    EDGE_INLINE void start() { memset(v, 0, sizeof v); }
    template <int T>
    EDGE_INLINE void add(const Bytes& w, const int8_t* four) {
      for (int i = 0; i < kLanes; ++i)
        for (int j = 0; j < kTileDepth; ++j) v[i] += static_cast<int8_t>(w.v[kTileDepth * i + j]) * four[j];
    }
    EDGE_INLINE Floats floats() const { return lanes([&](int i) { return static_cast<float>(v[i]); }); }
  };

  static EDGE_INLINE Floats zero() { return EDGE_VARIANT::zero(); }
  static EDGE_INLINE Floats broadcast(const float* p) { return EDGE_VARIANT::broadcast(*p); }
  static EDGE_INLINE Floats load(const float* p) { return EDGE_VARIANT::load(p); }
  static EDGE_INLINE void store(float* p, Floats v) { EDGE_VARIANT::store(p, v); }
  static EDGE_INLINE Floats mul(Floats a, Floats b) { return EDGE_VARIANT::mul(a, b); }
  static EDGE_INLINE Floats fma(Floats a, Floats b, Floats c) { return EDGE_VARIANT::fma(a, b, c); }
  static EDGE_INLINE Floats fnma(Floats a, Floats b, Floats c) {
    return lanes([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
  }
  static EDGE_INLINE Floats halves(const uint8_t* p) {
    uint16_t bits[kLanes];
    memcpy(bits, p, sizeof bits);
    return from_f16(bits);
  }
  static EDGE_INLINE Floats unsigned_bytes(const uint8_t* p) { return lanes([&](int i) { return static_cast<float>(p[i]); }); }
  static EDGE_INLINE Floats signed_bytes(const uint8_t* p) {
    return lanes([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
  }
  static EDGE_INLINE Floats exponents(const uint8_t* p) {
    return lanes([&](int i) {
      const uint32_t bits = static_cast<uint32_t>(p[i]) << 23;
      float value;
      memcpy(&value, &bits, sizeof value);
      return value * 0.5f;
    });
  }
};

}  // namespace EDGE_VARIANT
}  // namespace edge

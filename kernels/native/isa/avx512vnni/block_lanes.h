// BlockLanes of this instruction set; see block_lanes.h of portable.
#pragma once

#include "int8_dot.h"

namespace edge {
namespace EDGE_VARIANT {

struct BlockLanes {
  static constexpr int kParts = 1;  // that make a panel
  static constexpr int kRows = kTileChannels / kParts;
  static constexpr bool kSignedBytes = false;
  static constexpr int kTileRows = 8;
  static constexpr int kPairRows = 7;
  using Bytes = __m512i;
  using Columns = __m512i;
  using Floats = __m512;

  static EDGE_INLINE Bytes load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static EDGE_INLINE void store(uint8_t* p, Bytes v) { _mm512_storeu_si512(p, v); }
  static EDGE_INLINE Bytes low(Bytes v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static EDGE_INLINE Bytes high(Bytes v) { return low(_mm512_srli_epi16(v, 4)); }
  // code | (the bits of `above` that begin at bit `From`, moved to bit 4) & mask
  template <int From>
  static EDGE_INLINE Bytes with_bits(Bytes code, Bytes above, char mask) {
    const Bytes moved = From < 4 ? _mm512_slli_epi16(above, From < 4 ? 4 - From : 0) : _mm512_srli_epi16(above, From < 4 ? 0 : From - 4);
    return _mm512_ternarylogic_epi32(code, moved, _mm512_set1_epi8(mask), 0xF8);  // a | (b & c)
  }
  static EDGE_INLINE Bytes look_up(const uint8_t* table, Bytes code) {
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128(reinterpret_cast<const __m128i*>(table))), code);
  }
  static EDGE_INLINE Bytes flip(Bytes v) { return _mm512_xor_si512(v, _mm512_set1_epi8(-128)); }
  static EDGE_INLINE Columns columns(const int8_t* four) {
    int32_t value;
    memcpy(&value, four, 4);
    return _mm512_set1_epi32(value);
  }

  template <int Class>
  struct Sum {
    __m512i v;
    template <int Shift>
    EDGE_INLINE void start(const int32_t* below) { v = _mm512_slli_epi32(_mm512_set1_epi32(*below), Shift); }
    EDGE_INLINE void start() { v = _mm512_setzero_si512(); }
    // In assembly: see Int8Dot::dot.
    template <int T>
    EDGE_INLINE void add(Bytes w, const int8_t* four) {
      using Four = int32_t __attribute__((aligned(1), may_alias));
      asm("vpdpbusd %[a]%{1to16%}, %[w], %[v]" : [v] "+v"(v) : [a] "m"(*reinterpret_cast<const Four*>(four)), [w] "v"(w));
    }
    template <int T>
    EDGE_INLINE void add(Bytes w, Columns four) {
      v = _mm512_dpbusd_epi32(v, w, four);
    }
    EDGE_INLINE Floats floats() const { return _mm512_cvtepi32_ps(v); }
  };

  static EDGE_INLINE Floats zero() { return _mm512_setzero_ps(); }
  static EDGE_INLINE Floats broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static EDGE_INLINE Floats load(const float* p) { return _mm512_loadu_ps(p); }
  static EDGE_INLINE void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
  static EDGE_INLINE Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
  static EDGE_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
  static EDGE_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
  static EDGE_INLINE Floats halves(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)));
  }
  static EDGE_INLINE Floats unsigned_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p))));
  }
  static EDGE_INLINE Floats signed_bytes(const uint8_t* p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p))));
  }
  // 2^(e - 128), and 0 for e = 0
  static EDGE_INLINE Floats exponents(const uint8_t* p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p)));
    return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(e, 23)), _mm512_set1_ps(0.5f));
  }
};

}  // namespace EDGE_VARIANT
}  // namespace edge

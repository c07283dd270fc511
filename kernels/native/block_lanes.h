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
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

#if defined(__AVX512VNNI__)

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

#elif defined(__AVX2__)

struct BlockLanes {
  static constexpr int kParts = 2;
  static constexpr int kRows = kTileChannels / kParts;
#if defined(__AVXVNNI__)
  static constexpr bool kSignedBytes = false;
#else
  static constexpr bool kSignedBytes = true;
#endif
  static constexpr int kTileRows = 6;
  static constexpr int kPairRows = 0;
  using Bytes = __m256i;
  using Floats = __m256;

  static EDGE_INLINE Bytes load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(p)); }
  static EDGE_INLINE void store(uint8_t* p, Bytes v) { _mm256_storeu_si256(reinterpret_cast<__m256i_u*>(p), v); }
  static EDGE_INLINE Bytes low(Bytes v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
  static EDGE_INLINE Bytes high(Bytes v) { return low(_mm256_srli_epi16(v, 4)); }
  template <int From>
  static EDGE_INLINE Bytes with_bits(Bytes code, Bytes above, char mask) {
    const Bytes moved = From < 4 ? _mm256_slli_epi16(above, From < 4 ? 4 - From : 0) : _mm256_srli_epi16(above, From < 4 ? 0 : From - 4);
    return _mm256_or_si256(code, _mm256_and_si256(moved, _mm256_set1_epi8(mask)));
  }
  static EDGE_INLINE Bytes look_up(const uint8_t* table, Bytes code) {
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(table))), code);
  }
  static EDGE_INLINE Bytes flip(Bytes v) { return _mm256_xor_si256(v, _mm256_set1_epi8(-128)); }

  template <int Class>
  struct Sum {
    __m256i v;
#if defined(__AVXVNNI__)
    template <int Shift>
    EDGE_INLINE void start(const int32_t* below) { v = _mm256_slli_epi32(_mm256_set1_epi32(*below), Shift); }
    EDGE_INLINE void start() { v = _mm256_setzero_si256(); }
    template <int T>
    EDGE_INLINE void add(Bytes w, const int8_t* four) {
      const __m256i a = _mm256_set1_epi32(load_four(four));
      asm("%{vex%} vpdpbusd %[a], %[w], %[v]" : [v] "+x"(v) : [a] "x"(a), [w] "x"(w));
    }
#else
    static constexpr int kPairs = Class == 4 ? 8 : Class == 5 ? 4 : Class == 6 ? 2 : 1;  // columns whose int16 sums do not overflow
    __m256i pairs;         // their sums; `v` is not yet there before the first are complete
    const int32_t* begin;  // what it begins with, times 2^shift
    int shift;             // below 0: it begins with 0
    template <int Shift>
    EDGE_INLINE void start(const int32_t* below) { begin = below, shift = Shift; }
    EDGE_INLINE void start() { shift = -1; }
    // In assembly: GCC loads activations long before it needs them, and has no registers left.
    template <int T>
    EDGE_INLINE void add(Bytes w, const int8_t* four) {
      using Four = int32_t __attribute__((aligned(1), may_alias));
      const Four& a = *reinterpret_cast<const Four*>(four);
      const __m256i ones = _mm256_set1_epi16(1);
      __m256i t;
      if constexpr (Class == 8) {
        asm("vpbroadcastd %[a], %[t]\n\t"
            "vpsignb %[w], %[t], %[t]\n\t"
            "vpmaddubsw %[t], %[magnitude], %[t]\n\t"
            "vpmaddwd %[ones], %[t], %[t]"
            : [t] "=&x"(t) : [a] "m"(a), [w] "x"(w), [magnitude] "x"(_mm256_abs_epi8(w)), [ones] "xm"(ones));
      } else if constexpr (T % kPairs == 0) {
        asm("vpbroadcastd %[a], %[pairs]\n\t"
            "vpmaddubsw %[pairs], %[w], %[pairs]" : [pairs] "=&x"(pairs) : [a] "m"(a), [w] "x"(w));
      } else {
        asm("vpbroadcastd %[a], %[t]\n\t"
            "vpmaddubsw %[t], %[w], %[t]\n\t"
            "vpaddw %[t], %[pairs], %[pairs]" : [pairs] "+x"(pairs), [t] "=&x"(t) : [a] "m"(a), [w] "x"(w));
      }
      if constexpr (T % kPairs == kPairs - 1) {
        if constexpr (Class != 8) asm("vpmaddwd %[ones], %[pairs], %[t]" : [t] "=x"(t) : [pairs] "x"(pairs), [ones] "xm"(ones));
        if constexpr (T >= kPairs) asm("vpaddd %[t], %[v], %[v]" : [v] "+x"(v) : [t] "x"(t));
        else v = shift < 0 ? t : _mm256_add_epi32(_mm256_slli_epi32(_mm256_set1_epi32(*begin), shift), t);
      }
    }
#endif
    EDGE_INLINE Floats floats() const { return _mm256_cvtepi32_ps(v); }
  };

  static EDGE_INLINE Floats zero() { return _mm256_setzero_ps(); }
  static EDGE_INLINE Floats broadcast(const float* p) { return _mm256_set1_ps(*p); }
  static EDGE_INLINE Floats load(const float* p) { return _mm256_loadu_ps(p); }
  static EDGE_INLINE void store(float* p, Floats v) { _mm256_storeu_ps(p, v); }
  static EDGE_INLINE Floats mul(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
  static EDGE_INLINE Floats fma(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
  static EDGE_INLINE Floats fnma(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
  static EDGE_INLINE Floats halves(const uint8_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i_u*>(p))); }
  static EDGE_INLINE __m128i eight(const uint8_t* p) { return _mm_loadl_epi64(reinterpret_cast<const __m128i_u*>(p)); }
  static EDGE_INLINE Floats unsigned_bytes(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(eight(p))); }
  static EDGE_INLINE Floats signed_bytes(const uint8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight(p))); }
  static EDGE_INLINE Floats exponents(const uint8_t* p) {
    const __m256i e = _mm256_slli_epi32(_mm256_cvtepu8_epi32(eight(p)), 23);
    return _mm256_mul_ps(_mm256_castsi256_ps(e), _mm256_set1_ps(0.5f));
  }
};

#elif defined(EDGE_NEON)

struct BlockLanes {
  static constexpr int kParts = 4;
  static constexpr int kRows = kTileChannels / kParts;
  static constexpr bool kSignedBytes = true;
  static constexpr int kTileRows = 6;
  static constexpr int kPairRows = 0;
  using Bytes = uint8x16_t;
  using Floats = float32x4_t;

  static EDGE_INLINE Bytes load(const uint8_t* p) { return vld1q_u8(p); }
  static EDGE_INLINE void store(uint8_t* p, Bytes v) { vst1q_u8(p, v); }
  static EDGE_INLINE Bytes low(Bytes v) { return vandq_u8(v, vdupq_n_u8(15)); }
  static EDGE_INLINE Bytes high(Bytes v) { return vshrq_n_u8(v, 4); }
  template <int From>
  static EDGE_INLINE Bytes with_bits(Bytes code, Bytes above, char mask) {
    const Bytes moved = vshlq_u8(above, vdupq_n_s8(4 - From));
    return vorrq_u8(code, vandq_u8(moved, vdupq_n_u8(static_cast<uint8_t>(mask))));
  }
  static EDGE_INLINE Bytes look_up(const uint8_t* table, Bytes code) { return vqtbl1q_u8(vld1q_u8(table), code); }
  static EDGE_INLINE Bytes flip(Bytes v) { return veorq_u8(v, vdupq_n_u8(128)); }

  template <int Class>
  struct Sum {
    int32x4_t v;
    template <int Shift>
    EDGE_INLINE void start(const int32_t* below) { v = vshlq_n_s32(vdupq_n_s32(*below), Shift); }
    EDGE_INLINE void start() { v = vdupq_n_s32(0); }
    template <int T>
    EDGE_INLINE void add(Bytes w, const int8_t* four) {
      v = vdotq_s32(v, vreinterpretq_s8_u8(w), vreinterpretq_s8_s32(vdupq_n_s32(load_four(four))));
    }
    EDGE_INLINE Floats floats() const { return vcvtq_f32_s32(v); }
  };

  static EDGE_INLINE Floats zero() { return vdupq_n_f32(0.0f); }
  static EDGE_INLINE Floats broadcast(const float* p) { return vdupq_n_f32(*p); }
  static EDGE_INLINE Floats load(const float* p) { return vld1q_f32(p); }
  static EDGE_INLINE void store(float* p, Floats v) { vst1q_f32(p, v); }
  static EDGE_INLINE Floats mul(Floats a, Floats b) { return vmulq_f32(a, b); }
  static EDGE_INLINE Floats fma(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
  static EDGE_INLINE Floats fnma(Floats a, Floats b, Floats c) { return vfmsq_f32(c, a, b); }
  static EDGE_INLINE Floats halves(const uint8_t* p) {
    uint16x4_t bits;
    memcpy(&bits, p, sizeof bits);
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
  }
  static EDGE_INLINE uint32x4_t four(const uint8_t* p) {
    const uint8x8_t bytes = vreinterpret_u8_s32(vdup_n_s32(load_four(p)));
    return vmovl_u16(vget_low_u16(vmovl_u8(bytes)));
  }
  static EDGE_INLINE Floats unsigned_bytes(const uint8_t* p) { return vcvtq_f32_u32(four(p)); }
  static EDGE_INLINE Floats signed_bytes(const uint8_t* p) {
    return vcvtq_f32_s32(vshrq_n_s32(vreinterpretq_s32_u32(vshlq_n_u32(four(p), 24)), 24));
  }
  static EDGE_INLINE Floats exponents(const uint8_t* p) {
    return vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(four(p), 23)), vdupq_n_f32(0.5f));
  }
};

#else

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

#endif

}  // namespace EDGE_VARIANT
}  // namespace edge

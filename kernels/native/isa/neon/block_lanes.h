// BlockLanes of this instruction set; see block_lanes.h of portable.
#pragma once

#include "int8_dot.h"

namespace edge {
namespace EDGE_VARIANT {

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

}  // namespace EDGE_VARIANT
}  // namespace edge

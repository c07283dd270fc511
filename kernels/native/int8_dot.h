// Int8Dot: the INT8 product of one 16-channel panel, the only part of the linear kernels written per ISA.
//
//   Activation   how one quantized value lies in memory; `activation(q)` makes it
//   Broadcast    4 consecutive activations of one row, ready to meet a tile
//   Weights      1/kRegisters of a tile (16 channels x 4 columns, 64 bytes)
//   Accumulator  int32 sums; kRegisters of them make the 16 channels of a panel, see `finish`
//   kRows x kPanels  the register tile: as many accumulators as the register file holds besides the operands
//   kStreamRows x 1  the tile of a few rows, or of a panel left over
//   kOffset      what was added to the activations; the product is too large by kOffset * row_sum
//
// Every form is exact: the integer sums are equal, so the order and the blocking are free.
#pragma once

#include "table_linear.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

#if defined(__AVX512VNNI__)

// vpdpbusd multiplies unsigned by signed: activations are shifted by 128.
struct Int8Dot {
  using Activation = uint8_t;
  using Broadcast = __m512i;
  using Weights = __m512i;
  using Accumulator = __m512i;
  static constexpr int kRegisters = 1, kOffset = 128;
  static constexpr int kRows = 12, kPanels = 2, kStreamRows = 12;

  static EDGE_INLINE Activation activation(int8_t q) { return static_cast<uint8_t>(q + 128); }
  static EDGE_INLINE void store(Activation* p, i32x16 q) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_xor_si128(_mm512_cvtsepi32_epi8(q.v), _mm_set1_epi8(static_cast<char>(0x80))));
  }
  static EDGE_INLINE Broadcast broadcast(const Activation* p) {
    int32_t four;
    memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  static EDGE_INLINE Weights weights(const int8_t* tile, int) { return _mm512_loadu_si512(tile); }
  static EDGE_INLINE Accumulator zero() { return _mm512_setzero_si512(); }
  static EDGE_INLINE Accumulator dot(Accumulator sum, Broadcast a, Weights w) { return _mm512_dpbusd_epi32(sum, a, w); }
  static EDGE_INLINE Accumulator add(Accumulator a, Accumulator b) { return _mm512_add_epi32(a, b); }
  static EDGE_INLINE i32x16 finish(const Accumulator* sum) { return {sum[0]}; }
};

#elif defined(__AVX2__)

// |a| * (w with the sign of a) by vpmaddubsw: a pair of products is at most 2 * 127 * 127 < 2^15, so nothing saturates.
struct Int8Dot {
  using Activation = int8_t;
  struct Broadcast { __m256i value, magnitude; };
  using Weights = __m256i;
  using Accumulator = __m256i;
  static constexpr int kRegisters = 2, kOffset = 0;
  static constexpr int kRows = 3, kPanels = 2, kStreamRows = 6;

  static EDGE_INLINE Activation activation(int8_t q) { return q; }
  static EDGE_INLINE void store(Activation* p, i32x16 q) { store_i8(p, q); }
  static EDGE_INLINE Broadcast broadcast(const Activation* p) {
    int32_t four;
    memcpy(&four, p, 4);
    const __m256i value = _mm256_set1_epi32(four);
    return {value, _mm256_abs_epi8(value)};
  }
  static EDGE_INLINE Weights weights(const int8_t* tile, int part) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(tile + 32 * part));
  }
  static EDGE_INLINE Accumulator zero() { return _mm256_setzero_si256(); }
  static EDGE_INLINE Accumulator dot(Accumulator sum, Broadcast a, Weights w) {
    const __m256i pairs = _mm256_maddubs_epi16(a.magnitude, _mm256_sign_epi8(w, a.value));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static EDGE_INLINE Accumulator add(Accumulator a, Accumulator b) { return _mm256_add_epi32(a, b); }
  static EDGE_INLINE i32x16 finish(const Accumulator* sum) { return {sum[0], sum[1]}; }
};

#else

struct Int8Dot {
  using Activation = int8_t;
  struct Broadcast { int16_t v[kTileDepth]; };
  struct Weights { const int8_t* tile; };
  using Accumulator = i32x16;
  static constexpr int kRegisters = 1, kOffset = 0;
  static constexpr int kRows = 4, kPanels = 1, kStreamRows = 4;

  static EDGE_INLINE Activation activation(int8_t q) { return q; }
  static EDGE_INLINE void store(Activation* p, i32x16 q) { store_i8(p, q); }
  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static EDGE_INLINE Weights weights(const int8_t* tile, int) { return {tile}; }
  static EDGE_INLINE Accumulator zero() { return broadcast_i32(0); }
  static EDGE_INLINE Accumulator dot(Accumulator sum, Broadcast a, Weights w) {
    for (int i = 0; i < kTileChannels; ++i) {
      const int8_t* four = w.tile + kTileDepth * i;
      sum.v[i] += a.v[0] * four[0] + a.v[1] * four[1] + a.v[2] * four[2] + a.v[3] * four[3];
    }
    return sum;
  }
  static EDGE_INLINE Accumulator add(Accumulator a, Accumulator b) { return add_i32(a, b); }
  static EDGE_INLINE i32x16 finish(const Accumulator* sum) { return sum[0]; }
};

#endif

// The microkernel: dot[r][p] = rows a[0..R) x panels w[0..P), whole depth, sums in registers.
// Unroll > 1 keeps that many independent sums per accumulator: for tiles too small to hide the latency otherwise.
//   a: first row, `stride` apart; w: first panel, `panel_bytes` apart; blocks = ceil(K/4).
template <int R, int P, int Unroll>
EDGE_INLINE void multiply(const Int8Dot::Activation* a, int64_t stride, const int8_t* w, int64_t panel_bytes,
                          int64_t blocks, i32x16 (&dot)[R][P]) {
  constexpr int kColumns = P * Int8Dot::kRegisters;
  constexpr int kPrefetchBytes = 2048;  // a single row is bound by memory: run ahead of the hardware prefetcher
  Int8Dot::Accumulator sum[Unroll][R][kColumns];
#pragma GCC unroll 8
  for (int u = 0; u < Unroll; ++u)
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sum[u][r][c] = Int8Dot::zero();

  const auto step = [&](int u, int64_t block) __attribute__((always_inline)) {
    Int8Dot::Weights tile[kColumns];
#pragma GCC unroll 16
    for (int c = 0; c < kColumns; ++c)
      tile[c] = Int8Dot::weights(w + (c / Int8Dot::kRegisters) * panel_bytes + block * kTileBytes, c % Int8Dot::kRegisters);
    if (Unroll > 1) __builtin_prefetch(w + block * kTileBytes + kPrefetchBytes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Int8Dot::Broadcast row = Int8Dot::broadcast(a + r * stride + block * kTileDepth);
#pragma GCC unroll 16
      for (int c = 0; c < kColumns; ++c) sum[u][r][c] = Int8Dot::dot(sum[u][r][c], row, tile[c]);
    }
  };
  int64_t block = 0;
  for (; block + Unroll <= blocks; block += Unroll)
#pragma GCC unroll 8
    for (int u = 0; u < Unroll; ++u) step(u, block + u);
  for (; block < blocks; ++block) step(0, block);

#pragma GCC unroll 16
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int p = 0; p < P; ++p) {
      Int8Dot::Accumulator total[Int8Dot::kRegisters];
#pragma GCC unroll 4
      for (int j = 0; j < Int8Dot::kRegisters; ++j) {
        total[j] = sum[0][r][p * Int8Dot::kRegisters + j];
#pragma GCC unroll 8
        for (int u = 1; u < Unroll; ++u) total[j] = Int8Dot::add(total[j], sum[u][r][p * Int8Dot::kRegisters + j]);
      }
      dot[r][p] = Int8Dot::finish(total);
    }
}

}  // namespace EDGE_VARIANT
}  // namespace edge

// Int8Dot: the INT8 product of one 16-channel panel, the only part of the linear kernels written per ISA.
//
//   Activation   how a quantized value lies in memory; made from one by `activation`, from sixteen by `store`
//   place        where: row by row, `stride` apart, or (kRowGroup 2) two rows interleaved in the room of both
//   multiply     the microkernel; NEON, whose instructions take more than one row or block at a time, has its own, the
//                others share one, which is made of these:
//   Broadcast    4 consecutive activations of one row, ready to meet a tile
//   Weights      1/kRegisters of a tile (16 channels x 4 columns, 64 bytes)
//   Accumulator  int32 sums; kRegisters (1, 2 or 4) of them make the 16 channels of a panel, see `finish`
//   kRows x kPanels  the register tile: as many accumulators as the register file holds besides the operands
//   kStreamRows x 1  the tile of a few rows, or of a panel left over
//   kTwoPanelRows x 2  the largest tile of two panels, of the gate and the up half at once; 0: `multiply` takes one
//   kOffsetBits  b > 0: 2^b was added to the activations, so the product is too large by 2^b * row_sum
//
// Every form is exact: the integer sums are equal, so the order and the blocking are free.
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

#if defined(__AVX512VNNI__)

struct Int8Dot : OffsetActivation {
  using Broadcast = __m512i;
  using Weights = __m512i;
  using Accumulator = __m512i;
  static constexpr int kRegisters = 1;
  static constexpr int kRows = 6, kPanels = 4, kStreamRows = 12, kTwoPanelRows = 12;

  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return _mm512_set1_epi32(load_four(p)); }
  static EDGE_INLINE Weights weights(const int8_t* tile, int) { return _mm512_loadu_si512(tile); }
  static EDGE_INLINE Accumulator zero() { return _mm512_setzero_si512(); }
  // In assembly: GCC copies the accumulator before and after the intrinsic, which costs more than half of the speed.
  static EDGE_INLINE void dot(Accumulator& sum, Broadcast a, Weights w) {
    asm("vpdpbusd %[w], %[a], %[sum]" : [sum] "+v"(sum) : [a] "v"(a), [w] "v"(w));
  }
  static EDGE_INLINE void add(Accumulator& sum, Accumulator other) { sum = _mm512_add_epi32(sum, other); }
  static EDGE_INLINE i32x16 finish(Accumulator only, Accumulator) { return {only}; }
};

#elif defined(__AVXVNNI__)

struct Int8Dot : OffsetActivation {
  using Broadcast = __m256i;
  using Weights = __m256i;
  using Accumulator = __m256i;
  static constexpr int kRegisters = 2;
  static constexpr int kRows = 6, kPanels = 1, kStreamRows = 6;
  static constexpr int kTwoPanelRows = 2;  // sums and weights of more leave the sixteen registers

  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return _mm256_set1_epi32(load_four(p)); }
  static EDGE_INLINE Weights weights(const int8_t* tile, int part) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i_u*>(tile) + part);
  }
  static EDGE_INLINE Accumulator zero() { return _mm256_setzero_si256(); }
  // In assembly as above; {vex} because these CPUs have no EVEX form.
  static EDGE_INLINE void dot(Accumulator& sum, Broadcast a, Weights w) {
    asm("%{vex%} vpdpbusd %[w], %[a], %[sum]" : [sum] "+x"(sum) : [a] "x"(a), [w] "x"(w));
  }
  static EDGE_INLINE void add(Accumulator& sum, Accumulator other) { sum = _mm256_add_epi32(sum, other); }
  static EDGE_INLINE i32x16 finish(Accumulator low, Accumulator high) { return {low, high}; }
};

#elif defined(__AVX2__)

// (a with the sign of w) * |w| by vpmaddubsw: a pair of products is at most 2 * 127 * 127 < 2^15, so nothing saturates.
struct Int8Dot : SignedActivation {
  using Broadcast = __m256i;
  struct Weights { const __m256i_u* value; __m256i magnitude; };  // the value is read where it lies
  using Accumulator = __m256i;
  static constexpr int kRegisters = 2;
  static constexpr int kRows = 6, kPanels = 1, kStreamRows = 6;
  static constexpr int kTwoPanelRows = 2;  // sums and weights of more leave the sixteen registers

  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return _mm256_set1_epi32(load_four(p)); }
  static EDGE_INLINE Weights weights(const int8_t* tile, int part) {
    const auto* value = reinterpret_cast<const __m256i_u*>(tile) + part;
    return {value, _mm256_abs_epi8(_mm256_loadu_si256(value))};
  }
  static EDGE_INLINE Accumulator zero() { return _mm256_setzero_si256(); }
  // In assembly: twelve sums and their operands just fit sixteen registers, and GCC reorders until they do not.
  static EDGE_INLINE void dot(Accumulator& sum, Broadcast a, const Weights& w) {
    __m256i t;
    asm("vpsignb %[w], %[a], %[t]\n\t"
        "vpmaddubsw %[t], %[magnitude], %[t]\n\t"  // int16: pairs
        "vpmaddwd %[ones], %[t], %[t]\n\t"         // int32: fours
        "vpaddd %[t], %[sum], %[sum]"
        : [sum] "+x"(sum), [t] "=&x"(t)
        : [a] "x"(a), [w] "m"(*w.value), [magnitude] "x"(w.magnitude), [ones] "xm"(_mm256_set1_epi16(1)));
  }
  static EDGE_INLINE void add(Accumulator& sum, Accumulator other) { sum = _mm256_add_epi32(sum, other); }
  static EDGE_INLINE i32x16 finish(Accumulator low, Accumulator high) { return {low, high}; }
};

#elif defined(EDGE_NEON)

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
#if defined(__ARM_FEATURE_MATMUL_INT8)
  // sum[2 rows][2 channels] += a[2 rows][8 columns] . w[2 channels][8 columns]
  static EDGE_INLINE void dot_pair(int32x4_t& sum, int8x16_t a, int8x16_t w) {
    asm volatile("smmla %[sum].4s, %[a].16b, %[w].16b" : [sum] "+w"(sum) : [a] "w"(a), [w] "w"(w));
  }
  // A quarter of a tile and of the next: [4 channels][4 columns] twice -> [2 channels][8 columns] twice
  static EDGE_INLINE void zip(int8x16_t left, int8x16_t right, int8x16_t& first, int8x16_t& second) {
    asm volatile("zip1 %[out].4s, %[left].4s, %[right].4s" : [out] "=w"(first) : [left] "w"(left), [right] "w"(right));
    asm volatile("zip2 %[out].4s, %[left].4s, %[right].4s" : [out] "=w"(second) : [left] "w"(left), [right] "w"(right));
  }
#endif
};

#else

struct Int8Dot : SignedActivation {
  struct Broadcast { int16_t v[kTileDepth]; };
  struct Weights { const int8_t* tile; };
  using Accumulator = i32x16;
  static constexpr int kRegisters = 1;
  static constexpr int kRows = 4, kPanels = 1, kStreamRows = 4, kTwoPanelRows = 4;

  static EDGE_INLINE Broadcast broadcast(const Activation* p) { return {{p[0], p[1], p[2], p[3]}}; }
  static EDGE_INLINE Weights weights(const int8_t* tile, int) { return {tile}; }
  static EDGE_INLINE Accumulator zero() { return broadcast_i32(0); }
  static EDGE_INLINE void dot(Accumulator& sum, Broadcast a, Weights w) {
    for (int i = 0; i < kTileChannels; ++i) {
      const int8_t* four = w.tile + kTileDepth * i;
      sum.v[i] += a.v[0] * four[0] + a.v[1] * four[1] + a.v[2] * four[2] + a.v[3] * four[3];
    }
  }
  static EDGE_INLINE void add(Accumulator& sum, Accumulator other) { sum = add_i32(sum, other); }
  static EDGE_INLINE i32x16 finish(Accumulator only, Accumulator) { return only; }
};

#endif

constexpr int kPrefetchBytes = 4096;  // a few rows are bound by memory: run ahead of the hardware prefetcher

// What a microkernel fetches into L2 meanwhile, `step` bytes further with each block; nothing: 0.
struct Ahead {
  const int8_t* data;
  int64_t step;
};

#if defined(EDGE_NEON)

// The microkernels: dot[r][0] = rows a[0..R) x the panel w, whole depth, sums in registers.
//   a: a pair's first row, see PairedActivation::place; w: the panel; blocks = ceil(K/4).
// Two blocks, 8 columns, make a step. An odd last block meets the first half of its 8 columns; the rest is undefined.

// By sdot: a quarter of a tile, 4 channels x 4 columns, times 4 columns of one row. Unroll as in the other `multiply`.
template <int R, int Unroll>
EDGE_INLINE void multiply_rows(const int8_t* a, int64_t stride, const int8_t* w, int64_t blocks, i32x16 (&dot)[R][1]) {
  static_assert(Unroll <= 2, "a step has two blocks");
  constexpr int kPairs = (R + 1) / 2;
  int32x4_t sum[Unroll][R][4];
  unrolled<Unroll>([&](auto u) EDGE_INLINE_LAMBDA {
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA { sum[u][r][c] = vdupq_n_s32(0); });
    });
  });

  const auto step = [&](auto count, int64_t block) EDGE_INLINE_LAMBDA {  // 1 or 2 blocks
    int8x16_t pair[kPairs];
    unrolled<kPairs>([&](auto p) EDGE_INLINE_LAMBDA { pair[p] = vld1q_s8(a + 2 * p * stride + 2 * block * kTileDepth); });
    unrolled<count>([&](auto b) EDGE_INLINE_LAMBDA {
      const int8_t* tile = w + (block + b) * kTileBytes;
      __builtin_prefetch(tile + kPrefetchBytes);
      unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA {
        const int8x16_t weights = vld1q_s8(tile + 16 * c);
        unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
          constexpr int kSum = b % Unroll, kLane = r % 2 * 2 + b;
          Int8Dot::dot<kLane>(sum[kSum][r][c], weights, pair[r / 2]);
        });
      });
    });
  };
  int64_t block = 0;
  for (; block + 2 <= blocks; block += 2) step(Index<2>{}, block);
  if (block < blocks) step(Index<1>{}, block);

  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA {
      dot[r][0].v[c] = Unroll == 1 ? sum[0][r][c] : vaddq_s32(sum[0][r][c], sum[Unroll - 1][r][c]);
    });
  });
}

#if defined(__ARM_FEATURE_MATMUL_INT8)
// By smmla: two rows x 8 columns times 2 channels x 8 columns, which are zipped from a tile and the next.
template <int R>
EDGE_INLINE void multiply_pairs(const int8_t* a, int64_t stride, const int8_t* w, int64_t blocks, i32x16 (&dot)[R][1]) {
  constexpr int kPairs = (R + 1) / 2;
  int32x4_t sum[kPairs][8];  // [pair][two channels]: even row, odd row
  unrolled<kPairs>([&](auto p) EDGE_INLINE_LAMBDA {
    unrolled<8>([&](auto c) EDGE_INLINE_LAMBDA { sum[p][c] = vdupq_n_s32(0); });
  });

  const auto step = [&](auto count, int64_t block) EDGE_INLINE_LAMBDA {  // 1 or 2 blocks
    const int8_t* tile = w + block * kTileBytes;
    int8x16_t pair[kPairs];
    unrolled<kPairs>([&](auto p) EDGE_INLINE_LAMBDA { pair[p] = vld1q_s8(a + 2 * p * stride + 2 * block * kTileDepth); });
    unrolled<count>([&](auto b) EDGE_INLINE_LAMBDA { __builtin_prefetch(tile + b * kTileBytes + kPrefetchBytes); });
    unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA {
      int8x16_t first, second;
      Int8Dot::zip(vld1q_s8(tile + 16 * c), count == 2 ? vld1q_s8(tile + kTileBytes + 16 * c) : vdupq_n_s8(0), first, second);
      unrolled<kPairs>([&](auto p) EDGE_INLINE_LAMBDA {
        Int8Dot::dot_pair(sum[p][2 * c], pair[p], first);
        Int8Dot::dot_pair(sum[p][2 * c + 1], pair[p], second);
      });
    });
  };
  int64_t block = 0;
  for (; block + 2 <= blocks; block += 2) step(Index<2>{}, block);
  if (block < blocks) step(Index<1>{}, block);

  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<4>([&](auto c) EDGE_INLINE_LAMBDA {
      const int64x2_t first = vreinterpretq_s64_s32(sum[r / 2][2 * c]), second = vreinterpretq_s64_s32(sum[r / 2][2 * c + 1]);
      dot[r][0].v[c] = vreinterpretq_s32_s64(r % 2 == 0 ? vzip1q_s64(first, second) : vzip2q_s64(first, second));
    });
  });
}
#endif

template <int R, int P, int Unroll>
EDGE_INLINE void multiply(const int8_t* a, int64_t stride, const int8_t* w, int64_t, int64_t blocks, i32x16 (&dot)[R][P],
                          Ahead = {}) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
  // Up to three rows sdot takes as many instructions: it has no zips.
  if constexpr (R > 3) return multiply_pairs<R>(a, stride, w, blocks, dot);
#endif
  multiply_rows<R, Unroll>(a, stride, w, blocks, dot);
}

#else

// The microkernel: dot[r][p] = rows a[0..R) x panels w[0..P), whole depth, sums in registers.
// Unroll > 1 keeps that many independent sums per accumulator: for tiles too small to hide the latency otherwise.
//   a: first row, `stride` apart; w: first panel, `panel_bytes` apart; blocks = ceil(K/4).
template <int R, int P, int Unroll>
EDGE_INLINE void multiply(const Int8Dot::Activation* a, int64_t stride, const int8_t* w, int64_t panel_bytes,
                          int64_t blocks, i32x16 (&dot)[R][P], Ahead ahead = {}) {
  constexpr int kColumns = P * Int8Dot::kRegisters;
  Int8Dot::Accumulator sum[Unroll][R][kColumns];
  unrolled<Unroll>([&](auto u) EDGE_INLINE_LAMBDA {
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { sum[u][r][c] = Int8Dot::zero(); });
    });
  });

  const auto step = [&](auto u, int64_t block) EDGE_INLINE_LAMBDA {
    Int8Dot::Weights tile[kColumns];
    unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA {
      constexpr int kPanel = c / Int8Dot::kRegisters, kPart = c % Int8Dot::kRegisters;
      tile[c] = Int8Dot::weights(w + kPanel * panel_bytes + block * kTileBytes, kPart);
    });
    if constexpr (P <= 2) {  // of few rows: what comes next in the panels themselves
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
        __builtin_prefetch(w + p * panel_bytes + block * kTileBytes + kPrefetchBytes);
      });
    } else if (ahead.step != 0) __builtin_prefetch(ahead.data + block * ahead.step, 0, 2);
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      const Int8Dot::Broadcast row = Int8Dot::broadcast(a + r * stride + block * kTileDepth);
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { Int8Dot::dot(sum[u][r][c], row, tile[c]); });
    });
  };
  int64_t block = 0;
  for (; block + Unroll <= blocks; block += Unroll)
    unrolled<Unroll>([&](auto u) EDGE_INLINE_LAMBDA { step(u, block + u); });
  for (; block < blocks; ++block) step(Index<0>{}, block);

  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<Unroll - 1>([&](auto u) EDGE_INLINE_LAMBDA {
      unrolled<kColumns>([&](auto c) EDGE_INLINE_LAMBDA { Int8Dot::add(sum[0][r][c], sum[u + 1][r][c]); });
    });
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      dot[r][p] = Int8Dot::finish(sum[0][r][p * Int8Dot::kRegisters], sum[0][r][(p + 1) * Int8Dot::kRegisters - 1]);
    });
  });
}

#endif

}  // namespace EDGE_VARIANT
}  // namespace edge

// CRC-32C (Castagnoli). One stream of the crc instruction is bound by its latency, so three run side by side; their
// results, and those of the pool's workers, are joined by multiplying with a power of x modulo the polynomial. CPUs that
// multiply polynomials in wide registers do better: they fold the data onto itself (Gopal et al., "Fast CRC computation for
// generic polynomials using PCLMULQDQ", Intel 2009) until a block is left.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace edge {
namespace crc {

constexpr uint32_t kPolynomial = 0x82F63B78u;  // reflected: bit 31 is x^0

// a * b modulo the polynomial.
inline uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (; a != 0; a <<= 1) {
    if (a & 0x80000000u) product ^= b;
    b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
  }
  return product;
}

// x^(8 * bytes) modulo the polynomial: what `bytes` zero bytes do to a CRC.
inline uint32_t power(uint64_t bytes) {
  uint32_t result = 0x80000000u, square = 0x00800000u;  // 1, x^8
  for (; bytes != 0; bytes >>= 1) {
    if (bytes & 1) result = multiply(result, square);
    square = multiply(square, square);
  }
  return result;
}

// The CRC of a|b from the finished CRCs of a and b.
inline uint32_t join(uint32_t a, uint32_t b, uint64_t bytes_of_b) { return multiply(power(bytes_of_b), a) ^ b; }

// ---- one core, raw register in and out (no complement) ----------------------------------------------------------

struct Tables {
  uint32_t entry[8][256];
  Tables() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
      entry[0][i] = value;
    }
    for (int t = 1; t < 8; ++t)
      for (uint32_t i = 0; i < 256; ++i) entry[t][i] = entry[t - 1][i] >> 8 ^ entry[0][entry[t - 1][i] & 0xFF];
  }
};

// Eight bytes per step by table (little-endian hosts).
inline uint32_t update_table(uint32_t crc, const uint8_t* data, int64_t bytes) {
  static const Tables tables;
  const auto& entry = tables.entry;
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    word ^= crc;
    crc = 0;
    for (int i = 0; i < 8; ++i) crc ^= entry[7 - i][word >> 8 * i & 0xFF];
  }
  for (; bytes > 0; ++data, --bytes) crc = entry[0][(crc ^ *data) & 0xFF] ^ crc >> 8;
  return crc;
}

#if defined(__x86_64__)
#define EDGE_CRC_TARGET __attribute__((target("sse4.2,crc32")))
EDGE_CRC_TARGET inline uint32_t step8(uint32_t crc, uint64_t word) {
  return static_cast<uint32_t>(__builtin_ia32_crc32di(crc, word));
}
EDGE_CRC_TARGET inline uint32_t step1(uint32_t crc, uint8_t byte) { return __builtin_ia32_crc32qi(crc, byte); }
inline bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__aarch64__) && defined(__linux__)
#define EDGE_CRC_TARGET __attribute__((target("+crc")))
EDGE_CRC_TARGET inline uint32_t step8(uint32_t crc, uint64_t word) { return __crc32cd(crc, word); }
EDGE_CRC_TARGET inline uint32_t step1(uint32_t crc, uint8_t byte) { return __crc32cb(crc, byte); }
inline bool has_instruction() { return getauxval(AT_HWCAP) & HWCAP_CRC32; }
#endif

#if defined(EDGE_CRC_TARGET)

constexpr int64_t kLineBytes = 64, kPrefetchBytes = 4096;

// Three streams of `Length` bytes each, as long as there are three; the rest is left to the caller.
template <int64_t Length>
EDGE_CRC_TARGET uint32_t update_three(uint32_t crc, const uint8_t*& data, int64_t& bytes) {
  static const uint32_t one = power(Length), two = power(2 * Length);
  for (; bytes >= 3 * Length; data += 3 * Length, bytes -= 3 * Length) {
    uint32_t second = 0, third = 0;
    for (int64_t at = 0; at < Length; at += 8) {
      if (at % kLineBytes == 0)
        for (int stream = 0; stream < 3; ++stream) __builtin_prefetch(data + at + stream * Length + kPrefetchBytes);
      uint64_t a, b, c;
      memcpy(&a, data + at, 8);
      memcpy(&b, data + at + Length, 8);
      memcpy(&c, data + at + 2 * Length, 8);
      crc = step8(crc, a);
      second = step8(second, b);
      third = step8(third, c);
    }
    crc = multiply(two, crc) ^ multiply(one, second) ^ third;
  }
  return crc;
}

EDGE_CRC_TARGET inline uint32_t update_instruction(uint32_t crc, const uint8_t* data, int64_t bytes) {
  crc = update_three<16384>(crc, data, bytes);
  crc = update_three<1024>(crc, data, bytes);
  for (; bytes >= 8; data += 8, bytes -= 8) {
    uint64_t word;
    memcpy(&word, data, 8);
    crc = step8(crc, word);
  }
  for (; bytes > 0; ++data, --bytes) crc = step1(crc, *data);
  return crc;
}

#endif

#if defined(__x86_64__)

constexpr int kFolded = 256;  // bytes in registers

// What the two halves of a 128-bit lane are multiplied with to move it kFolded bytes on. The product of 64 and 33 bits takes
// 32 bits more than a half: hence the 4 bytes.
inline __m128i fold_constants() {
  static const uint64_t low = power(kFolded + 4), high = power(kFolded - 4);
  return _mm_set_epi64x(static_cast<int64_t>(high << 1), static_cast<int64_t>(low << 1));
}

__attribute__((target("avx2,vpclmulqdq,sse4.2")))
inline uint32_t update_avx2(uint32_t crc, const uint8_t* data, int64_t bytes) {
  if (bytes < kFolded) return update_instruction(crc, data, bytes);
  constexpr int kRegisters = kFolded / 32;
  const __m256i by = _mm256_broadcastsi128_si256(fold_constants());
  __m256i folded[kRegisters];
  for (int i = 0; i < kRegisters; ++i) folded[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data) + i);
  folded[0] = _mm256_xor_si256(folded[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (data += kFolded, bytes -= kFolded; bytes >= kFolded; data += kFolded, bytes -= kFolded) {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) {
      const __m256i next = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(data) + i);
      const __m256i low = _mm256_clmulepi64_epi128(folded[i], by, 0x00);
      const __m256i high = _mm256_clmulepi64_epi128(folded[i], by, 0x11);
      folded[i] = _mm256_xor_si256(_mm256_xor_si256(low, high), next);
    }
  }
  crc = update_instruction(0, reinterpret_cast<const uint8_t*>(folded), kFolded);
  return update_instruction(crc, data, bytes);
}

__attribute__((target("avx512f,vpclmulqdq,sse4.2")))
inline uint32_t update_avx512(uint32_t crc, const uint8_t* data, int64_t bytes) {
  if (bytes < kFolded) return update_instruction(crc, data, bytes);
  constexpr int kRegisters = kFolded / 64, kXorOfThree = 0x96;
  const __m512i by = _mm512_maskz_broadcast_i32x4(0xFFFF, fold_constants());
  __m512i folded[kRegisters];
  for (int i = 0; i < kRegisters; ++i) folded[i] = _mm512_loadu_si512(data + 64 * i);
  folded[0] = _mm512_xor_si512(folded[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(static_cast<int>(crc))));
  for (data += kFolded, bytes -= kFolded; bytes >= kFolded; data += kFolded, bytes -= kFolded) {
#pragma GCC unroll 4
    for (int i = 0; i < kRegisters; ++i) {
      const __m512i low = _mm512_clmulepi64_epi128(folded[i], by, 0x00);
      const __m512i high = _mm512_clmulepi64_epi128(folded[i], by, 0x11);
      folded[i] = _mm512_ternarylogic_epi64(low, high, _mm512_loadu_si512(data + 64 * i), kXorOfThree);
    }
  }
  crc = update_instruction(0, reinterpret_cast<const uint8_t*>(folded), kFolded);
  return update_instruction(crc, data, bytes);
}

#endif

// A way to compute the raw register after these bytes.
struct Method {
  const char* name;
  uint32_t (*update)(uint32_t crc, const uint8_t* data, int64_t bytes);
};

// What this CPU can do, the fastest last.
struct Methods {
  Method list[4] = {{"table", update_table}};
  int count = 1;

  Methods() {
#if defined(EDGE_CRC_TARGET)
    if (!has_instruction()) return;
    list[count++] = {"instruction", update_instruction};
#endif
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("vpclmulqdq")) return;
    if (__builtin_cpu_supports("avx2")) list[count++] = {"avx2", update_avx2};
    if (__builtin_cpu_supports("avx512f")) list[count++] = {"avx512", update_avx512};
#endif
  }

  static const Methods& of_cpu() {
    static const Methods methods;
    return methods;
  }
};

inline uint32_t update(uint32_t crc, const uint8_t* data, int64_t bytes) {
  static const Method best = Methods::of_cpu().list[Methods::of_cpu().count - 1];
  return best.update(crc, data, bytes);
}

}  // namespace crc

// The CRC-32C of the bytes, as RFC 3720 prints it.
inline uint32_t crc32c(const uint8_t* data, int64_t bytes) { return ~crc::update(~0u, data, bytes); }

}  // namespace edge

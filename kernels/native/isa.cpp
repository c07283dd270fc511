#include "isa.h"

#include <atomic>
#include <initializer_list>
#include <stdexcept>

#if defined(EDGE_X86)
#include <cpuid.h>
#elif defined(EDGE_ARM64) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace edge {

namespace portable { extern const KernelTable table; extern const RecurrentKernels recurrent_table; }
#if defined(EDGE_X86)
namespace avx2 { extern const KernelTable table; extern const RecurrentKernels recurrent_table; }
namespace avxvnni { extern const KernelTable table; extern const RecurrentKernels recurrent_table; }
namespace avx512vnni { extern const KernelTable table; extern const RecurrentKernels recurrent_table; }
#elif defined(EDGE_ARM64)
namespace neondot { extern const KernelTable table; extern const RecurrentKernels recurrent_table; }
namespace neoni8mm { extern const KernelTable table; extern const RecurrentKernels recurrent_table; }
#endif

namespace {

struct Variant {
  const KernelTable* table;
  const RecurrentKernels* recurrent;
  bool supported;
};

#if defined(EDGE_X86) || defined(EDGE_ARM64)
bool all_bits(uint64_t word, std::initializer_list<int> bits) {
  for (int bit : bits)
    if (!(word >> bit & 1)) return false;
  return true;
}
#endif

#if defined(EDGE_X86)

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(unsigned leaf, unsigned subleaf) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
  return r;
}

// The register states the operating system saves (XCR0); a CPU feature without its state would fault or be corrupted.
uint64_t saved_states() {
  const bool osxsave = cpuid(1, 0).c >> 27 & 1;
  if (!osxsave) return 0;
  unsigned low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

bool has_avx2() {
  const bool ymm_state = (saved_states() & 0x6) == 0x6;
  return ymm_state && all_bits(cpuid(1, 0).c, {12 /* FMA */, 28 /* AVX */, 29 /* F16C */}) &&
         all_bits(cpuid(7, 0).b, {5 /* AVX2 */});
}

bool has_avxvnni() { return has_avx2() && all_bits(cpuid(7, 1).a, {4 /* AVX-VNNI */}); }

bool has_avx512vnni() {
  const bool zmm_state = (saved_states() & 0xE6) == 0xE6;
  return zmm_state && has_avx2() && all_bits(cpuid(7, 0).b, {16 /* F */, 17 /* DQ */, 30 /* BW */, 31 /* VL */}) &&
         all_bits(cpuid(7, 0).c, {11 /* VNNI */});
}

#elif defined(EDGE_ARM64)

#if defined(__linux__)
// What every core of the machine has. Bits by number: old headers lack the newer names.
uint64_t capabilities() { return getauxval(AT_HWCAP); }
uint64_t more_capabilities() { return getauxval(AT_HWCAP2); }
#else  // another system would have to be asked in its own way
uint64_t capabilities() { return 0; }
uint64_t more_capabilities() { return 0; }
#endif

// The dot product, and what else armv8.2-a+fp16 lets the compiler use.
bool has_neondot() {
  return all_bits(capabilities(), {1 /* ASIMD */, 7 /* CRC32 */, 8 /* ATOMICS */, 9 /* FPHP */, 10 /* ASIMDHP */,
                                   12 /* ASIMDRDM */, 20 /* ASIMDDP */});
}

bool has_neoni8mm() { return has_neondot() && all_bits(more_capabilities(), {13 /* I8MM */}); }

#endif

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {&portable::table, &portable::recurrent_table, true},
#if defined(EDGE_X86)
      {&avx2::table, &avx2::recurrent_table, has_avx2()},
      {&avxvnni::table, &avxvnni::recurrent_table, has_avxvnni()},
      {&avx512vnni::table, &avx512vnni::recurrent_table, has_avx512vnni()},
#elif defined(EDGE_ARM64)
      {&neondot::table, &neondot::recurrent_table, has_neondot()},
      {&neoni8mm::table, &neoni8mm::recurrent_table, has_neoni8mm()},
#endif
  };
  return all;
}

const Variant* best() {
  const Variant* found = nullptr;
  for (const Variant& variant : variants())
    if (variant.supported) found = &variant;
  return found;
}

std::atomic<const Variant*>& chosen() {
  static std::atomic<const Variant*> variant{best()};
  return variant;
}

}  // namespace

const KernelTable& kernels() { return *chosen().load(std::memory_order_relaxed)->table; }

const RecurrentKernels& recurrent_kernels() { return *chosen().load(std::memory_order_relaxed)->recurrent; }

std::vector<std::string> isa_variants() {
  std::vector<std::string> names;
  for (const Variant& variant : variants())
    if (variant.supported) names.emplace_back(variant.table->name);
  return names;
}

void use_isa(const std::string& name) {
  std::string known;
  for (const Variant& variant : variants()) {
    if (!variant.supported) continue;
    if (name == variant.table->name) {
      chosen().store(&variant);
      return;
    }
    known += known.empty() ? "" : ", ";
    known += variant.table->name;
  }
  throw std::invalid_argument("unknown ISA variant `" + name + "`; this CPU runs " + known);
}

}  // namespace edge

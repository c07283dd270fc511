#include "isa.h"

#include <atomic>
#include <initializer_list>
#include <stdexcept>

#if defined(EDGE_X86)
#include <cpuid.h>
#endif

namespace edge {

namespace portable { extern const KernelTable table; }
#if defined(EDGE_X86)
namespace avx2 { extern const KernelTable table; }
namespace avxvnni { extern const KernelTable table; }
namespace avx512vnni { extern const KernelTable table; }
#endif
// Other instruction sets (NEON dot product, i8mm) join here, in variants() and in CMakeLists.txt.

namespace {

struct Variant {
  const KernelTable* table;
  bool supported;
};

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

bool all_bits(unsigned word, std::initializer_list<int> bits) {
  for (int bit : bits)
    if (!(word >> bit & 1)) return false;
  return true;
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

#endif

const std::vector<Variant>& variants() {
  static const std::vector<Variant> all = {
      {&portable::table, true},
#if defined(EDGE_X86)
      {&avx2::table, has_avx2()},
      {&avxvnni::table, has_avxvnni()},
      {&avx512vnni::table, has_avx512vnni()},
#endif
  };
  return all;
}

const KernelTable* best() {
  const KernelTable* table = nullptr;
  for (const Variant& variant : variants())
    if (variant.supported) table = variant.table;
  return table;
}

std::atomic<const KernelTable*>& chosen() {
  static std::atomic<const KernelTable*> table{best()};
  return table;
}

}  // namespace

const KernelTable& kernels() { return *chosen().load(std::memory_order_relaxed); }

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
      chosen().store(variant.table);
      return;
    }
    known += known.empty() ? "" : ", ";
    known += variant.table->name;
  }
  throw std::invalid_argument("unknown ISA variant `" + name + "`; this CPU runs " + known);
}

}  // namespace edge

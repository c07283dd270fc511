#include "isa.h"

#include <atomic>
#include <stdexcept>

#include "isas.h"

namespace edge {

#define EDGE_ISA(name) \
  namespace name { extern const KernelTable table; }
EDGE_ISAS(EDGE_ISA)
#undef EDGE_ISA

namespace {

struct Variant {
  const KernelTable* table;
  bool supported;
};

// The table that chooses, from the slowest to the best.
const std::vector<Variant>& variants() {
#define EDGE_ISA(name) {&name::table, name::has_it()},
  static const std::vector<Variant> all = {EDGE_ISAS(EDGE_ISA)};
#undef EDGE_ISA
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

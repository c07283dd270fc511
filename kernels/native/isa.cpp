#include "isa.h"

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "isas.h"

namespace edge {

#define EDGE_ISA(name) \
  namespace name { extern const KernelTable table; extern const NeuronKernels neuron_table; }
EDGE_ISAS(EDGE_ISA)
#undef EDGE_ISA

namespace {

struct Variant {
  const KernelTable* table;
  const NeuronKernels* neurons;
  bool supported;
};

// The table that chooses, from the slowest to the best.
const std::vector<Variant>& variants() {
#define EDGE_ISA(name) {&name::table, &name::neuron_table, name::has_it()},
  static const std::vector<Variant> all = {EDGE_ISAS(EDGE_ISA)};
#undef EDGE_ISA
  return all;
}

// Why the system keeps this process from using a set that the CPU has; null where it does not.
const char* refusal(const Variant& variant) { return variant.table->permit == nullptr ? nullptr : variant.table->permit(); }

std::string& refused() {
  static std::string why;
  return why;
}

const Variant* best() {
  const Variant* found = nullptr;
  for (const Variant& variant : variants()) {
    if (!variant.supported || variant.table->emulated) continue;
    if (const char* why = refusal(variant)) refused() = std::string(variant.table->name) + ": " + why;
    else found = &variant;
  }
  return found;
}

std::atomic<const Variant*>& chosen() {
  static std::atomic<const Variant*> variant{best()};
  return variant;
}

std::vector<std::string> names_of(bool emulated) {
  chosen();  // what is refused is known from here on
  std::vector<std::string> names;
  for (const Variant& variant : variants())
    if (variant.supported && variant.table->emulated == emulated && refusal(variant) == nullptr) names.emplace_back(variant.table->name);
  return names;
}

}  // namespace

const KernelTable& kernels() { return *chosen().load(std::memory_order_relaxed)->table; }

const NeuronKernels& neuron_kernels() { return *chosen().load(std::memory_order_relaxed)->neurons; }

std::vector<std::string> isa_variants() { return names_of(false); }

std::vector<std::string> emulated_isas() {
  const std::vector<std::string> real = names_of(false);
  std::vector<std::string> names = names_of(true);
  names.erase(std::remove_if(names.begin(), names.end(), [&](const std::string& name) { return std::count(real.begin(), real.end(), name) != 0; }),
              names.end());
  return names;
}

std::string isa_refusal() {
  chosen();
  return refused();
}

void use_isa(const std::string& name) {
  chosen();
  std::string known;
  const Variant* found = nullptr;
  for (const Variant& variant : variants()) {
    if (!variant.supported || refusal(variant) != nullptr) continue;
    if (name == variant.table->name && (found == nullptr || found->table->emulated)) found = &variant;
    known += known.empty() ? "" : ", ";
    known += variant.table->name + std::string(variant.table->emulated ? " (emulated)" : "");
  }
  if (found == nullptr) throw std::invalid_argument("unknown ISA variant `" + name + "`; this CPU runs " + known);
  chosen().store(found);
}

}  // namespace edge

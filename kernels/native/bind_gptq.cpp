// Bindings of gptq.h: arguments checked, rows and panels shared out over the pool.
#include <algorithm>
#include <string>
#include <vector>

#include "bind.h"

namespace edge {
namespace {

constexpr int64_t kRowsPerBlock = 16;

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

Array<const int64_t, 1> read_order(nb::handle order_arg, int64_t columns) {
  const auto order = read<int64_t, 1>(order_arg, "order");
  expect_shape(order, "order", {columns});
  std::vector<bool> there(static_cast<size_t>(columns));
  for (int64_t i = 0; i < columns; ++i) {
    if (order.data[i] < 0 || order.data[i] >= columns || there[static_cast<size_t>(order.data[i])])
      refuse("`order` must name each of " + std::to_string(columns) + " columns once");
    there[static_cast<size_t>(order.data[i])] = true;
  }
  return order;
}

FitPanels read_panels(const Array<const float, 3>& panels, int64_t columns) {
  const FitPanels found = {const_cast<float*>(panels.data), columns};
  expect_shape(panels, "panels", {found.count(), columns, kFitWidth});
  return found;
}

nb::object energy_panels(nb::handle energy_arg, nb::handle order_arg, ThreadPool& pool) {
  const auto energy = read<float, 2>(energy_arg, "energy");
  const int64_t columns = energy.shape[0];
  expect_shape(energy, "energy", {columns, columns});
  const auto order = read_order(order_arg, columns);
  nb::object panels = new_array<float, 3>({(columns + kFitWidth - 1) / kFitWidth, columns, kFitWidth});
  const GatherPanels args = {energy.data, order.data, {data_of<float, 3>(panels), columns}};
  const KernelCall call(pool);
  const auto kernel = kernels().fit->gather;
  pool.for_blocks(columns, kRowsPerBlock, [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
  return panels;
}

bool factor_energy(nb::handle panels_arg, ThreadPool& pool) {
  const auto panels = write<float, 3>(panels_arg, "panels");
  const FitPanels args = {panels.data, panels.shape[1]};
  expect_shape(panels, "panels", {args.count(), args.columns, kFitWidth});
  const KernelCall call(pool);
  const FitKernels& fit = *kernels().fit;
  for (int64_t block = args.count() - 1; block >= 0; --block) {
    if (!fit.factor_diagonal(args, block)) return false;
    pool.for_blocks(block, 1, [&](int64_t begin, int64_t end, int) { fit.factor_panels(args, block, begin, end); });
  }
  return true;
}

// Sets all but `passes` and `found`; arrays must outlive it.
FitWeight read_weight(nb::handle weight_arg, nb::handle panels_arg, nb::handle order_arg, int64_t kept, nb::handle step_arg,
                      nb::handle inverse_arg, nb::handle shift_arg) {
  const auto weight = read<float, 2>(weight_arg, "weight");
  const int64_t rows = weight.shape[0], columns = weight.shape[1];
  const FitPanels panels = read_panels(read<float, 3>(panels_arg, "panels"), columns);
  const auto order = read_order(order_arg, columns);
  if (kept < 0 || kept > columns) refuse("`kept` must be in 0.." + std::to_string(columns) + "; got `" + std::to_string(kept) + "`");
  const bool whole = inverse_arg.is_none();
  const auto step = read<float, 2>(step_arg, "step");
  const int64_t groups = whole ? 1 : (columns + kFitGroup - 1) / kFitGroup;
  expect_shape(step, "step", {groups, rows});
  FitWeight found = {weight.data, rows, panels, order.data, kept, step.data, nullptr, nullptr, 0, nullptr};
  if (whole) return found;
  const auto inverse = read<float, 2>(inverse_arg, "inverse"), shift = read<float, 2>(shift_arg, "shift");
  expect_shape(inverse, "inverse", {groups, rows});
  expect_shape(shift, "shift", {groups, rows});
  found.inverse = inverse.data;
  found.shift = shift.data;
  return found;
}

void fit_strips(const FitWeight& args, ThreadPool& pool) {
  const bool descends = args.passes > 0;
  const size_t bytes = static_cast<size_t>(args.strip_floats() * (descends ? 2 : 1)) * sizeof(float);
  const KernelCall call(pool);
  const auto kernel = descends ? kernels().fit->descend : kernels().fit->fit;
  pool.for_blocks((args.rows + kFitWidth - 1) / kFitWidth, 1, [&](int64_t begin, int64_t end, int worker) {
    kernel(args, static_cast<float*>(pool.scratch(worker, bytes)), begin, end);
  });
}

nb::object fit_weight(nb::handle weight, nb::handle panels, nb::handle order, int64_t kept, nb::handle step, nb::handle inverse,
                      nb::handle shift, ThreadPool& pool) {
  FitWeight args = read_weight(weight, panels, order, kept, step, inverse, shift);
  nb::object found = new_array<float, 2>({args.rows, args.panels.columns});
  args.found = data_of<float, 2>(found);
  fit_strips(args, pool);
  return found;
}

void descend_weight(nb::handle weight, nb::handle found_arg, nb::handle panels, nb::handle order, int64_t kept, nb::handle step,
                    nb::handle inverse, nb::handle shift, int64_t passes, ThreadPool& pool) {
  FitWeight args = read_weight(weight, panels, order, kept, step, inverse, shift);
  const auto found = write<float, 2>(found_arg, "found");
  expect_shape(found, "found", {args.rows, args.panels.columns});
  if (passes < 1) refuse("`passes` must be at least 1; got `" + std::to_string(passes) + "`");
  args.passes = passes;
  args.found = found.data;
  fit_strips(args, pool);
}

}  // namespace

void bind_gptq(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg number, pool;
  module.def("energy_panels", &energy_panels, any, any, pool);
  module.def("factor_energy", &factor_energy, any, pool);
  module.def("fit_weight", &fit_weight, any, any, any, number, any, any, any, pool);
  module.def("descend_weight", &descend_weight, any, any, any, any, number, any, any, any, number, pool);
}

}  // namespace edge

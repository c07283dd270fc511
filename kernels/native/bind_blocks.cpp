// Bindings of blocks.h and block_layout.h: arguments are checked here, once, and kernels trust them.
#include "block_layout.h"
#include "calls.h"

namespace edge {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

BlockPanels shape_of(int64_t kind, int64_t n, int64_t columns) {
  if (kind < 0 || kind >= kBlockKinds) refuse("`kind` must be below " + std::to_string(kBlockKinds) + "; got `" + std::to_string(kind) + "`");
  BlockPanels weight = {nullptr, static_cast<int>(kind), n, columns};
  if (n < 0 || columns < 0 || columns > kMaxColumns || columns % weight.shape().columns != 0)
    refuse("a weight has 0 or more rows and a multiple of " + std::to_string(weight.shape().columns) + " columns, at most " +
           std::to_string(kMaxColumns) + "; got `" + std::to_string(n) + "` and `" + std::to_string(columns) + "`");
  return weight;
}

BlockPanels read_blocks(nb::handle panels_arg, int64_t kind, int64_t n, int64_t columns) {
  BlockPanels weight = shape_of(kind, n, columns);
  const auto panels = read<uint8_t, 2>(panels_arg, "panels");
  expect_shape(panels, "panels", {weight.panels(), weight.panel_bytes()});
  weight.data = panels.data;
  return weight;
}

void make_block_linear(BlockLinear* self, nb::sequence panels, nb::sequence kinds, nb::sequence counts, int64_t columns) {
  const size_t parts = nb::len(panels);
  if (parts == 0 || nb::len(kinds) != parts || nb::len(counts) != parts)
    refuse("a linear has parts, and as many kinds and counts of rows; got `" + std::to_string(parts) + "`, `" +
           std::to_string(nb::len(kinds)) + "` and `" + std::to_string(nb::len(counts)) + "`");
  new (self) BlockLinear();
  self->columns = columns;
  for (size_t i = 0; i < parts; ++i) {
    self->arrays.push_back(panels[i]);
    self->parts.push_back(read_blocks(self->arrays.back(), nb::cast<int64_t>(nb::object(kinds[i])),
                                      nb::cast<int64_t>(nb::object(counts[i])), columns));
    self->channels += self->parts.back().channels;
  }
}

nb::object lay_out_blocks(nb::handle raw_arg, int64_t kind, int64_t n, int64_t k, ThreadPool& pool) {
  const BlockPanels weight = shape_of(kind, n, k);
  const auto raw = read<uint8_t, 1>(raw_arg, "raw");
  expect_shape(raw, "raw", {n * (k / weight.shape().columns) * weight.shape().file_bytes});
  nb::object panels = new_array<uint8_t, 2>({weight.panels(), weight.panel_bytes()});
  auto* to = data_of<uint8_t, 2>(panels);
  const KernelCall call(pool);
  pool.for_blocks(weight.panels(), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t number = begin; number < end; ++number)
      lay_out_panel(raw.data, weight, number, to + number * weight.panel_bytes());
  });
  return panels;
}

void run_rows(const BlockPanels& weight, int64_t count, const int64_t* rows, float* out, ThreadPool& pool) {
  const auto kernel = kernels().blocks->rows;
  pool.for_blocks(count, 4, [&](int64_t begin, int64_t end, int) { kernel(weight, rows, out, begin, end); });
}

nb::object block_rows(nb::handle panels, int64_t kind, int64_t k, nb::handle rows_arg, ThreadPool& pool) {
  const int64_t count = read<uint8_t, 2>(panels, "panels").shape[0];
  const BlockPanels weight = read_blocks(panels, kind, count * kTileChannels, k);
  const auto rows = read<int64_t, 1>(rows_arg, "rows");
  for (int64_t m = 0; m < rows.shape[0]; ++m)
    if (rows.data[m] < 0 || rows.data[m] >= weight.channels)
      refuse("`rows` must be in 0.." + std::to_string(weight.channels - 1) + "; got `" + std::to_string(rows.data[m]) + "`");
  nb::object out = new_array<float, 2>({rows.shape[0], k});
  auto* to = data_of<float, 2>(out);
  const KernelCall call(pool);
  run_rows(weight, rows.shape[0], rows.data, to, pool);
  return out;
}

nb::object block_linear(nb::handle x, const BlockLinear& linear, ThreadPool& pool, nb::handle bias, nb::handle add, nb::handle gain,
                        double eps, int gate, double limit, nb::handle out_arg) {
  BlockCall call(x, linear, bias, add, gain, eps, gate, limit);
  nb::object out = call.write_to(out_arg);
  bool finite;
  {
    const KernelCall held(pool);
    finite = call.run(call.rows, pool);
  }
  if (!finite) refuse(kNotFinite);
  return out;
}

}  // namespace

BlockCall::BlockCall(nb::handle x_arg, const BlockLinear& linear, nb::handle bias_arg, nb::handle add_arg, nb::handle gain_arg,
                     double eps, int gate, double limit)
    : parts(linear.parts) {
  const auto x = read<float, 2>(x_arg, "x");
  expect_shape(x, "x", {-1, linear.columns});
  rows = x.shape[0];
  const auto bias = read_optional<float, 1>(bias_arg, "bias");
  if (bias) expect_shape(bias, "bias", {linear.channels});
  const auto gain = read_optional<float, 1>(gain_arg, "gain");
  if (gain) expect_shape(gain, "gain", {linear.columns});
  const auto add = read_optional<float, 2>(add_arg, "add");
  if (add) expect_shape(add, "add", {rows, linear.channels});
  const Gate meets = gate_of(gate, limit);
  if (meets.kind != kNoGate && add) refuse("`gate` takes no `add`");
  if (meets.kind != kNoGate && !linear.gated_in_one_pass())
    refuse("`gate` takes a multiple of " + std::to_string(2 * kTileChannels) + " channels in one part; got `" +
           std::to_string(linear.channels) + "` in `" + std::to_string(parts.size()) + "`");
  args = {x.data,    rows,      linear.columns, linear.channels, nullptr, static_cast<int64_t>(parts.size()),
          bias.data, gain.data, static_cast<float>(eps), add.data, nullptr, meets};
}

nb::object BlockCall::write_to(nb::handle out_arg) {
  nb::object array = output<float, 2>(out_arg, "out", {rows, width()});
  args.out = data_of<float, 2>(array);
  return array;
}

bool BlockCall::run(int64_t count, ThreadPool& pool) const {
  BlockLinearArgs these = args;
  these.parts = parts.data();
  these.rows = count;
  return kernels().blocks->linear(these, pool);
}

BlockRowsCall::BlockRowsCall(nb::handle panels, int64_t kind, int64_t channels, int64_t columns, float factor)
    : weight(read_blocks(panels, kind, channels, columns)), factor(factor) {}

nb::object BlockRowsCall::write_to(nb::handle out_arg, int64_t rows) {
  nb::object array = output<float, 2>(out_arg, "out", {rows, weight.columns});
  out = data_of<float, 2>(array);
  return array;
}

void BlockRowsCall::run(int64_t count, const int64_t* tokens, ThreadPool& pool) const {
  run_rows(weight, count, tokens, out, pool);
  if (factor != 1)
    for (int64_t i = 0; i < count * weight.columns; ++i) out[i] *= factor;
}

void bind_blocks(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg number, pool;
  nb::class_<BlockLinear>(module, "BlockLinear")
      .def("__init__", &make_block_linear, nb::arg(), nb::arg(), nb::arg(), number)
      .def_prop_ro("gated_in_one_pass", &BlockLinear::gated_in_one_pass)
      .def_prop_ro("rows", [](const BlockLinear& self) { return self.channels; })
      .def_prop_ro("columns", [](const BlockLinear& self) { return self.columns; });
  module.def("lay_out_blocks", &lay_out_blocks, any, number, number, number, pool);
  module.def("block_rows", &block_rows, any, number, number, any, pool);
  module.def("block_linear", &block_linear, any, nb::arg(), pool, any, any, any, number, number, number, any);
}

}  // namespace edge

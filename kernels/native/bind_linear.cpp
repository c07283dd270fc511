// Bindings of quantize.h, linear.h and roofs.h: arguments are checked here, once, and kernels trust them.
#include <algorithm>
#include <cmath>
#include <vector>

#include "calls.h"

namespace edge {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

}  // namespace

Array<const int32_t, 1> read_hot(nb::handle hot_arg, int64_t columns) {
  const auto hot = read<int32_t, 1>(hot_arg, "hot");
  int32_t last = -1;
  for (int64_t h = 0; h < hot.shape[0]; ++h) {
    if (hot.data[h] <= last || hot.data[h] >= columns)
      refuse("`hot` must ascend in 0.." + std::to_string(columns - 1) + "; got `" + std::to_string(hot.data[h]) + "`");
    last = hot.data[h];
  }
  return hot;
}

Array<const half, 2> read_hot_weight(nb::handle hot_weight_arg, int64_t hot_count, int64_t channels) {
  const auto hot_weight = read<half, 2>(hot_weight_arg, "hot_weight");
  expect_shape(hot_weight, "hot_weight", {hot_count, channels});
  return hot_weight;
}

namespace {

// The largest depth whose int32 sum cannot overflow: 127 * 127 * K < 2^31.
constexpr int64_t kMaxColumns = 131072;

void refuse_not_finite() { refuse(kNotFinite); }

float read_input_scale(double input_scale) {
  const float narrow = static_cast<float>(input_scale);
  if (!(narrow > 0.0f) || !std::isfinite(narrow) || !std::isfinite(1.0f / narrow))
    refuse("`input_scale` must be positive, finite and not tiny; got `" + std::to_string(input_scale) + "`");
  return narrow;
}

// The scale of a linear's input; None: 0, every row has its own.
float read_linear_scale(nb::handle input_scale) {
  return input_scale.is_none() ? 0.0f : read_input_scale(nb::cast<double>(input_scale));
}

// An `input_scale` of 0: every row has its own.
QuantizeInput quantize_input(const Array<const float, 2>& x, float input_scale, const Array<const int32_t, 1>& hot,
                             bool residual, nb::handle gain_arg, double eps, int64_t turn) {
  const bool row_scales = input_scale == 0.0f;
  const auto gain = read_optional<float, 1>(gain_arg, "gain");
  if (gain) expect_shape(gain, "gain", {x.shape[1]});
  return {x.data,    x.shape[0],  x.shape[1], row_scales ? 1.0f : input_scale, hot.data,
          hot.shape[0], residual && !row_scales, gain.data, static_cast<float>(eps), turn, row_scales};
}

Int8Weight read_weight(nb::handle tiles_arg, int64_t n, int64_t columns) {
  const auto tiles = read<int8_t, 4>(tiles_arg, "tiles");
  if (n < 0 || columns < 0 || columns > kMaxColumns)  // below 0 a block count could read as "any" to expect_shape
    refuse("a weight has 0 or more rows and columns, and at most " + std::to_string(kMaxColumns) + " columns; got `" +
           std::to_string(n) + "` and `" + std::to_string(columns) + "`");
  Int8Weight weight = {};
  weight.tiles = tiles.data;
  weight.channels = n;
  weight.columns = columns;
  expect_shape(tiles, "tiles", {weight.panels(), weight.blocks(), kTileChannels, kTileDepth});
  return weight;
}

const float* read_channel_floats(nb::handle value, const char* name, int64_t channels) {
  const auto array = read<float, 1>(value, name);
  expect_shape(array, name, {channels});
  return array.data;
}

const int32_t* read_channel_integers(nb::handle value, const char* name, int64_t channels) {
  const auto array = read<int32_t, 1>(value, name);
  expect_shape(array, name, {channels});
  return array.data;
}

// `weight` with what turns its sums into floats.
Int8Weight scaled(Int8Weight weight, nb::handle product_scale_arg, nb::handle row_sum_arg, nb::handle bias_arg) {
  weight.product_scale = read_channel_floats(product_scale_arg, "product_scale", weight.channels);
  weight.row_sum = read_channel_integers(row_sum_arg, "row_sum", weight.channels);
  if (!bias_arg.is_none()) weight.bias = read_channel_floats(bias_arg, "bias", weight.channels);
  return weight;
}

// What makes a product a rounded one. The sum of accumulator and bias must be an int32 whatever the activations are.
void read_rounding(Int8Weight& weight, nb::handle scale_arg, nb::handle bias_arg) {
  weight.rounded_scale = read_channel_floats(scale_arg, "rounded_scale", weight.channels);
  if (bias_arg.is_none()) return;
  weight.rounded_bias = read_channel_integers(bias_arg, "rounded_bias", weight.channels);
  const int64_t most = INT32_MAX - 127 * 127 * weight.columns;
  for (int64_t n = 0; n < weight.channels; ++n)
    if (weight.rounded_bias[n] > most || weight.rounded_bias[n] < -most)
      refuse("`rounded_bias` must be in -" + std::to_string(most) + ".." + std::to_string(most) + " beside " +
             std::to_string(weight.columns) + " columns; got `" + std::to_string(weight.rounded_bias[n]) + "`");
}

template <class T>
nb::object to_array(const std::vector<T>& values) {
  nb::object array = new_array<T, 1>({static_cast<int64_t>(values.size())});
  if (!values.empty()) std::memcpy(data_of<T, 1>(array), values.data(), values.size() * sizeof(T));
  return array;
}

void expect_turn_without_hot(int64_t turn, int64_t columns, int64_t hot_count) {
  expect_turn(turn, columns);
  if (turn != 0 && hot_count != 0) refuse("a row that is turned has no `hot` channels; got `" + std::to_string(hot_count) + "`");
}

nb::tuple quantize(nb::handle x_arg, double input_scale, nb::handle hot_arg, ThreadPool& pool, bool residual,
                   nb::handle gain_arg, double eps, int64_t turn) {
  const auto x = read<float, 2>(x_arg, "x");
  const int64_t m = x.shape[0], k = x.shape[1];
  const auto hot = read_hot(hot_arg, k);
  expect_turn_without_hot(turn, k, hot.shape[0]);
  const QuantizeInput input = quantize_input(x, read_input_scale(input_scale), hot, residual, gain_arg, eps, turn);
  nb::object q = new_array<int8_t, 2>({m, k});
  auto* q_data = data_of<int8_t, 2>(q);
  std::vector<ResidualRow> rows(static_cast<size_t>(m));
  std::vector<int64_t> row_start(static_cast<size_t>(m) + 1);
  std::vector<int32_t> column;
  std::vector<float> value;
  bool finite;
  {
    const KernelCall call(pool);
    finite = kernels().linear->quantize(input, q_data, rows.data(), pool);
    for (int64_t i = 0; finite && i < m; ++i) {
      const ResidualRow& row = rows[static_cast<size_t>(i)];
      const auto* entries = static_cast<const ResidualEntry*>(pool.extend(row.worker, 0)) + row.offset;
      for (int32_t e = 0; e < row.count; ++e) {
        column.push_back(entries[e].column());
        value.push_back(entries[e].value);
      }
      row_start[static_cast<size_t>(i) + 1] = static_cast<int64_t>(column.size());
    }
  }
  if (!finite) refuse_not_finite();
  return nb::make_tuple(q, to_array(row_start), to_array(column), to_array(value));
}

// The product of q and a weight, which has its columns.
nb::object quantized_product(const Array<const int8_t, 2>& q, const Int8Weight& weight, ThreadPool& pool, nb::handle out_arg) {
  nb::object out = output<float, 2>(out_arg, "out", {q.shape[0], weight.channels});
  auto* out_data = data_of<float, 2>(out);
  bool in_range;
  {
    const KernelCall call(pool);
    in_range = kernels().linear->linear_int8(q.data, q.shape[0], weight, out_data, pool);
  }
  if (!in_range) refuse("`q` holds `-128`; int8 activations are symmetric, in [-127, 127]");
  return out;
}

nb::object linear_int8(nb::handle q_arg, nb::handle tiles, int64_t n, nb::handle product_scale, nb::handle row_sum,
                       ThreadPool& pool, nb::handle bias, nb::handle out) {
  const auto q = read<int8_t, 2>(q_arg, "q");
  return quantized_product(q, scaled(read_weight(tiles, n, q.shape[1]), product_scale, row_sum, bias), pool, out);
}

nb::object linear_rounded(nb::handle q_arg, nb::handle tiles, int64_t n, nb::handle scale, nb::handle bias, nb::handle row_sum,
                          ThreadPool& pool, nb::handle out) {
  const auto q = read<int8_t, 2>(q_arg, "q");
  Int8Weight weight = read_weight(tiles, n, q.shape[1]);
  weight.row_sum = read_channel_integers(row_sum, "row_sum", n);
  read_rounding(weight, scale, bias);
  weight.product_scale = weight.rounded_scale;  // that of a residual, of which there is none
  return quantized_product(q, weight, pool, out);
}

nb::object hot_product(nb::handle x_arg, nb::handle hot_arg, nb::handle hot_weight_arg, ThreadPool& pool,
                       nb::handle out_arg) {
  const auto x = read<float, 2>(x_arg, "x");
  const auto hot = read_hot(hot_arg, x.shape[1]);
  const auto hot_weight = read_hot_weight(hot_weight_arg, hot.shape[0], -1);
  const int64_t rows = x.shape[0], channels = hot_weight.shape[1];
  nb::object out = output<float, 2>(out_arg, "out", {rows, channels});
  const KernelCall call(pool);
  kernels().linear->hot_product(data_of<float, 2>(out), x.data, rows, x.shape[1], channels, hot.data, hot.shape[0],
                               reinterpret_cast<const uint16_t*>(hot_weight.data), pool);
  return out;
}

const int64_t* read_row_start(nb::handle row_start_arg, int64_t rows, int64_t values) {
  const auto row_start = read<int64_t, 1>(row_start_arg, "residual.row_start");
  expect_shape(row_start, "residual.row_start", {rows + 1});
  if (row_start.data[0] != 0 || row_start.data[rows] != values)
    refuse("`residual.row_start` must run from 0 to " + std::to_string(values));
  for (int64_t i = 0; i < rows; ++i)
    if (row_start.data[i] > row_start.data[i + 1]) refuse("`residual.row_start` must not descend");
  return row_start.data;
}

nb::object overflow_product(nb::handle row_start_arg, nb::handle column_arg, nb::handle value_arg, nb::handle tiles_arg, int64_t n,
                            int64_t k, ThreadPool& pool, nb::handle out_arg) {
  const Int8Weight weight = read_weight(tiles_arg, n, k);
  const auto column = read<int32_t, 1>(column_arg, "residual.column");
  const auto value = read<float, 1>(value_arg, "residual.value");
  expect_shape(value, "residual.value", {column.shape[0]});
  const int64_t rows = read<int64_t, 1>(row_start_arg, "residual.row_start").shape[0] - 1;
  if (rows < 0) refuse("`residual.row_start` must not be empty");
  const ResidualRows residual = {read_row_start(row_start_arg, rows, column.shape[0]), column.data, value.data};
  for (int64_t i = 0; i < column.shape[0]; ++i)
    if (column.data[i] < 0 || column.data[i] >= k)
      refuse("`residual.column` must be in 0.." + std::to_string(k - 1) + "; got `" + std::to_string(column.data[i]) + "`");
  nb::object out = output<float, 2>(out_arg, "out", {rows, n});
  float* const sums = data_of<float, 2>(out);
  if (out_arg.is_none()) std::fill(sums, sums + rows * n, 0.0f);
  const KernelCall call(pool);
  kernels().linear->overflow_product(sums, rows, weight, residual, pool);
  return out;
}

void merge(nb::handle y_arg, nb::handle hot_sum_arg, nb::handle row_start_arg, nb::handle overflow_sum_arg,
           nb::handle product_scale_arg, ThreadPool& pool, nb::handle add_arg) {
  const auto y = write<float, 2>(y_arg, "y");
  const int64_t m = y.shape[0], n = y.shape[1];
  const auto hot_sum = read_optional<float, 2>(hot_sum_arg, "hot_sum");
  if (hot_sum) expect_shape(hot_sum, "hot_sum", {m, n});
  const auto overflow_sum = read_optional<float, 2>(overflow_sum_arg, "overflow_sum");
  if (overflow_sum) expect_shape(overflow_sum, "overflow_sum", {m, n});
  const auto add = read_optional<float, 2>(add_arg, "add");
  if (add) expect_shape(add, "add", {m, n});
  MergeArgs args = {};
  args.y = y.data;
  args.rows = m;
  args.channels = n;
  args.product_scale = read_channel_floats(product_scale_arg, "product_scale", n);
  args.hot_sum = hot_sum.data;
  args.overflow_sum = overflow_sum.data;
  args.add = add.data;
  if (overflow_sum) {
    const auto row_start = read<int64_t, 1>(row_start_arg, "residual.row_start");
    expect_shape(row_start, "residual.row_start", {m + 1});
    args.row_start = row_start.data;
  }
  const KernelCall call(pool);
  kernels().linear->merge(args, pool);
}

// The arrays of a linear beside its integers, whose order is that of `Int8Linear`'s arguments.
struct Beside {
  nb::handle product_scale, row_sum, hot, hot_weight, bias, rounded_scale, rounded_bias;
};

// A linear of `parts`, whose integers are in `arrays`.
Int8Linear assemble(std::vector<Int8Weight> parts, std::vector<nb::object> arrays, int64_t k, nb::handle input_scale_arg,
                    const Beside& beside, int64_t turn) {
  Int8Weight whole = {};
  whole.columns = k;
  for (const Int8Weight& part : parts) whole.channels += part.channels;
  whole = scaled(whole, beside.product_scale, beside.row_sum, beside.bias);
  if (!beside.rounded_scale.is_none()) read_rounding(whole, beside.rounded_scale, beside.rounded_bias);
  if (beside.rounded_scale.is_none() ? !beside.rounded_bias.is_none() : !beside.bias.is_none())
    refuse("a product that is rounded has `rounded_scale` and no `bias`, any other no `rounded_bias`");
  const auto hot = read_hot(beside.hot, k);
  const auto hot_weight = read_hot_weight(beside.hot_weight, hot.shape[0], whole.channels);
  const float input_scale = read_linear_scale(input_scale_arg);
  expect_turn_without_hot(turn, k, hot.shape[0]);
  if (input_scale == 0.0f && (hot.shape[0] != 0 || !beside.rounded_scale.is_none()))
    refuse("a linear whose rows have scales of their own (`input_scale` None) has no `hot` channels and no `rounded_scale`");
  int64_t first = 0;
  for (Int8Weight& part : parts) {
    part.take_vectors(whole, first);
    first += part.channels;
  }
  for (nb::handle array : {beside.product_scale, beside.row_sum, beside.hot, beside.hot_weight, beside.bias,
                           beside.rounded_scale, beside.rounded_bias})
    arrays.push_back(nb::borrow(array));
  return {std::move(arrays), std::move(parts), whole.channels, k, input_scale, turn, hot, hot_weight};
}

using ReadPanels = Int8Weight (*)(nb::handle, int64_t, int64_t);

// A linear of tiles or of codes, as `read_panels` reads them.
template <ReadPanels read_panels>
Int8Linear make_linear(nb::handle panels, int64_t n, int64_t k, nb::handle input_scale, nb::handle product_scale,
                       nb::handle row_sum, nb::handle hot, nb::handle hot_weight, nb::handle bias, nb::handle rounded_scale,
                       nb::handle rounded_bias, int64_t turn) {
  return assemble({read_panels(panels, n, k)}, {nb::borrow(panels)}, k, input_scale,
                  {product_scale, row_sum, hot, hot_weight, bias, rounded_scale, rounded_bias}, turn);
}

// A linear whose `integers` are of as many channels each as `counts` says: tiles, of int8, or codes, of uint8.
Int8Linear make_parts_linear(nb::sequence integers, nb::sequence counts, int64_t k, nb::handle input_scale,
                             nb::handle product_scale, nb::handle row_sum, nb::handle hot, nb::handle hot_weight,
                             nb::handle bias, nb::handle rounded_scale, nb::handle rounded_bias, int64_t turn) {
  if (nb::len(integers) != nb::len(counts) || nb::len(integers) == 0)
    refuse("a linear has parts, and as many `integers` as `counts`; got `" + std::to_string(nb::len(integers)) + "` and `" +
           std::to_string(nb::len(counts)) + "`");
  std::vector<Int8Weight> parts;
  std::vector<nb::object> arrays;
  for (size_t i = 0; i < nb::len(integers); ++i) {
    arrays.push_back(integers[i]);
    const auto count = nb::cast<int64_t>(nb::object(counts[i]));
    parts.push_back(holds<uint8_t>(arrays.back()) ? read_codes(arrays.back(), count, k) : read_weight(arrays.back(), count, k));
  }
  return assemble(std::move(parts), std::move(arrays), k, input_scale,
                  {product_scale, row_sum, hot, hot_weight, bias, rounded_scale, rounded_bias}, turn);
}

void make_tile_linear(Int8Linear* self, nb::handle tiles, int64_t n, int64_t k, nb::handle input_scale,
                      nb::handle product_scale, nb::handle row_sum, nb::handle hot, nb::handle hot_weight, nb::handle bias,
                      nb::handle rounded_scale, nb::handle rounded_bias, int64_t turn) {
  new (self) Int8Linear(make_linear<read_weight>(tiles, n, k, input_scale, product_scale, row_sum, hot, hot_weight, bias,
                                                 rounded_scale, rounded_bias, turn));
}

}  // namespace

LinearCall::LinearCall(nb::handle x_arg, const Int8Linear& linear, nb::handle add_arg, bool shadow, nb::handle gain_arg,
                       double eps, int gate_kind, double limit)
    : parts(linear.parts),
      channels(linear.channels),
      shadow_weight(shadow ? reinterpret_cast<const uint16_t*>(linear.hot_weight.data) : nullptr),
      gate(gate_of(gate_kind, limit)) {
  const auto x = read<float, 2>(x_arg, "x");
  rows = x.shape[0];
  expect_shape(x, "x", {-1, linear.columns});
  input = quantize_input(x, linear.input_scale, linear.hot, shadow, gain_arg, eps, linear.turn);
  const auto added = read_optional<float, 2>(add_arg, "add");
  if (added) expect_shape(added, "add", {rows, channels});
  add = added.data;
  if (gated() && add != nullptr) refuse("`gate` takes no `add`");
  if (gated() && !linear.swiglu_in_one_pass())
    refuse("`gate` takes a multiple of " + std::to_string(2 * kTileChannels) + " channels in one part; got `" +
           std::to_string(channels) + "` in `" + std::to_string(parts.size()) + "`");
}

nb::object LinearCall::write_to(nb::handle out_arg) {
  nb::object array = output<float, 2>(out_arg, "out", {rows, width()});
  out = data_of<float, 2>(array);
  if (parts.size() > 1 && out < input.x + rows * input.columns && input.x < out + rows * channels)
    refuse("`out` shares memory with `x`, which every part of the linear reads");
  return array;
}

bool LinearCall::run(int64_t count, ThreadPool& pool) const {
  QuantizeInput these = input;
  these.rows = count;
  return gated() ? kernels().linear->linear_gated(these, parts[0], shadow_weight, gate, out, pool)
                 : kernels().linear->linear(these, parts.data(), static_cast<int64_t>(parts.size()), shadow_weight, add, out, pool);
}

namespace {

nb::object linear(nb::handle x, const Int8Linear& linear, ThreadPool& pool, nb::handle add, bool shadow, nb::handle out_arg,
                  nb::handle gain, double eps, int gate, double limit) {
  LinearCall call(x, linear, add, shadow, gain, eps, gate, limit);
  nb::object out = call.write_to(out_arg);
  bool finite;
  {
    const KernelCall held(pool);
    finite = call.run(call.rows, pool);
  }
  if (!finite) refuse_not_finite();
  return out;
}

int64_t int8_operations(int64_t repeats, ThreadPool& pool) {
  const KernelCall call(pool);
  return kernels().linear->int8_operations(repeats, pool);
}

int32_t read_stream(nb::handle data_arg, ThreadPool& pool) {
  const auto data = read<int8_t, 1>(data_arg, "data");
  const KernelCall call(pool);
  return kernels().linear->read_stream(data.data, data.shape[0], pool);
}

}  // namespace

void bind_linear(nb::module_& module) {
  // None reaches `read`, which names the argument in its ValueError.
  const auto any = nb::arg().none();
  const nb::arg number, pool, flag;
  module.def("quantize", &quantize, any, number, any, pool, flag, any, number, number);
  module.def("linear_int8", &linear_int8, any, any, number, any, any, pool, any, any);
  module.def("linear_rounded", &linear_rounded, any, any, number, any, any, any, pool, any);
  module.def("hot_product", &hot_product, any, any, any, pool, any);
  module.def("overflow_product", &overflow_product, any, any, any, any, number, number, pool, any);
  module.def("merge", &merge, any, any, any, any, any, pool, any);
  nb::class_<Int8Linear>(module, "Int8Linear")
      .def("__init__", &make_tile_linear, any, number, number, any, any, any, any, any, any,
           nb::arg() = nb::none(), nb::arg() = nb::none(), nb::kw_only(), nb::arg("turn") = 0)
      .def_static("of_codes", &make_linear<read_codes>, any, number, number, any, any, any, any, any, any,
                  nb::arg() = nb::none(), nb::arg() = nb::none(), nb::kw_only(), nb::arg("turn") = 0)
      .def_static("of_parts", &make_parts_linear, nb::arg(), nb::arg(), number, any, any, any, any, any, any,
                  nb::arg() = nb::none(), nb::arg() = nb::none(), nb::kw_only(), nb::arg("turn") = 0)
      .def_prop_ro("swiglu_in_one_pass", &Int8Linear::swiglu_in_one_pass)
      .def_prop_ro("rows", [](const Int8Linear& self) { return self.channels; })
      .def_prop_ro("columns", [](const Int8Linear& self) { return self.columns; });
  module.def("linear", &linear, any, nb::arg(), pool, any, flag, any, any, number, number, number);
  module.def("int8_operations", &int8_operations);
  module.def("read_stream", &read_stream);
}

}  // namespace edge

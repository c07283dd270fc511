// Bindings of floats.h and calibration.h: arguments checked, channels, rows or values shared out over the pool.
#include <algorithm>
#include <vector>

#include "bind.h"

namespace edge {
namespace {

constexpr int64_t kFmasPerBlock = 128 << 10;  // some microseconds of work; less is not worth waking a worker
constexpr int64_t kChannelsPerBlock = 12;     // whole tiles of every variant
constexpr int64_t kBlocksPerThread = 4;
constexpr int64_t kValuesPerBlock = 16 << 10;

nb::object float_product(nb::handle x_arg, nb::handle weight_arg, ThreadPool& pool) {
  const auto x = read<float, 2>(x_arg, "x");
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const auto weight = read<float, 2>(weight_arg, "weight");
  expect_shape(weight, "weight", {-1, columns});
  const int64_t channels = weight.shape[0];
  nb::object out = new_array<float, 2>({rows, channels});
  const FloatProduct args = {x.data, rows, weight.data, columns, channels, columns, data_of<float, 2>(out)};
  const KernelCall call(pool);
  const auto kernel = kernels().floats->product;
  // Few blocks for each thread: all rows pass by once for each.
  const int64_t shares = channels / (kChannelsPerBlock * kBlocksPerThread * pool.threads());
  const int64_t blocks = std::max({int64_t{1}, shares, kFmasPerBlock / std::max<int64_t>(1, kChannelsPerBlock * rows * columns)});
  pool.for_blocks(channels, blocks * kChannelsPerBlock, [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
  return out;
}

nb::object float_exp(nb::handle x_arg, ThreadPool& pool) {
  const auto x = read<float, 1>(x_arg, "x");
  nb::object out = new_array<float, 1>({x.shape[0]});
  float* values = data_of<float, 1>(out);
  const KernelCall call(pool);
  const auto kernel = kernels().floats->exp;
  pool.for_blocks(x.shape[0], kValuesPerBlock, [&](int64_t begin, int64_t end, int) { kernel(x.data, values, begin, end); });
  return out;
}

nb::object rounding_errors(nb::handle x_arg, float inverse, ThreadPool& pool) {
  const auto x = read<float, 2>(x_arg, "x");
  const int64_t channels = x.shape[0], tokens = x.shape[1];
  nb::object rounded = new_array<double, 1>({channels}), clipped = new_array<double, 1>({channels});
  nb::object over = new_array<int64_t, 1>({channels});
  const RoundingErrors args = {x.data, tokens, inverse, data_of<double, 1>(rounded), data_of<double, 1>(clipped),
                               data_of<int64_t, 1>(over)};
  {
    const KernelCall call(pool);
    const auto kernel = kernels().floats->rounding_errors;
    const int64_t block = std::max<int64_t>(1, kValuesPerBlock / std::max<int64_t>(1, tokens));
    pool.for_blocks(channels, block, [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
  }
  return nb::make_tuple(rounded, clipped, over);
}

nb::object channel_powers(nb::handle x_arg, int pairs, ThreadPool& pool) {
  const auto x = read<float, 2>(x_arg, "x");
  if (pairs < 1) throw nb::value_error("`pairs` must be at least 1");
  const int64_t tokens = x.shape[0], channels = x.shape[1];
  nb::object largest = new_array<float, 1>({channels}), sums = new_array<double, 1>({channels});
  const ChannelPowers args = {x.data, tokens, channels, pairs, data_of<float, 1>(largest), data_of<double, 1>(sums)};
  {
    const KernelCall call(pool);
    kernels().floats->channel_powers(args);
  }
  return nb::make_tuple(largest, sums);
}

nb::object column_squares(nb::handle x_arg, float unit, ThreadPool& pool) {
  const auto x = strided<const float, 2>(x_arg, "x");
  nb::object sums = new_array<double, 1>({x.shape[1]});
  const ColumnSquares args = {x.data, x.shape[0], x.shape[1], x.stride[0], unit, data_of<double, 1>(sums)};
  const KernelCall call(pool);
  kernels().floats->column_squares(args);
  return sums;
}

void expect_channels(const Array<const int32_t, 1>& hot, int64_t columns) {
  for (int64_t h = 0; h < hot.shape[0]; ++h)
    if (hot.data[h] < (h ? hot.data[h - 1] + 1 : 0) || hot.data[h] >= columns)
      throw nb::value_error(("`hot` must list ascending channels below " + std::to_string(columns)).c_str());
}

nb::object quantize_rows(nb::handle weight_arg, nb::handle hot_arg, ThreadPool& pool) {
  const auto weight = read<float, 2>(weight_arg, "weight");
  const auto hot = read<int32_t, 1>(hot_arg, "hot");
  const int64_t rows = weight.shape[0], columns = weight.shape[1];
  expect_channels(hot, columns);
  const int64_t panels = (rows + kTileChannels - 1) / kTileChannels, blocks = (columns + kTileDepth - 1) / kTileDepth;
  nb::object tiles = new_array<int8_t, 4>({panels, blocks, kTileChannels, kTileDepth});
  nb::object scale = new_array<float, 1>({rows}), row_sum = new_array<int32_t, 1>({rows});
  int8_t* tiled = data_of<int8_t, 4>(tiles);
  const QuantizeRows args = {weight.data, columns, hot.data, hot.shape[0], data_of<float, 1>(scale),
                             data_of<int32_t, 1>(row_sum), tiled};
  {
    const KernelCall call(pool);
    const auto kernel = kernels().floats->quantize_rows;
    pool.for_blocks(panels, std::max<int64_t>(1, kValuesPerBlock / std::max<int64_t>(1, columns * kTileChannels)),
                    [&](int64_t begin, int64_t end, int) {
                      memset(tiled + begin * blocks * kTileBytes, 0, static_cast<size_t>((end - begin) * blocks * kTileBytes));
                      kernel(args, begin * kTileChannels, std::min(rows, end * kTileChannels));
                    });
  }
  return nb::make_tuple(tiles, scale, row_sum);
}

nb::object row_levels(nb::handle x_arg, int64_t index, ThreadPool& pool) {
  const auto x = read<float, 2>(x_arg, "x");
  const int64_t rows = x.shape[0], channels = x.shape[1];
  if (index < 0 || index >= channels) throw nb::value_error("`index` must be that of a channel");
  nb::object levels = new_array<float, 1>({rows});
  const RowLevels args = {x.data, channels, index, data_of<float, 1>(levels)};
  const KernelCall call(pool);
  const auto kernel = kernels().floats->row_levels;
  pool.for_blocks(rows, std::max<int64_t>(1, kValuesPerBlock / channels),
                  [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
  return levels;
}

nb::object float_attention(nb::handle queries_arg, nb::handle keys_arg, nb::handle values_arg, float scale, ThreadPool& pool) {
  const auto queries = read<float, 3>(queries_arg, "queries");
  const int64_t tokens = queries.shape[0], heads = queries.shape[1], dim = queries.shape[2];
  const auto keys = read<float, 3>(keys_arg, "keys");
  expect_shape(keys, "keys", {-1, -1, dim});
  const int64_t kv_heads = keys.shape[0], positions = keys.shape[1];
  const auto values = read<float, 3>(values_arg, "values");
  expect_shape(values, "values", {kv_heads, positions, dim});
  if (kv_heads < 1 || heads % kv_heads) throw nb::value_error("`queries` must have whole groups of heads for each of `keys`");
  if (positions < tokens) throw nb::value_error("`keys` must have at least the positions of `queries`");
  nb::object out = new_array<float, 3>({tokens, heads, dim});
  const FloatAttention args = {queries.data, keys.data, values.data, tokens, heads, kv_heads, positions, dim, scale,
                               data_of<float, 3>(out)};
  std::vector<float> scratch(static_cast<size_t>(args.scratch() * pool.threads()));
  const KernelCall call(pool);
  const auto kernel = kernels().floats->attention;
  pool.for_blocks(heads, 1, [&](int64_t begin, int64_t end, int worker) {
    kernel(args, scratch.data() + worker * args.scratch(), begin, end);
  });
  return out;
}

float widen(nb::handle x_arg, nb::handle out_arg, bool bfloat16) {
  const auto x = read<uint16_t, 1>(x_arg, "x");
  const auto out = write<float, 1>(out_arg, "out");
  expect_shape(out, "out", {x.shape[0]});
  const ReleasedGil released;
  return (bfloat16 ? kernels().floats->widen_bf16 : kernels().floats->widen_f16)(x.data, out.data, x.shape[0]);
}

}  // namespace

void bind_floats(nb::module_& module) {
  const auto any = nb::arg().none();
  module.def("float_product", &float_product, any, any, nb::arg());
  module.def("float_exp", &float_exp, any, nb::arg());
  module.def("rounding_errors", &rounding_errors, any, nb::arg(), nb::arg());
  module.def("channel_powers", &channel_powers, any, nb::arg(), nb::arg());
  module.def("column_squares", &column_squares, any, nb::arg(), nb::arg());
  module.def("quantize_rows", &quantize_rows, any, any, nb::arg());
  module.def("row_levels", &row_levels, any, nb::arg(), nb::arg());
  module.def("float_attention", &float_attention, any, any, any, nb::arg(), nb::arg());
  module.def("widen", &widen, any, any, nb::arg());
}

}  // namespace edge

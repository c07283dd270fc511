// float_product, float_exp: arguments checked, channels or values shared out over the pool.
#include <algorithm>

#include "bind.h"

namespace edge {
namespace {

constexpr int64_t kFmasPerBlock = 128 << 10;  // some microseconds of work; less is not worth waking a worker
constexpr int64_t kChannelsPerBlock = 12;     // whole tiles of every variant
constexpr int64_t kValuesPerBlock = 16 << 10;

nb::object float_product(nb::handle x_arg, nb::handle weight_arg, ThreadPool& pool) {
  const auto x = read<float, 2>(x_arg, "x");
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const auto weight = read<float, 2>(weight_arg, "weight");
  expect_shape(weight, "weight", {-1, columns});
  const int64_t channels = weight.shape[0];
  nb::object out = new_array<float, 2>({rows, channels});
  const FloatProduct args = {x.data, rows, weight.data, channels, columns, data_of<float, 2>(out)};
  const KernelCall call(pool);
  const auto kernel = kernels().floats.product;
  const int64_t blocks = std::max<int64_t>(1, kFmasPerBlock / std::max<int64_t>(1, kChannelsPerBlock * rows * columns));
  pool.for_blocks(channels, blocks * kChannelsPerBlock, [&](int64_t begin, int64_t end, int) { kernel(args, begin, end); });
  return out;
}

nb::object float_exp(nb::handle x_arg, ThreadPool& pool) {
  const auto x = read<float, 1>(x_arg, "x");
  nb::object out = new_array<float, 1>({x.shape[0]});
  float* values = data_of<float, 1>(out);
  const KernelCall call(pool);
  const auto kernel = kernels().floats.exp;
  pool.for_blocks(x.shape[0], kValuesPerBlock, [&](int64_t begin, int64_t end, int) { kernel(x.data, values, begin, end); });
  return out;
}

}  // namespace

void bind_floats(nb::module_& module) {
  const auto any = nb::arg().none();
  module.def("float_product", &float_product, any, any, nb::arg());
  module.def("float_exp", &float_exp, any, nb::arg());
}

}  // namespace edge

// Bindings of w4.h and w4_search.h: weights of 4-bit codes.
#include <vector>

#include "calls.h"

namespace edge {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

}  // namespace

Int8Weight read_code_panels(nb::handle codes_arg, int64_t n, int64_t columns) {
  Int8Weight weight = {};
  weight.channels = n;
  weight.columns = columns;
  if (n < 0 || columns < 0 || columns > kMaxColumns || columns % kTileDepth != 0)
    refuse("a W4 weight has 0 or more rows and a multiple of 4 columns, at most " + std::to_string(kMaxColumns) + "; got `" +
           std::to_string(n) + "` and `" + std::to_string(columns) + "`");
  const auto codes = read<uint8_t, 2>(codes_arg, "codes");
  expect_shape(codes, "codes", {weight.panels(), weight.code_bytes()});
  weight.codes = codes.data;
  return weight;
}

Int8Weight read_codes(nb::handle codes_arg, int64_t n, int64_t columns) {
  const Int8Weight weight = read_code_panels(codes_arg, n, columns);
  bool good[256];
  for (int byte = 0; byte < 256; ++byte) {
    const int multiplier = byte & 15, shift = byte >> 4, most = kCodebook[15] - shift;
    good[byte] = multiplier == 0 || (multiplier <= kMaxMultiplier && shift >= kMinShift &&
                                     multiplier * (shift > most ? shift : most) <= 127);
  }
  for (int64_t panel = 0; panel < weight.panels(); ++panel)
    for (int64_t i = 0; i < weight.groups() * kTileChannels; ++i)
      if (!good[weight.codes[panel * weight.code_bytes() + i]])
        refuse("`codes` holds the multiplier and shift `" + std::to_string(weight.codes[panel * weight.code_bytes() + i]) +
               "`, whose weights or sums are too large");
  return weight;
}

namespace {

nb::object expand_codes(nb::handle codes, int64_t n, int64_t k, ThreadPool& pool) {
  const Int8Weight weight = read_codes(codes, n, k);
  nb::object tiles = new_array<int8_t, 4>({weight.panels(), weight.blocks(), kTileChannels, kTileDepth});
  auto* to = data_of<int8_t, 4>(tiles);
  const KernelCall call(pool);
  const auto expand = kernels().codes->expand;
  pool.for_blocks(weight.panels(), 1, [&](int64_t begin, int64_t end, int worker) {
    void* scratch = pool.scratch(worker, static_cast<size_t>(weight.groups() * kCodeGroup * kTileChannels));
    expand(weight, begin, end, static_cast<int8_t*>(scratch), to + begin * weight.tile_bytes());
  });
  return tiles;
}

nb::tuple search_codes(nb::handle weight_arg, nb::handle importance_arg, ThreadPool& pool) {
  const auto weight = read<float, 2>(weight_arg, "weight");
  const int64_t n = weight.shape[0], k = weight.shape[1], groups = (k + kCodeGroup - 1) / kCodeGroup;
  const auto importance = read<float, 1>(importance_arg, "importance");
  expect_shape(importance, "importance", {k});
  nb::object codes = new_array<uint8_t, 2>({n, k}), scale = new_array<float, 1>({n});
  nb::object multiplier = new_array<uint8_t, 2>({n, groups}), shift = new_array<uint8_t, 2>({n, groups});
  const CodeSearch args = {weight.data, importance.data, k, data_of<uint8_t, 2>(codes), data_of<uint8_t, 2>(multiplier),
                           data_of<uint8_t, 2>(shift), data_of<float, 1>(scale)};
  {
    const KernelCall call(pool);
    const auto search = kernels().codes->search;
    pool.for_blocks(n, 4, [&](int64_t begin, int64_t end, int) { search(args, begin, end); });
  }
  return nb::make_tuple(codes, multiplier, shift, scale);
}

nb::object encode_codes(nb::handle weight_arg, nb::handle scale_arg, nb::handle multiplier_arg, nb::handle shift_arg,
                        ThreadPool& pool) {
  const auto weight = read<float, 2>(weight_arg, "weight");
  const int64_t n = weight.shape[0], k = weight.shape[1], groups = (k + kCodeGroup - 1) / kCodeGroup;
  const auto scale = read<float, 1>(scale_arg, "scale");
  expect_shape(scale, "scale", {n});
  const auto multiplier = read<uint8_t, 2>(multiplier_arg, "multiplier"), shift = read<uint8_t, 2>(shift_arg, "shift");
  expect_shape(multiplier, "multiplier", {n, groups});
  expect_shape(shift, "shift", {n, groups});
  nb::object codes = new_array<uint8_t, 2>({n, k});
  const CodeEncoding args = {weight.data, scale.data, multiplier.data, shift.data, k, data_of<uint8_t, 2>(codes)};
  const KernelCall call(pool);
  const auto encode = kernels().codes->encode;
  pool.for_blocks(n, 16, [&](int64_t begin, int64_t end, int) { encode(args, begin, end); });
  return codes;
}

}  // namespace

void bind_w4(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg number, pool;
  module.def("expand_codes", &expand_codes, any, number, number, pool);
  module.def("search_codes", &search_codes, any, any, pool);
  module.def("encode_codes", &encode_codes, any, any, any, any, pool);
}

}  // namespace edge

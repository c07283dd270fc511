// Bindings of layout.h and checksum.h.
#include <vector>

#include "bind.h"
#include "checksum.h"
#include "layout.h"

namespace edge {
namespace {

using Tiles = Array<const int8_t, 4>;

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

Tiles read_tiles(nb::handle tiles_arg) {
  const Tiles tiles = read<int8_t, 4>(tiles_arg, "tiles");
  expect_shape(tiles, "tiles", {-1, -1, kTileChannels, kTileDepth});
  return tiles;
}

int64_t blocks_of(int64_t k) { return (k + kTileDepth - 1) / kTileDepth; }

void expect_k(const Tiles& tiles, int64_t k) {
  if (k < 0 || blocks_of(k) != tiles.shape[1])
    refuse("`k` must be a depth of " + std::to_string(tiles.shape[1]) + " tile blocks of 4; got `" + std::to_string(k) + "`");
}

void expect_n(const Tiles& tiles, int64_t n) {
  if (n < 0 || n > tiles.shape[0] * kTileChannels)
    refuse("`n` must be in 0.." + std::to_string(tiles.shape[0] * kTileChannels) + "; got `" + std::to_string(n) + "`");
}

nb::object pack_tiles_of(nb::handle weight_arg) {
  const auto weight = read<int8_t, 2>(weight_arg, "weight");
  const int64_t n = weight.shape[0], k = weight.shape[1];
  nb::object tiles = new_array<int8_t, 4>({(n + kTileChannels - 1) / kTileChannels, blocks_of(k), kTileChannels, kTileDepth});
  bool good;
  {
    ReleasedGil released;
    good = pack_tiles(weight.data, n, k, data_of<int8_t, 4>(tiles));
  }
  if (!good) refuse("`weight` holds `-128`; int8 weights are symmetric, in [-127, 127]");
  return tiles;
}

nb::object unpack_tiles(nb::handle tiles_arg, int64_t n, int64_t k) {
  const Tiles tiles = read_tiles(tiles_arg);
  expect_n(tiles, n);
  expect_k(tiles, k);
  nb::object weight = new_array<int8_t, 2>({n, k});
  auto* to = data_of<int8_t, 2>(weight);
  ReleasedGil released;
  for (int64_t channel = 0; channel < n; ++channel) unpack_row(tiles.data, k, channel, to + channel * k);
  return weight;
}

nb::object gather_rows(nb::handle tiles_arg, nb::handle rows_arg, int64_t k) {
  const Tiles tiles = read_tiles(tiles_arg);
  const auto rows = read<int64_t, 1>(rows_arg, "rows");
  expect_k(tiles, k);
  for (int64_t i = 0; i < rows.shape[0]; ++i)
    if (rows.data[i] < 0 || rows.data[i] >= tiles.shape[0] * kTileChannels)
      refuse("`rows` must be in 0.." + std::to_string(tiles.shape[0] * kTileChannels - 1) + "; got `" +
             std::to_string(rows.data[i]) + "`");
  nb::object out = new_array<int8_t, 2>({rows.shape[0], k});
  auto* to = data_of<int8_t, 2>(out);
  for (int64_t i = 0; i < rows.shape[0]; ++i) unpack_row(tiles.data, k, rows.data[i], to + i * k);
  return out;
}

nb::object row_sums_of(nb::handle tiles_arg, int64_t n) {
  const Tiles tiles = read_tiles(tiles_arg);
  expect_n(tiles, n);
  nb::object sums = new_array<int32_t, 1>({n});
  auto* to = data_of<int32_t, 1>(sums);
  ReleasedGil released;
  row_sums(tiles.data, n, tiles.shape[1], to);
  return sums;
}

// Blocks of 1 MiB, each by whoever is free, joined in order.
uint32_t crc32c_parallel(const uint8_t* data, int64_t bytes, ThreadPool& pool) {
  constexpr int64_t kBlock = 1 << 20;
  std::vector<uint32_t> parts(static_cast<size_t>((bytes + kBlock - 1) / kBlock));
  pool.for_blocks(bytes, kBlock, [&](int64_t begin, int64_t end, int) {
    for (; begin < end; begin += kBlock)
      parts[static_cast<size_t>(begin / kBlock)] = crc32c(data + begin, end - begin < kBlock ? end - begin : kBlock);
  });
  const uint32_t whole_block = crc::power(kBlock);
  uint32_t crc = 0;  // of no bytes
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t left = bytes - static_cast<int64_t>(i) * kBlock;
    crc = crc::multiply(left < kBlock ? crc::power(static_cast<uint64_t>(left)) : whole_block, crc) ^ parts[i];
  }
  return crc;
}

struct Buffer {
  explicit Buffer(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_SIMPLE) != 0) {
      PyErr_Clear();
      refuse("`data` must be bytes-like and contiguous; got `" + detail::describe(object) + "`");
    }
  }
  ~Buffer() { PyBuffer_Release(&view); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Py_buffer view;
};

uint32_t crc32c_of(nb::handle data, ThreadPool* pool) {
  const Buffer buffer(data);
  const auto* bytes = static_cast<const uint8_t*>(buffer.view.buf);
  if (pool == nullptr) {
    ReleasedGil released;
    return crc32c(bytes, buffer.view.len);
  }
  const KernelCall call(*pool);
  return crc32c_parallel(bytes, buffer.view.len, *pool);
}

// By every method that this CPU has, for tests.
nb::dict crc32c_methods(nb::handle data) {
  const Buffer buffer(data);
  const crc::Methods& methods = crc::Methods::of_cpu();
  nb::dict found;
  for (const crc::Method* method = methods.list; method < methods.list + methods.count; ++method)
    found[method->name] = ~method->update(~0u, static_cast<const uint8_t*>(buffer.view.buf), buffer.view.len);
  return found;
}

}  // namespace

void bind_layout(nb::module_& module) {
  module.def("pack_tiles", &pack_tiles_of);
  module.def("unpack_tiles", &unpack_tiles);
  module.def("gather_rows", &gather_rows);
  module.def("row_sums", &row_sums_of);
  module.def("crc32c", &crc32c_of, nb::arg(), nb::arg().none());
  module.def("crc32c_methods", &crc32c_methods);
}

}  // namespace edge

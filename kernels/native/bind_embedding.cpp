// embedding: arguments checked, rows shared out over the pool.
#include <algorithm>

#include "calls.h"

namespace edge {

namespace {

constexpr int64_t kValuesPerBlock = 8192;  // a microsecond of work or more; less is not worth waking a worker

}  // namespace

void expect_tokens(const Array<const int64_t, 1>& tokens, int64_t limit) {
  for (int64_t m = 0; m < tokens.shape[0]; ++m)
    if (tokens.data[m] < 0 || tokens.data[m] >= limit)
      throw nb::value_error(("`tokens` must be in 0.." + std::to_string(limit - 1) + ", the rows of the table; got `" +
                             std::to_string(tokens.data[m]) + "`")
                                .c_str());
}

EmbeddingCall::EmbeddingCall(nb::handle integers, int64_t columns, nb::handle scale_arg, nb::handle hot_arg,
                             nb::handle hot_weight_arg, int64_t turn) {
  const auto scale = read<float, 1>(scale_arg, "scale");
  const int64_t rows = scale.shape[0];
  if (holds<uint8_t>(integers))
    args.codes = read_code_panels(integers, rows, columns).codes;
  else
    read_tiles(integers, rows, columns);
  const auto hot = read_hot(hot_arg, columns);
  const auto hot_weight = read_hot_weight(hot_weight_arg, hot.shape[0], rows);
  args.columns = columns;
  args.scale = scale.data;
  args.hot = hot.data;
  args.hot_count = hot.shape[0];
  args.hot_weight = reinterpret_cast<const uint16_t*>(hot_weight.data);
  args.rows = rows;
  expect_turn(turn, columns);
  args.turn = turn;
}

void EmbeddingCall::read_tiles(nb::handle tiles_arg, int64_t rows, int64_t columns) {
  const auto tiles = read<int8_t, 4>(tiles_arg, "tiles");
  expect_shape(tiles, "tiles", {-1, -1, kTileChannels, kTileDepth});
  if (columns < 0 || columns > tiles.shape[1] * kTileDepth || rows > tiles.shape[0] * kTileChannels)
    throw nb::value_error(("`tiles` must hold " + std::to_string(rows) + " rows, as many as `scale`, of `columns` values; got `" +
                           detail::describe(tiles_arg) + "` for `" + std::to_string(columns) + "` columns")
                              .c_str());
  args.tiles = tiles.data;
  args.blocks = tiles.shape[1];
}

nb::object EmbeddingCall::write_to(nb::handle out_arg, int64_t rows) {
  nb::object array = output<float, 2>(out_arg, "out", {rows, args.columns});
  out = data_of<float, 2>(array);
  return array;
}

void EmbeddingCall::run(int64_t count, const int64_t* tokens, ThreadPool& pool) const {
  const auto kernel = kernels().embedding->rows;
  const int64_t grain = std::max<int64_t>(1, kValuesPerBlock / std::max<int64_t>(1, args.columns));
  pool.for_blocks(count, grain, [&](int64_t begin, int64_t end, int) { kernel(args, tokens, out, begin, end); });
}

namespace {

nb::object embedding(nb::handle tokens_arg, nb::handle integers, int64_t columns, nb::handle scale, nb::handle hot,
                     nb::handle hot_weight, ThreadPool& pool, nb::handle out_arg, int64_t turn) {
  EmbeddingCall call(integers, columns, scale, hot, hot_weight, turn);
  const auto tokens = read<int64_t, 1>(tokens_arg, "tokens");
  expect_tokens(tokens, call.args.rows);
  nb::object out = call.write_to(out_arg, tokens.shape[0]);
  const KernelCall held(pool);
  call.run(tokens.shape[0], tokens.data, pool);
  return out;
}

}  // namespace

void bind_embedding(nb::module_& module) {
  const auto any = nb::arg().none();
  module.def("embedding", &embedding, any, any, nb::arg(), any, any, any, nb::arg(), any, nb::arg());
}

}  // namespace edge

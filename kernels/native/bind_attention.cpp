// rope_append and paged_attention: arguments checked, rows cut into tiles, tiles (or their segments) shared out.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>
#include <vector>

#include "calls.h"

namespace edge {
namespace {

constexpr int64_t kTileQueries = 64;          // queries that read a page together
static_assert(kTileQueries <= kMaxTileRows, "a query has a row");
constexpr double kFlopsPerWorker = 1e6;       // some 10 microseconds; less is not worth waking a worker
constexpr int64_t kAppendValuesPerBlock = 8192;

struct Pages {
  int8_t* data;      // [P, Hkv, 16, D] as an array; a head's 16 * D values in the order of AppendArgs
  uint16_t* scales;  // [P, Hkv, 16]
  int64_t count, kv_heads, head_dim;
};

void expect_head_dim(int64_t dim) {
  if (dim < 8 || dim > kMaxHeadDim || dim % 8 != 0)
    throw nb::value_error(
        ("the head size must be a multiple of 8 in 8.." + std::to_string(kMaxHeadDim) + "; got `" + std::to_string(dim) + "`").c_str());
}

void expect_pages(const Pages& pages, const char* name, const int64_t (&shape)[4]) {
  expect_shape(Array<int8_t, 4>{pages.data, {pages.count, pages.kv_heads, kPage, pages.head_dim}, {}}, name, shape);
}

Pages pages_of(nb::handle pages_arg, const char* pages_name, nb::handle scales_arg, const char* scales_name,
               bool writeable) {
  const auto pages = writeable ? write<int8_t, 4>(pages_arg, pages_name) : [&] {
    const auto view = read<int8_t, 4>(pages_arg, pages_name);
    Array<int8_t, 4> out;
    out.data = const_cast<int8_t*>(view.data);
    std::copy(view.shape, view.shape + 4, out.shape);
    return out;
  }();
  expect_shape(pages, pages_name, {-1, -1, kPage, -1});
  uint16_t* scales_data;
  const int64_t wanted[3] = {pages.shape[0], pages.shape[1], kPage};
  if (writeable) {
    const auto scales = write<half, 3>(scales_arg, scales_name);
    expect_shape(scales, scales_name, wanted);
    scales_data = &scales.data->bits;
  } else {
    const auto scales = read<half, 3>(scales_arg, scales_name);
    expect_shape(scales, scales_name, wanted);
    scales_data = const_cast<uint16_t*>(&scales.data->bits);
  }
  return {pages.data, scales_data, pages.shape[0], pages.shape[1], pages.shape[3]};
}

// ---- rope_append -------------------------------------------------------------------------------------------

// Rows m, each with an index below `limit`, or -1 where `padding` allows it.
template <class Int>
void expect_indices(const Array<const Int, 1>& indices, const char* name, int64_t limit, bool padding) {
  const int64_t least = padding ? -1 : 0;
  for (int64_t m = 0; m < indices.shape[0]; ++m)
    if (indices.data[m] < least || indices.data[m] >= limit)
      throw nb::value_error(("`" + std::string(name) + "` must be " + (padding ? "-1 or " : "") + "in 0.." +
                             std::to_string(limit - 1) + "; got `" + std::to_string(indices.data[m]) + "`")
                                .c_str());
}

const float* gain_of(nb::handle gain_arg, const char* name, int64_t dim) {
  if (gain_arg.is_none()) return nullptr;
  const auto gain = read<float, 1>(gain_arg, name);
  expect_shape(gain, name, {dim});
  return gain.data;
}

}  // namespace

AppendCall::AppendCall(const AppendArrays& arrays) {
  const int64_t heads = arrays.heads, kv_heads = arrays.kv_heads, head_dim = arrays.head_dim;
  expect_head_dim(head_dim);
  expect_turn(arrays.turn, head_dim);
  const auto qkv = write<float, 2>(arrays.qkv, "qkv");
  if (heads < 0 || kv_heads < 0) throw nb::value_error("`heads` and `kv_heads` must not be negative");
  rows = qkv.shape[0];
  width = (heads + 2 * kv_heads) * head_dim;
  expect_shape(qkv, "qkv", {rows, width});
  const auto cos = read<float, 2>(arrays.cos, "cos"), sin = read<float, 2>(arrays.sin, "sin");
  const int64_t half = cos.shape[1];
  expect_rotated(half, head_dim);
  expect_shape(sin, "sin", {cos.shape[0], half});
  const auto q_scale = read_optional<float, 1>(arrays.q_scale, "q_scale");
  if (q_scale) expect_shape(q_scale, "q_scale", {cos.shape[0]});
  const auto k_offset = read<float, 2>(arrays.k_offset, "k_offset");
  expect_shape(k_offset, "k_offset", {kv_heads, head_dim});
  const Pages k_pages = pages_of(arrays.pages.k, "k_pages", arrays.pages.k_scales, "k_scales", true);
  const Pages v_pages = pages_of(arrays.pages.v, "v_pages", arrays.pages.v_scales, "v_scales", true);
  expect_pages(k_pages, "k_pages", {-1, kv_heads, kPage, head_dim});
  expect_pages(v_pages, "v_pages", {k_pages.count, kv_heads, kPage, head_dim});
  positions = cos.shape[0];
  pages = k_pages.count;

  float* k = qkv.data + heads * head_dim;
  float* v = k + kv_heads * head_dim;
  const auto norm = [&](float* x, int64_t count, const float* gain) {
    return NormArgs{x, width, head_dim, x, width, head_dim, count, head_dim, gain, arrays.norms.eps};
  };
  args = {norm(qkv.data, heads, gain_of(arrays.norms.q_gain, "q_gain", head_dim)),
          norm(k, kv_heads, gain_of(arrays.norms.k_gain, "k_gain", head_dim)),
          {qkv.data, width, head_dim, heads + kv_heads, half, nullptr, cos.data, sin.data},
          k_offset.data,
          arrays.turn,
          {k, width, kv_heads, head_dim, k_pages.data, k_pages.scales, nullptr},
          {v, width, kv_heads, head_dim, v_pages.data, v_pages.scales, nullptr},
          norm(v, kv_heads, gain_of(arrays.norms.v_gain, "v_gain", head_dim)),
          arrays.norms.last,
          q_scale.data};
}

bool AppendCall::run(int64_t count, const int32_t* row_position, const int64_t* slots, ThreadPool& pool) const {
  RopeAppendArgs these = args;
  these.rope.positions = row_position;
  these.k.slots = these.v.slots = slots;
  std::atomic<bool> finite{true};
  const auto kernel = kernels().attention->rope_append;
  int64_t grain = std::max<int64_t>(1, kAppendValuesPerBlock / std::max<int64_t>(1, width));
  if (count >= kPage * pool.threads()) grain = (grain + kPage - 1) / kPage * kPage;  // no two threads write to one page
  pool.for_blocks(count, grain, [&](int64_t begin, int64_t end, int) {
    if (!kernel(these, begin, end)) finite.store(false, std::memory_order_relaxed);
  });
  return finite.load();
}

void expect_positions(const Array<const int32_t, 1>& positions, int64_t limit) {
  expect_indices(positions, "positions", limit, false);
}

void expect_slots(const Array<const int64_t, 1>& slots, int64_t pages) { expect_indices(slots, "slots", pages * kPage, true); }

namespace {

void rope_append(nb::handle qkv, int64_t heads, int64_t kv_heads, int64_t head_dim, nb::handle positions_arg, nb::handle cos,
                 nb::handle sin, nb::handle q_gain, nb::handle k_gain, float eps, nb::handle k_offset, nb::handle k_pages,
                 nb::handle k_scales, nb::handle v_pages, nb::handle v_scales, nb::handle slots_arg, ThreadPool& pool,
                 int64_t turn, nb::handle v_gain, bool norm_last, nb::handle q_scale) {
  const AppendCall call({qkv, heads, kv_heads, head_dim, cos, sin, {q_gain, k_gain, v_gain, eps, norm_last}, k_offset,
                         {k_pages, k_scales, v_pages, v_scales}, turn, q_scale});
  const auto positions = read<int32_t, 1>(positions_arg, "positions");
  expect_shape(positions, "positions", {call.rows});
  expect_positions(positions, call.positions);
  const auto slots = read<int64_t, 1>(slots_arg, "slots");
  expect_shape(slots, "slots", {call.rows});
  expect_slots(slots, call.pages);
  bool finite;
  {
    const KernelCall held(pool);
    finite = call.run(call.rows, positions.data, slots.data, pool);
  }
  if (!finite) throw nb::value_error(kNotFiniteKey);
}

// ---- attention ---------------------------------------------------------------------------------------------

}  // namespace

void expect_rows(const AttentionRows& a, int64_t rows, int64_t sequences, int64_t page_count, int64_t window) {
  for (int64_t begin = 0, end; begin < rows; begin = end) {
    const int32_t sequence = a.row_sequence[begin];
    if (sequence < 0 || sequence >= sequences)
      throw nb::value_error(("`row_sequence` must be in 0.." + std::to_string(sequences - 1) +
                             ", the rows of `page_table`; got `" + std::to_string(sequence) + "`")
                                .c_str());
    int32_t first = a.row_position[begin], last = first;
    int64_t seen = INT64_MAX;  // the first token that a row sees
    for (end = begin; end < rows && a.row_sequence[end] == sequence; ++end) {
      const int32_t position = a.row_position[end];
      first = std::min(first, position);
      last = std::max(last, position);
      if (position >= 0) seen = std::min(seen, std::max<int64_t>(0, position + int64_t{1} - window));
    }
    if (first < -1 || last >= a.max_pages * kPage)
      throw nb::value_error(("`row_position` must be -1 or in 0.." + std::to_string(a.max_pages * kPage - 1) +
                             ", the tokens of a `page_table` row; got `" + std::to_string(first < -1 ? first : last) + "`")
                                .c_str());
    const int32_t* table = a.page_table + sequence * a.max_pages;
    for (int64_t j = seen / kPage; j < last / kPage + (last >= 0); ++j)
      if (table[j] < 0 || table[j] >= page_count)
        throw nb::value_error(("`page_table` must name pages in 0.." + std::to_string(page_count - 1) +
                               "; got `" + std::to_string(table[j]) + "`")
                                  .c_str());
  }
}

namespace {

struct PlannedTile {
  AttentionTile tile;
  double cost;    // (query, key) pairs
  int64_t parts;  // floats before its segments' parts, when it is split
};

// Consecutive rows of one sequence, cut so that a tile has about kTileQueries queries; once per kv head.
std::vector<PlannedTile> plan_tiles(const AttentionArgs& a, int64_t rows) {
  const int64_t group = a.q_heads / a.kv_heads, most_rows = std::max<int64_t>(1, kTileQueries / group);
  std::vector<PlannedTile> tiles;
  tiles.reserve(static_cast<size_t>((rows / most_rows + 1) * a.kv_heads));
  for (int64_t row = 0, end; row < rows; row = end) {
    double pairs = 0;
    int32_t last = -1;
    int64_t seen = INT64_MAX;  // the first token that a row sees
    for (end = row; end < rows && end - row < most_rows && a.row_sequence[end] == a.row_sequence[row]; ++end) {
      const int64_t tokens = a.row_position[end] + int64_t{1};
      pairs += static_cast<double>(group) * static_cast<double>(std::min(tokens, a.window));
      last = std::max(last, a.row_position[end]);
      if (tokens > 0) seen = std::min(seen, std::max<int64_t>(0, tokens - a.window));
    }
    const int64_t segments = last < 0 ? 0 : last / kSegment + 1, first = last < 0 ? 0 : seen / kSegment;
    for (int64_t h = 0; h < a.kv_heads; ++h) tiles.push_back({{row, end - row, h, segments, first}, pairs, 0});
  }
  return tiles;
}

size_t scratch_bytes(const AttentionArgs& a, const std::vector<PlannedTile>& tiles) {
  int64_t rows = 0;
  for (const PlannedTile& planned : tiles) rows = std::max(rows, planned.tile.rows);
  return static_cast<size_t>(kernels().attention->scratch_floats(rows * (a.q_heads / a.kv_heads), a.head_dim)) * 4;
}

// The unit that probably follows `i` on the same worker, which is at work on a block that ends at `end`: all take turns.
int64_t probable_next(int64_t i, int64_t end, int workers) { return i + 1 < end ? i + 1 : i + workers; }

void run_tiles(const AttentionArgs& a, const std::vector<PlannedTile>& tiles, ThreadPool& pool, int workers) {
  const AttentionKernels& kernel = *kernels().attention;
  const size_t bytes = scratch_bytes(a, tiles);
  const auto tile_of = [&](int64_t i) {
    return i < static_cast<int64_t>(tiles.size()) ? &tiles[static_cast<size_t>(i)].tile : nullptr;
  };
  pool.for_blocks(static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = static_cast<float*>(pool.scratch(worker, bytes));
    for (int64_t i = begin; i < end; ++i)
      kernel.attend(a, *tile_of(i), tile_of(probable_next(i, end, workers)), scratch);
  }, workers);
}

// Segments as units of work. Whoever finishes the last one of a tile merges them, in ascending order.
void run_segments(const AttentionArgs& a, std::vector<PlannedTile>& tiles, ThreadPool& pool, int workers) {
  struct Unit {
    int32_t tile, part;  // of the tile's segments, its number among those that are seen
  };
  const auto segments_of = [](const AttentionTile& tile) { return tile.segments - tile.first; };
  const int64_t group = a.q_heads / a.kv_heads;
  const auto stride_of = [&](const AttentionTile& tile) {
    return (attention_part_floats(tile.rows * group, a.head_dim) + 15) / 16 * 16;
  };
  std::vector<Unit> units;
  int64_t floats = 0;
  for (size_t i = 0; i < tiles.size(); ++i) {
    PlannedTile& planned = tiles[i];
    planned.parts = floats;
    // A tile that sees nothing has one unit all the same: its result is zeros.
    const int64_t segments = std::max<int64_t>(1, segments_of(planned.tile));
    floats += segments * stride_of(planned.tile);
    for (int64_t s = 0; s < segments; ++s) units.push_back({static_cast<int32_t>(i), static_cast<int32_t>(s)});
  }
  std::vector<std::atomic<int32_t>> finished(tiles.size());
  float* parts = static_cast<float*>(pool.shared_scratch(0, static_cast<size_t>(floats) * 4));
  const size_t bytes = scratch_bytes(a, tiles);
  const AttentionKernels& kernel = *kernels().attention;
  const auto segment_of = [&](int64_t i) {
    if (i >= static_cast<int64_t>(units.size())) return NextSegment{};
    const Unit unit = units[static_cast<size_t>(i)];
    const AttentionTile& tile = tiles[static_cast<size_t>(unit.tile)].tile;
    return NextSegment{&tile, tile.first + unit.part};
  };
  std::vector<int32_t> loaded(static_cast<size_t>(workers), -1);  // the tile whose queries a worker has at hand
  pool.for_blocks(static_cast<int64_t>(units.size()), 1, [&](int64_t begin, int64_t end, int worker) {
    float* scratch = static_cast<float*>(pool.scratch(worker, bytes));
    for (int64_t i = begin; i < end; ++i) {
      const Unit unit = units[static_cast<size_t>(i)];
      const PlannedTile& planned = tiles[static_cast<size_t>(unit.tile)];
      if (std::exchange(loaded[static_cast<size_t>(worker)], unit.tile) != unit.tile)
        kernel.load_queries(a, planned.tile, scratch);
      const int64_t stride = stride_of(planned.tile);
      float* part = parts + planned.parts + unit.part * stride;
      kernel.attend_segment(a, planned.tile, planned.tile.first + unit.part, segment_of(probable_next(i, end, workers)),
                            attention_part(part, planned.tile.rows * group), scratch);
      if (finished[static_cast<size_t>(unit.tile)].fetch_add(1) + 1 >= segments_of(planned.tile))
        kernel.join(a, planned.tile, parts + planned.parts, stride);
    }
  }, workers);
}

void attend_rows(const AttentionArgs& a, int64_t rows, ThreadPool& pool) {
  std::vector<PlannedTile> tiles = plan_tiles(a, rows);
  double total = 0, most = 0;
  for (const PlannedTile& planned : tiles) {
    total += planned.cost;
    most = std::max(most, planned.cost);
  }
  const double flops = 4.0 * total * static_cast<double>(a.head_dim);
  const int workers = static_cast<int>(std::min<double>(pool.threads(), 1 + flops / kFlopsPerWorker));
  if (workers > 1) {
    // The dearest first, so that no worker starts a long tile when the others end.
    std::stable_sort(tiles.begin(), tiles.end(),
                     [](const PlannedTile& x, const PlannedTile& y) { return x.cost > y.cost; });
    if (most * 2 * workers > total) return run_segments(a, tiles, pool, workers);
  }
  run_tiles(a, tiles, pool, workers);
}

}  // namespace

AttentionCall::AttentionCall(nb::handle q_arg, nb::handle k_pages_arg, nb::handle k_scales_arg, nb::handle v_pages_arg,
                             nb::handle v_scales_arg, float softmax_scale, int64_t window, float cap, nb::handle sinks_arg) {
  const auto q = strided<const float, 3>(q_arg, "q");
  const Pages k = pages_of(k_pages_arg, "k_pages", k_scales_arg, "k_scales", false);
  const Pages v = pages_of(v_pages_arg, "v_pages", v_scales_arg, "v_scales", false);
  const int64_t heads = q.shape[1], dim = q.shape[2];
  rows = q.shape[0];
  expect_head_dim(dim);
  expect_pages(k, "k_pages", {-1, -1, kPage, dim});
  expect_pages(v, "v_pages", {k.count, k.kv_heads, kPage, dim});
  if (k.kv_heads == 0 || heads % k.kv_heads != 0 || heads == 0)
    throw nb::value_error(("`q` must have a multiple of the `" + std::to_string(k.kv_heads) + "` kv heads; got `" +
                           std::to_string(heads) + "` heads")
                              .c_str());
  pages = k.count;
  args = {q.data, q.stride[0], q.stride[1], heads,   k.kv_heads, dim,     k.data,        v.data,
          k.scales, v.scales,  nullptr,     0,       nullptr,    nullptr, softmax_scale, nullptr};
  if (window < 0) throw nb::value_error(("`window` must be 0, for none, or positive; got `" + std::to_string(window) + "`").c_str());
  if (!(cap >= 0.0f && std::isfinite(cap)))
    throw nb::value_error(("`cap` must be 0, for none, or positive; got `" + std::to_string(cap) + "`").c_str());
  const auto sinks = read_optional<float, 1>(sinks_arg, "sinks");
  if (sinks) expect_shape(sinks, "sinks", {heads});
  if (window > 0) args.window = window;
  args.cap = cap;
  args.sinks = sinks.data;
}

nb::object AttentionCall::write_to(nb::handle out_arg) {
  nb::object out = output<float, 3>(out_arg, "out", {rows, args.q_heads, args.head_dim});
  args.out = data_of<float, 3>(out);
  return out;
}

void AttentionCall::run(int64_t count, const AttentionRows& these, ThreadPool& pool) const {
  AttentionArgs a = args;
  a.page_table = these.page_table;
  a.max_pages = these.max_pages;
  a.row_sequence = these.row_sequence;
  a.row_position = these.row_position;
  attend_rows(a, count, pool);
}

namespace {

nb::object paged_attention(nb::handle q, nb::handle k_pages, nb::handle k_scales, nb::handle v_pages, nb::handle v_scales,
                           nb::handle page_table_arg, nb::handle row_sequence_arg, nb::handle row_position_arg,
                           float softmax_scale, ThreadPool& pool, nb::handle out_arg, int64_t window, float cap,
                           nb::handle sinks) {
  AttentionCall call(q, k_pages, k_scales, v_pages, v_scales, softmax_scale, window, cap, sinks);
  const auto page_table = read<int32_t, 2>(page_table_arg, "page_table");
  const auto row_sequence = read<int32_t, 1>(row_sequence_arg, "row_sequence");
  const auto row_position = read<int32_t, 1>(row_position_arg, "row_position");
  expect_shape(row_sequence, "row_sequence", {call.rows});
  expect_shape(row_position, "row_position", {call.rows});
  const AttentionRows rows = {page_table.data, page_table.shape[1], row_sequence.data, row_position.data};
  expect_rows(rows, call.rows, page_table.shape[0], call.pages, call.args.window);
  nb::object out = call.write_to(out_arg);
  KernelCall held(pool);
  call.run(call.rows, rows, pool);
  return out;
}

}  // namespace

void bind_attention(nb::module_& module) {
  module.def("rope_append", &rope_append, nb::arg("qkv"), nb::arg("heads"), nb::arg("kv_heads"), nb::arg("head_dim"),
             nb::arg("positions"), nb::arg("cos"), nb::arg("sin"), nb::arg("q_gain").none(), nb::arg("k_gain").none(),
             nb::arg("eps"), nb::arg("k_offset"), nb::arg("k_pages"), nb::arg("k_scales"), nb::arg("v_pages"),
             nb::arg("v_scales"), nb::arg("slots"), nb::arg("pool"), nb::arg("turn"), nb::arg("v_gain").none(),
             nb::arg("norm_last"), nb::arg("q_scale").none());
  module.def("paged_attention", &paged_attention, nb::arg("q"), nb::arg("k_pages"), nb::arg("k_scales"),
             nb::arg("v_pages"), nb::arg("v_scales"), nb::arg("page_table"), nb::arg("row_sequence"),
             nb::arg("row_position"), nb::arg("softmax_scale"), nb::arg("pool"), nb::arg("out").none(), nb::arg("window"),
             nb::arg("cap"), nb::arg("sinks").none());
}

}  // namespace edge

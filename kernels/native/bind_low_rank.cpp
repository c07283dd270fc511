// What adapters (LoRA: Hu et al., 2021, arXiv 2106.09685) add to a linear's products: two small linears with float16 weights
// (half_linear.h) for every run of rows that have the same one. So a row does not depend on other rows, on threads or on the ISA.
#include <algorithm>
#include <numeric>

#include "calls.h"

namespace edge {
namespace {

// f(adapter's number - 1, begin, end) for each run of rows that have one; stops where it is false.
template <class F>
bool each_run(const int32_t* adapters, int64_t count, F&& f) {
  if (adapters == nullptr) return true;
  for (int64_t begin = 0, end; begin < count; begin = end) {
    for (end = begin + 1; end < count && adapters[end] == adapters[begin];) ++end;
    if (adapters[begin] > 0 && !f(adapters[begin] - 1, begin, end)) return false;
  }
  return true;
}

// (first rank, first channel, up float16 [ranks, channels]) of an entry of so much rank.
LowRank::Part read_part(nb::handle part, int64_t rank, int64_t channels) {
  const auto up = read<half, 2>(part[2], "up");
  const LowRank::Part found = {nb::cast<int64_t>(part[0]), up.shape[0], nb::cast<int64_t>(part[1]), up.shape[1],
                             reinterpret_cast<const uint16_t*>(up.data)};
  if (found.first_rank < 0 || found.first_rank + found.ranks > rank || found.first_channel < 0 ||
      found.first_channel + found.channels > channels)
    throw nb::value_error("`up` reaches beyond the rank or the channels");
  return found;
}

LowRank::Entry read_entry(nb::handle given, LowRank& low_rank) {
  LowRank::Entry entry;
  if (given.is_none()) return entry;
  const auto down = read<half, 2>(given[0], "down");
  expect_shape(down, "down", {low_rank.columns, -1});
  entry.rank = down.shape[1];
  entry.down = reinterpret_cast<const uint16_t*>(down.data);
  low_rank.arrays.push_back(nb::borrow(given[0]));
  for (nb::handle part : given[1]) {
    entry.parts.push_back(read_part(part, entry.rank, low_rank.channels));
    low_rank.arrays.push_back(nb::borrow(part[2]));
  }
  return entry;
}

void make_low_rank(LowRank* self, int64_t columns, int64_t channels, nb::list entries) {
  new (self) LowRank();
  self->columns = columns;
  self->channels = channels;
  self->every.resize(static_cast<size_t>(columns));
  std::iota(self->every.begin(), self->every.end(), 0);
  for (nb::handle each : entries) {
    self->entries.push_back(read_entry(each, *self));
    self->widest = std::max(self->widest, self->entries.back().rank);
  }
}

constexpr int64_t kFewRows = 4, kFewRanks = 16;
constexpr int64_t kUpRows = 32;       // that are multiplied at a time
constexpr int64_t kUpElements = 8192;  // that a worker moves at least

// Onto out [rows, stride]: what a part makes of t [rows, rank], a few rows at a time.
bool add_part(const LowRank::Part& part, int64_t rank, int64_t rows, const float* t, float* out, int64_t stride,
              ThreadPool& pool) {
  thread_local std::vector<float> memory;  // the ranks of the part as rows of their own, and its product
  const int64_t most = std::min(rows, kUpRows);
  memory.resize(static_cast<size_t>(most * (part.ranks + part.channels)));
  float *x = memory.data(), *y = x + most * part.ranks;
  for (int64_t m = 0; m < rows; m += most) {
    const int64_t some = std::min(most, rows - m);
    float* to = out + m * stride + part.first_channel;
    for (int64_t r = 0; r < some; ++r) std::copy_n(t + (m + r) * rank + part.first_rank, part.ranks, x + r * part.ranks);
    HalfLinearArgs args = {x, some, part.ranks, part.channels, part.up, nullptr, nullptr, 0.0f, nullptr, y, {}};
    if (some == 1) args.add = args.out = to;  // a row of `out` is as the product is
    if (!kernels().half->linear(args, pool)) return false;
    if (some == 1) continue;
    pool.for_blocks(some, std::max<int64_t>(1, kUpElements / std::max<int64_t>(1, part.channels)), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t n = 0; n < part.channels; ++n) to[r * stride + n] = y[r * part.channels + n] + to[r * stride + n];
    });
  }
  return true;
}

}  // namespace

LowRankDownCall::LowRankDownCall(nb::handle x_arg, const LowRank& one, nb::handle gain_arg, double eps, nb::handle t_arg)
    : low_rank(&one) {
  const auto x = read<float, 2>(x_arg, "x");
  expect_shape(x, "x", {-1, one.columns});
  rows = x.shape[0];
  const auto gain = read_optional<float, 1>(gain_arg, "gain");
  if (gain) expect_shape(gain, "gain", {one.columns});
  const auto to = write<float, 2>(t_arg, "t");
  expect_shape(to, "t", {rows, one.widest});
  t = to.data;
  args = {x.data, 0, one.columns, 0, nullptr, nullptr, gain.data, static_cast<float>(eps), nullptr, nullptr, {}};
}

bool LowRankDownCall::run(int64_t count, const int32_t* adapters, ThreadPool& pool) const {
  return each_run(adapters, count, [&](int32_t number, int64_t begin, int64_t end) {
    const LowRank::Entry& entry = low_rank->entries[static_cast<size_t>(number)];
    if (entry.rank == 0) return true;
    HalfLinearArgs these = args;
    these.x += begin * these.columns;
    if (end - begin <= kFewRows && entry.rank <= kFewRanks && args.gain == nullptr) {  // the same chains, kept in registers
      kernels().linear->hot_product(t + begin * low_rank->widest, these.x, end - begin, these.columns, entry.rank,
                                   low_rank->every.data(), these.columns, entry.down, pool);
      return true;
    }
    these.rows = end - begin;
    these.channels = entry.rank;
    these.weight = entry.down;
    these.out = t + begin * low_rank->widest;  // as wide as this adapter's rank
    return kernels().half->linear(these, pool);
  });
}

LowRankUpCall::LowRankUpCall(nb::handle t_arg, const LowRank& one, nb::handle out_arg) : low_rank(&one) {
  const auto from = read<float, 2>(t_arg, "t");
  expect_shape(from, "t", {-1, one.widest});
  rows = from.shape[0];
  const auto to = write<float, 2>(out_arg, "out");
  expect_shape(to, "out", {rows, one.channels});
  t = from.data;
  out = to.data;
}

bool LowRankUpCall::run(int64_t count, const int32_t* adapters, ThreadPool& pool) const {
  return each_run(adapters, count, [&](int32_t number, int64_t begin, int64_t end) {
    const LowRank::Entry& entry = low_rank->entries[static_cast<size_t>(number)];
    const float* from = t + begin * low_rank->widest;
    float* to = out + begin * low_rank->channels;
    for (const LowRank::Part& part : entry.parts)
      if (!add_part(part, entry.rank, end - begin, from, to, low_rank->channels, pool)) return false;
    return true;
  });
}

void bind_low_rank(nb::module_& module) {
  nb::class_<LowRank>(module, "LowRank")
      .def("__init__", &make_low_rank)
      .def_prop_ro("widest", [](const LowRank& self) { return self.widest; });
}

}  // namespace edge

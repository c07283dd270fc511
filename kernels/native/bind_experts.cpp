// Bindings of experts.h: arguments are checked here, once, and kernels trust them.
#include <algorithm>
#include <numeric>

#include "calls.h"

namespace edge {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

// An expert's linears, checked once; it keeps them alive.
struct Expert {
  nb::object kept[4];
  ExpertLinear gate_up, down;
  int64_t width() const { return down.columns(); }
};

ExpertLinear of_int8(const Int8Linear& linear, const char* name) {
  if (linear.parts.size() != 1) refuse(std::string("`") + name + "` must be in one part");
  if (linear.input_scale != 0.0f || linear.parts[0].rounded_scale != nullptr)
    refuse(std::string("`") + name + "` must be a linear whose rows have scales of their own");
  ExpertLinear found = {};
  found.int8 = linear.parts[0];
  found.turn = linear.turn;
  return found;
}

// `linear`, an Int8Linear or a BlockLinear; `bias` [N] or None is of a BlockLinear, for an Int8Linear has its own.
ExpertLinear read_linear(nb::handle linear, nb::handle bias_arg, const char* name) {
  const auto bias = read_optional<float, 1>(bias_arg, "bias");
  if (nb::isinstance<Int8Linear>(linear)) {
    if (bias) refuse(std::string("`") + name + "` has its bias already");
    return of_int8(nb::cast<const Int8Linear&>(linear), name);
  }
  if (!nb::isinstance<BlockLinear>(linear)) refuse(std::string("`") + name + "` must be an Int8Linear or a BlockLinear");
  const auto& blocks = nb::cast<const BlockLinear&>(linear);
  if (blocks.parts.size() != 1) refuse(std::string("`") + name + "` must be in one part");
  if (bias) expect_shape(bias, "bias", {blocks.channels});
  ExpertLinear found = {};
  found.blocks = blocks.parts[0];
  found.bias = bias.data;
  return found;
}

void make_expert(Expert* self, nb::object gate_up, nb::object down, nb::object gate_up_bias, nb::object down_bias) {
  Expert made = {{gate_up, down, gate_up_bias, down_bias}, read_linear(gate_up, gate_up_bias, "gate_up"),
                 read_linear(down, down_bias, "down")};
  const int64_t width = made.down.columns();
  if (made.gate_up.channels() != 2 * width || made.gate_up.columns() != made.down.channels() || width % kTileChannels != 0 ||
      width == 0 || made.down.channels() == 0)
    refuse("an expert is [2 * width, K] and [K, width] with a width of whole panels of " + std::to_string(kTileChannels) +
           "; got [`" + std::to_string(made.gate_up.channels()) + "`, `" + std::to_string(made.gate_up.columns()) + "`] and [`" +
           std::to_string(made.down.channels()) + "`, `" + std::to_string(made.down.columns()) + "`]");
  new (self) Expert(std::move(made));
}

bool of_one_type(const ExpertLinear& a, const ExpertLinear& b) {
  return a.in_blocks() == b.in_blocks() && a.turn == b.turn && a.columns() == b.columns() && a.channels() == b.channels();
}

// The rows of every expert that is chosen, ascending.
struct Grouped {
  std::vector<int64_t> rows;
  std::vector<float> shares;
  std::vector<ExpertRows> experts;
};

void group(const Array<const int64_t, 2>& chosen, const float* shares, nb::sequence experts, int64_t columns, Grouped& into) {
  const auto count = static_cast<int64_t>(nb::len(experts));
  const int64_t total = chosen.shape[0] * chosen.shape[1];
  std::vector<int64_t> ends(static_cast<size_t>(count) + 1);
  for (int64_t i = 0; i < total; ++i) {
    if (chosen.data[i] < 0 || chosen.data[i] >= count)
      refuse("`chosen` must be in 0.." + std::to_string(count - 1) + "; got `" + std::to_string(chosen.data[i]) + "`");
    if (i % chosen.shape[1] != 0 && chosen.data[i] <= chosen.data[i - 1]) refuse("`chosen` must ascend in every row");
    ++ends[static_cast<size_t>(chosen.data[i]) + 1];
  }
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  into.rows.resize(static_cast<size_t>(total));
  into.shares.resize(static_cast<size_t>(total));
  for (int64_t e = 0; e < count; ++e) {
    const auto at = static_cast<size_t>(e);
    if (ends[at] == ends[at + 1]) continue;
    const nb::object item = experts[at];
    if (!nb::isinstance<Expert>(item)) refuse("expert `" + std::to_string(e) + "` is chosen and not there");
    const auto& one = nb::cast<const Expert&>(item);
    into.experts.push_back({&one.gate_up, &one.down, into.rows.data() + ends[at], into.shares.data() + ends[at], ends[at + 1] - ends[at]});
    const ExpertRows& first = into.experts.front();
    if (one.gate_up.columns() != columns || !of_one_type(one.gate_up, *first.gate_up) || !of_one_type(one.down, *first.down))
      refuse("expert `" + std::to_string(e) + "` is not of the shape, the type and the turn of the others, or of `x`");
  }
  std::vector<int64_t> next(ends.begin(), ends.end() - 1);
  for (int64_t i = 0; i < total; ++i) {
    const int64_t place = next[static_cast<size_t>(chosen.data[i])]++;
    into.rows[static_cast<size_t>(place)] = i / chosen.shape[1];
    into.shares[static_cast<size_t>(place)] = shares[i];
  }
}

// The sequence keeps the experts while the call works.
nb::object experts(nb::handle x_arg, nb::handle chosen_arg, nb::handle shares_arg, nb::sequence experts_arg, ThreadPool& pool, int gate,
                   double limit, nb::handle add_arg, nb::handle out_arg) {
  const auto x = read<float, 2>(x_arg, "x");
  const int64_t rows = x.shape[0], columns = x.shape[1];
  const auto chosen = read<int64_t, 2>(chosen_arg, "chosen");
  expect_shape(chosen, "chosen", {rows, -1});
  const auto shares = read<float, 2>(shares_arg, "shares");
  expect_shape(shares, "shares", {rows, chosen.shape[1]});
  const auto add = read_optional<float, 2>(add_arg, "add");
  if (add) expect_shape(add, "add", {rows, columns});
  const Gate meets = gate_of(gate, limit);
  if (meets.kind == kNoGate) refuse("experts have a gate");
  Grouped grouped;
  group(chosen, shares.data, experts_arg, columns, grouped);
  nb::object out = output<float, 2>(out_arg, "out", {rows, columns});
  const int64_t width = grouped.experts.empty() ? 0 : grouped.experts[0].down->columns();
  const ExpertsArgs args = {x.data, rows, columns, width, grouped.experts.data(), static_cast<int64_t>(grouped.experts.size()),
                            meets, add.data, data_of<float, 2>(out)};
  bool finite;
  {
    const KernelCall held(pool);
    finite = kernels().experts->experts(args, pool);
  }
  if (!finite) refuse(kNotFinite);
  return out;
}

// The numbers of the `used` largest scores of every row, ascending; of equal ones the lower number is taken.
nb::object choose(nb::handle scores_arg, int64_t used) {
  const auto scores = read<float, 2>(scores_arg, "scores");
  const int64_t rows = scores.shape[0], count = scores.shape[1];
  if (used < 1 || used > count) refuse("`used` must be in 1.." + std::to_string(count) + "; got `" + std::to_string(used) + "`");
  nb::object chosen = new_array<int64_t, 2>({rows, used});
  auto* best = data_of<int64_t, 2>(chosen);
  for (int64_t m = 0; m < rows; ++m, best += used) {
    const float* row = scores.data + m * count;
    int64_t found = 0;
    for (int64_t e = 0; e < count; ++e) {  // the best so far, descending
      if (found == used && !(row[e] > row[best[used - 1]])) continue;
      int64_t at = found < used ? found++ : used - 1;
      for (; at > 0 && row[e] > row[best[at - 1]]; --at) best[at] = best[at - 1];
      best[at] = e;
    }
    std::sort(best, best + used);
  }
  return chosen;
}

}  // namespace

void bind_experts(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg number, pool;
  nb::class_<Expert>(module, "Expert")
      .def("__init__", &make_expert, nb::arg(), nb::arg(), nb::arg() = nb::none(), nb::arg() = nb::none())
      .def_prop_ro("width", &Expert::width);
  module.def("choose_experts", &choose, any, number);
  module.def("experts", &experts, any, any, any, nb::arg(), pool, number, number, any, any);
}

}  // namespace edge

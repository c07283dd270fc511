// The kernels without Python: every variant that this CPU runs gives the bits of the portable one.
//
//   kernels_test [variant ...]    the variants that must run here, no more and no fewer
//
// The last line has a digest of all results. It is the same on every machine, so runs on two of them can be compared.
#include <cmath>
#include <mutex>
#include <set>
#include <thread>

#include "blocks_test.h"
#include "check.h"
#include "layout.h"
#include "vec_ops_table.h"

namespace {

using edge::KernelTable;
using edge::ThreadPool;
using edge_test::Array;
using edge_test::Random;
using edge_test::Report;
using edge_test::Result;

constexpr int64_t kRowCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 64};
constexpr float kInfinity = __builtin_inff();

ThreadPool& pool_of(int threads) {
  static ThreadPool one(1, nullptr), three(3, nullptr);
  return threads == 1 ? one : three;
}

std::string name_of(const char* what, std::initializer_list<int64_t> numbers) {
  std::string name = what;
  for (int64_t number : numbers) name += " " + std::to_string(number);
  return name;
}

bool same_bits(const Array<float>& a, const Array<float>& b) {
  return a.size() == b.size() && memcmp(a.data(), b.data(), static_cast<size_t>(a.size()) * sizeof(float)) == 0;
}

// ---- vec.h -------------------------------------------------------------------------------------------------------

// Operands of all kinds, each with each: zeros, ties, the ends of int32, of float16 and of the exponential, infinities, NaN.
void test_vec(Report& report) {
  constexpr float kNan = __builtin_nanf("");
  const float special[] = {0.0f, 1.0f, 0.5f, 1.5f, 2.5f, 126.5f, 127.5f, 8388607.5f, 2147483520.0f, 2147483648.0f, 4e9f,
                           1e-40f, 1e-45f, 2.98e-8f, 2.9802322e-8f, 6.0e-5f, 65504.0f, 65519.996f, 65520.0f, 87.33654f,
                           88.72283f, 104.0f, 3.4e38f, kInfinity, kNan};
  Random random(3);
  const auto number = [&] {
    const float x = random.chance(60) ? special[random.between(0, 24)] : random.unit() * 300.0f;
    return x == x && random.chance(50) ? -x : x;  // one kind of NaN: an operation may select it
  };
  Array<float> a(16), b(16), c(16);
  Array<int32_t> i(16), j(16);
  Array<uint16_t> h(16);
  Array<int8_t> bytes(16);
  const edge::VecOperands operands = {a.data(), b.data(), c.data(), i.data(), j.data(), h.data(), bytes.data()};
  for (int round = 0; round < 40; ++round) {
    for (Array<float>* floats : {&a, &b, &c})
      for (float& x : *floats) x = number();
    for (Array<int32_t>* integers : {&i, &j})
      for (int32_t& x : *integers) x = static_cast<int32_t>(random.bits() >> random.between(32, 60));
    for (int32_t& x : i) x = random.chance(50) ? ~x : x;
    for (uint16_t& x : h) x = static_cast<uint16_t>(random.bits());
    for (int8_t& x : bytes) x = static_cast<int8_t>(random.bits());
    report.compare(name_of("vec.h", {round}), [&](const KernelTable& table, Result& result) {
      for (const edge::NamedVecOps& ops : edge::kVecOps) {
        if (strcmp(ops.variant, table.name) != 0) continue;
        std::vector<uint8_t> found(edge::kVecOpsBytes);
        found.resize(static_cast<size_t>(ops.run(operands, found.data()) - found.data()));
        result.add(found);
      }
    });
  }
}

// ---- linear ------------------------------------------------------------------------------------------------------

enum class End { kPlain, kBias, kRounded, kRoundedBias };  // how an integer product becomes a float
constexpr End kEnds[] = {End::kPlain, End::kBias, End::kRounded, End::kRoundedBias};

struct LinearProblem {
  int64_t m, n, k;
  float input_scale;
  Array<float> x;
  Array<int8_t> weight;  // [N, K]
  Array<int8_t> tiles;
  Array<float> product_scale;
  Array<int32_t> row_sum, hot;
  Array<uint16_t> hot_weight;
  Array<float> bias, add;
  Array<float> rounded_scale;  // its products reach from subnormal float16 to beyond its range
  Array<int32_t> rounded_bias;

  edge::Int8Weight view(End end) const {
    edge::Int8Weight weight = {tiles.data(), nullptr, n, k, product_scale.data(), row_sum.data(), nullptr, nullptr, nullptr};
    if (end == End::kBias) weight.bias = bias.data();
    if (end == End::kRounded || end == End::kRoundedBias) weight.rounded_scale = rounded_scale.data();
    if (end == End::kRoundedBias) weight.rounded_bias = rounded_bias.data();
    return weight;
  }
  edge::QuantizeInput input(bool residual) const {
    return {x.data(), m, k, input_scale, hot.data(), hot.size(), residual, nullptr, 0.0f};
  }
};

enum class Values { kCommon, kExtreme };  // extreme: every weight and activation is -127 or 127, residuals everywhere

LinearProblem linear_problem(int64_t m, int64_t n, int64_t k, int64_t hot, Values values) {
  Random random(static_cast<uint64_t>((m * 1009 + n) * 1009 + k) * 17 + static_cast<uint64_t>(hot));
  LinearProblem p;
  p.m = m, p.n = n, p.k = k;
  p.input_scale = 0.03f;
  p.x = random.floats(m * k, 3.0f);
  for (float& x : p.x)
    if (values == Values::kExtreme) x = random.chance(50) ? 9.0f : -9.0f;
    else if (random.chance(2)) x *= 40.0f;
  p.weight = Array<int8_t>(n * k);
  for (int8_t& w : p.weight)
    w = static_cast<int8_t>(values == Values::kExtreme ? (random.chance(50) ? 127 : -127) : random.between(-127, 127));
  if (values == Values::kExtreme && n > 0) std::fill(p.weight.begin(), p.weight.begin() + k, int8_t{127});
  if (values == Values::kExtreme && m > 0) std::fill(p.x.begin(), p.x.begin() + k, 9.0f);
  p.hot = Array<int32_t>(hot);
  for (int64_t h = 0; h < hot; ++h) p.hot[h] = static_cast<int32_t>(k * (2 * h + 1) / (2 * hot));
  for (int32_t column : p.hot)
    for (int64_t i = 0; i < n; ++i) p.weight[i * k + column] = 0;
  const int64_t panels = (n + 15) / 16, blocks = (k + 3) / 4;
  p.tiles = Array<int8_t>(panels * blocks * edge::kTileBytes);
  edge::pack_tiles(p.weight.data(), n, k, p.tiles.data());
  p.row_sum = Array<int32_t>(n);
  edge::row_sums(p.tiles.data(), n, blocks, p.row_sum.data());
  p.product_scale = random.floats(n, 1e-3f);
  p.hot_weight = Array<uint16_t>(hot * n);
  for (uint16_t& w : p.hot_weight) w = random.half();
  p.bias = random.floats(n, 1.0f);
  p.add = random.floats(m * n, 1.0f);
  p.rounded_scale = Array<float>(n);
  for (float& scale : p.rounded_scale) {
    const float mantissa = 1.0f + random.unit();
    scale = std::ldexp(mantissa, static_cast<int>(random.between(-36, 4)));
  }
  const int32_t most = static_cast<int32_t>(INT32_MAX - 127 * 127 * k);
  p.rounded_bias = Array<int32_t>(n);
  for (int32_t& bias : p.rounded_bias)
    bias = random.chance(20) ? (random.chance(50) ? most : -most) : static_cast<int32_t>(random.between(-99999, 99999));
  return p;
}

struct Residual {
  std::vector<int64_t> row_start = {0};
  std::vector<int32_t> column;
  std::vector<float> value;
};

Residual read_residual(const std::vector<edge::ResidualRow>& rows, ThreadPool& pool) {
  Residual out;
  for (const edge::ResidualRow& row : rows) {
    const auto* entries = static_cast<const edge::ResidualEntry*>(pool.extend(row.worker, 0)) + row.offset;
    for (int32_t i = 0; i < row.count; ++i) {
      out.column.push_back(entries[i].column());
      out.value.push_back(entries[i].value);
    }
    out.row_start.push_back(static_cast<int64_t>(out.column.size()));
  }
  return out;
}

// The nearest float16 within its range, half to even: a multiple of the step that float16 has there.
float nearest_half(float x) {
  x = std::min(65504.0f, std::max(-65504.0f, x));
  const float step = std::ldexp(1.0f, std::max(x == 0.0f ? -14 : std::ilogb(x), -14) - 10);
  return __builtin_rintf(x / step) * step;
}

// q . W^T as written on paper, with the end that the product has.
Array<float> plain_linear(const Array<int8_t>& q, const LinearProblem& p, End end) {
  Array<float> out(p.m * p.n);
  for (int64_t m = 0; m < p.m; ++m)
    for (int64_t n = 0; n < p.n; ++n) {
      int32_t dot = 0;
      for (int64_t c = 0; c < p.k; ++c) dot += q[m * p.k + c] * p.weight[n * p.k + c];
      if (end == End::kRoundedBias) dot += p.rounded_bias[n];
      const bool rounded = end == End::kRounded || end == End::kRoundedBias;
      const float y = static_cast<float>(dot) * (rounded ? p.rounded_scale[n] : p.product_scale[n]);
      out[m * p.n + n] = rounded ? nearest_half(y) : end == End::kBias ? y + p.bias[n] : y;
    }
  return out;
}

// The fused linear, its parts one by one, and that both agree.
void run_linear(const KernelTable& table, Result& result, const LinearProblem& p, ThreadPool& pool, End end) {
  const edge::LinearKernels& kernel = *table.linear;
  const edge::Int8Weight weight = p.view(end);
  Array<float> fused(p.m * p.n, -1.0f), plain(p.m * p.n, -1.0f);
  result.add_flag(kernel.linear(p.input(true), &weight, 1, p.hot_weight.data(), p.add.data(), fused.data(), pool));
  result.add_flag(kernel.linear(p.input(false), &weight, 1, nullptr, nullptr, plain.data(), pool));

  Array<int8_t> q(p.m * p.k);
  std::vector<edge::ResidualRow> rows(static_cast<size_t>(p.m));
  result.add_flag(kernel.quantize(p.input(true), q.data(), rows.data(), pool));
  const Residual residual = read_residual(rows, pool);
  Array<float> parts(p.m * p.n, -1.0f);
  result.add_flag(kernel.linear_int8(q.data(), p.m, weight, parts.data(), pool));
  result.expect(same_bits(parts, plain_linear(q, p, end)), "linear_int8 is not the plain product");
  result.expect(same_bits(parts, plain), "linear without shadow is not linear_int8");
  Array<float> hot_sum(p.m * p.n, -1.0f);
  kernel.hot_product(hot_sum.data(), p.x.data(), p.m, p.k, p.n, p.hot.data(), p.hot.size(), p.hot_weight.data(), pool);
  Array<float> overflow_sum(p.m * p.n, -1.0f);
  kernel.overflow_product(overflow_sum.data(), p.m, weight,
                          {residual.row_start.data(), residual.column.data(), residual.value.data()}, pool);
  kernel.merge({parts.data(), p.m, p.n, p.hot.size() == 0 ? nullptr : hot_sum.data(), residual.row_start.data(),
                overflow_sum.data(), weight.product_scale, p.add.data()},
               pool);
  result.expect(same_bits(parts, fused), "linear is not the sum of its parts");

  result.add(fused);
  result.add(q);
  result.add(residual.row_start);
  result.add(residual.column);
  result.add(residual.value);
}

constexpr edge::Gate kGates[] = {{edge::kSilu, 0.0f}, {edge::kGeluTanh, 0.0f}, {edge::kGeluErf, 0.0f}, {edge::kRelu, 0.0f},
                                 {edge::kReluSquared, 0.0f}, {edge::kClampedSilu, 0.5f}};

// Rows normed on the way, gated on the way: each as the steps one by one.
void run_linear_fused(const KernelTable& table, Result& result, const LinearProblem& p, ThreadPool& pool, End end) {
  const edge::LinearKernels& kernel = *table.linear;
  const edge::Int8Weight weight = p.view(end);
  const Array<float> gain = Random(static_cast<uint64_t>(p.k)).floats(p.k, 1.0f);
  const float eps = 1e-5f;
  Array<float> normed(p.m * p.k), y(p.m * p.n, -1.0f), activated(p.m * p.n / 2, -1.0f), fused(p.m * p.n / 2, -1.0f);
  table.pointwise->norm({p.x.data(), p.k, 0, normed.data(), p.k, 0, 1, p.k, gain.data(), eps}, 0, p.m);
  edge::QuantizeInput steps = p.input(true), at_once = p.input(true);
  steps.x = normed.data();
  at_once.gain = gain.data();
  at_once.eps = eps;
  result.add_flag(kernel.linear(steps, &weight, 1, p.hot_weight.data(), nullptr, y.data(), pool));
  for (const edge::Gate gate : kGates) {
    table.pointwise->gate({y.data(), activated.data(), p.n / 2, gate}, 0, p.m);
    result.add_flag(kernel.linear_gated(at_once, weight, p.hot_weight.data(), gate, fused.data(), pool));
    result.expect(same_bits(activated, fused), "norm, linear and gate at once are not the three steps");
    result.add(fused);
  }
}

// ---- W4 ----------------------------------------------------------------------------------------------------------

// Panels of random codes, with multipliers and shifts of all kinds.
Array<uint8_t> random_codes(const edge::Int8Weight& weight, Random& random) {
  Array<uint8_t> codes(weight.panels() * weight.code_bytes());
  for (uint8_t& byte : codes) byte = static_cast<uint8_t>(random.bits());
  for (int64_t panel = 0; panel < weight.panels(); ++panel)
    for (int64_t i = 0; i < weight.groups() * edge::kTileChannels; ++i) {
      const int64_t shift = random.between(edge::kMinShift, 15), farthest = std::max(shift, int64_t{19} - shift);
      const int64_t multiplier = random.between(0, std::min(int64_t{edge::kMaxMultiplier}, 127 / farthest));
      codes[panel * weight.code_bytes() + i] = static_cast<uint8_t>(shift << 4 | multiplier);
    }
  return codes;
}

// The weight of output channel n and input channel c, as written on paper.
int8_t plain_weight(const edge::Int8Weight& weight, int64_t n, int64_t c) {
  const uint8_t* panel = weight.codes + n / 16 * weight.code_bytes();
  const int64_t group = c / 32, byte = c % 32 / 8 * 64 + n % 16 * 4 + c % 4;
  const int step = panel[group * 16 + n % 16], both = panel[edge::code_steps_bytes(weight.groups()) + group * 256 + byte];
  return static_cast<int8_t>((step & 15) * (edge::kCodebook[c / 4 % 2 == 0 ? both & 15 : both >> 4] - (step >> 4)));
}

// The channels first..end of a weight; first is a whole panel's.
edge::Int8Weight channels_of(edge::Int8Weight weight, int64_t first, int64_t end) {
  if (weight.codes != nullptr) weight.codes += first / 16 * weight.code_bytes();
  else weight.tiles += first / 16 * weight.tile_bytes();
  weight.product_scale += first;
  weight.row_sum += first;
  if (weight.bias != nullptr) weight.bias += first;
  weight.channels = end - first;
  return weight;
}

// Codes are expanded as written, and multiplied as their tiles, alone and one under the other.
void run_codes(const KernelTable& table, Result& result, LinearProblem p, ThreadPool& pool) {
  edge::Int8Weight coded = p.view(End::kBias);
  Random random(static_cast<uint64_t>(p.n * 1009 + p.k));
  const Array<uint8_t> codes = random_codes(coded, random);
  coded.tiles = nullptr;
  coded.codes = codes.data();
  Array<int8_t> scratch(coded.groups() * 512), found(coded.panels() * coded.tile_bytes());
  table.codes->expand(coded, 0, coded.panels(), scratch.data(), found.data());
  for (int64_t n = 0; n < p.n; ++n)
    for (int64_t c = 0; c < p.k; ++c) p.weight[n * p.k + c] = plain_weight(coded, n, c);
  for (int64_t n = 0; n < p.n; ++n)
    for (int64_t c = 0; c < p.k; ++c)
      result.expect(found[n / 16 * coded.tile_bytes() + c / 4 * 64 + n % 16 * 4 + c % 4] == p.weight[n * p.k + c],
                    "an expanded weight is not the one on paper");
  edge::row_sums(found.data(), p.n, coded.blocks(), p.row_sum.data());
  p.tiles = found;
  Array<float> of_codes(p.m * p.n, -1.0f), of_tiles(p.m * p.n, -1.0f);
  const edge::Int8Weight tiled = p.view(End::kBias);
  result.add_flag(table.linear->linear(p.input(true), &coded, 1, p.hot_weight.data(), p.add.data(), of_codes.data(), pool));
  result.add_flag(table.linear->linear(p.input(true), &tiled, 1, p.hot_weight.data(), p.add.data(), of_tiles.data(), pool));
  result.expect(same_bits(of_codes, of_tiles), "a linear of codes is not that of their tiles");
  result.add(of_codes);
  for (int64_t cut = 16; cut < p.n; cut *= 2) {
    Array<float> of_both(p.m * p.n, -1.0f);
    const edge::Int8Weight parts[2] = {channels_of(coded, 0, cut), channels_of(tiled, cut, p.n)};
    result.add_flag(table.linear->linear(p.input(true), parts, 2, p.hot_weight.data(), p.add.data(), of_both.data(), pool));
    result.expect(same_bits(of_both, of_tiles), "a linear of codes and tiles is not that of tiles");
  }
}

void run_code_search(const KernelTable& table, Result& result, int64_t n, int64_t k) {
  Random random(static_cast<uint64_t>(n * 1009 + k));
  const Array<float> weight = random.floats(n * k, 0.1f);
  Array<float> importance = random.floats(k, 1.0f), scale(n);
  for (float& one : importance) one = std::fabs(one);
  const int64_t groups = (k + 31) / 32;
  Array<uint8_t> codes(n * k), multiplier(n * groups), shift(n * groups);
  table.codes->search({weight.data(), importance.data(), k, codes.data(), multiplier.data(), shift.data(), scale.data()}, 0, n);
  result.add(codes);
  result.add(multiplier);
  result.add(shift);
  result.add(scale);
}

void test_codes(Report& report) {
  struct Shape { int64_t n, k, hot; };
  const Shape shapes[] = {{16, 32, 0}, {17, 36, 1}, {70, 172, 3}};
  for (const Shape& s : shapes) {
    for (int64_t m : kRowCounts) {
      const LinearProblem p = linear_problem(m, s.n, s.k, s.hot, Values::kCommon);
      report.compare(name_of("linear of codes", {m, s.n, s.k, s.hot}),
                     [&](const KernelTable& table, Result& result) { run_codes(table, result, p, pool_of(1)); }, true);
    }
    report.compare(name_of("search for codes", {s.n, s.k}),
                   [&](const KernelTable& table, Result& result) { run_code_search(table, result, s.n, s.k); });
  }
}

void test_linear(Report& report) {
  struct Shape { int64_t n, k, hot; };
  const Shape shapes[] = {{1, 1, 0}, {5, 3, 1}, {16, 4, 0}, {17, 7, 1}, {33, 70, 5}, {70, 133, 3}};
  for (const Shape& s : shapes)
    for (int64_t m : kRowCounts) {
      const LinearProblem p = linear_problem(m, s.n, s.k, s.hot, Values::kCommon);
      report.compare(name_of("linear", {m, s.n, s.k, s.hot}), [&](const KernelTable& table, Result& result) {
        for (End end : kEnds) run_linear(table, result, p, pool_of(1), end);
      }, true);
    }
  for (int64_t m : kRowCounts) {
    const LinearProblem p = linear_problem(m, 160, 70, 2, Values::kCommon);
    report.compare(name_of("norm, linear, swiglu", {m}), [&](const KernelTable& table, Result& result) {
      for (End end : kEnds) run_linear_fused(table, result, p, pool_of(m % 2 == 0 ? 1 : 3), end);
    }, true);
  }
  for (int64_t m : {1, 2, 3, 4, 6, 7, 20}) {
    const LinearProblem p = linear_problem(m, 19, 1030, 0, Values::kExtreme);
    report.compare(name_of("linear of extremes", {m}), [&](const KernelTable& table, Result& result) {
      for (End end : kEnds) run_linear(table, result, p, pool_of(1), end);
    }, true);
  }
  for (int64_t m : {1, 9, 65}) {  // enough work for the pool to share it out
    const LinearProblem p = linear_problem(m, 330, 517, 4, Values::kCommon);
    report.compare(name_of("linear on three threads", {m}), [&](const KernelTable& table, Result& result) {
      for (End end : {End::kBias, End::kRoundedBias}) run_linear(table, result, p, pool_of(3), end);
    }, true);
  }
}

// The linear of float16 with all that it may take, and as the steps one by one.
void run_half_linear(const KernelTable& table, Result& result, int64_t m, int64_t k, int64_t n, ThreadPool& pool) {
  Random random(static_cast<uint64_t>((m * 1009 + n) * 1009 + k));
  const Array<float> x = random.floats(m * k, 3.0f), bias = random.floats(n, 1.0f), gain = random.floats(k, 1.0f);
  const Array<float> more = random.floats(m * n, 1.0f);
  Array<uint16_t> weight(k * n);
  for (uint16_t& w : weight) w = random.half();
  Array<int32_t> every(k);
  for (int64_t i = 0; i < k; ++i) every[i] = static_cast<int32_t>(i);
  Array<float> normed(m * k), sum(m * n, -1.0f), found(m * n, -1.0f);
  table.pointwise->norm({x.data(), k, 0, normed.data(), k, 0, 1, k, gain.data(), 1e-5f}, 0, m);
  table.linear->hot_product(sum.data(), normed.data(), m, k, n, every.data(), k, weight.data(), pool);
  for (int64_t i = 0; i < m * n; ++i) sum[i] += bias[i % n];
  edge::HalfLinearArgs args = {x.data(), m, k, n, weight.data(), bias.data(), gain.data(), 1e-5f, nullptr, found.data(), {}};
  result.add_flag(table.half->linear(args, pool));
  result.expect(same_bits(found, sum), "a linear of float16 is not the product of all channels");
  if (n % 2 == 0) {
    Array<float> activated(m * n / 2, -1.0f), fused(m * n / 2, -1.0f);
    for (const edge::Gate gate : kGates) {
      if (m > 2 && gate.kind != edge::kSilu && gate.kind != edge::kGeluErf) continue;  // all kinds meet in one place
      table.pointwise->gate({sum.data(), activated.data(), n / 2, gate}, 0, m);
      args.out = fused.data();
      args.gate = gate;
      result.add_flag(table.half->linear(args, pool));
      result.expect(same_bits(fused, activated), "a gate at once is not a gate behind it");
      result.add(fused);
    }
  }
  for (int64_t i = 0; i < m * n; ++i) sum[i] += more[i];
  args.out = found.data();
  args.add = more.data();
  args.gate = {};
  result.add_flag(table.half->linear(args, pool));
  result.expect(same_bits(found, sum), "an addition at once is not an addition behind it");
  result.add(found);
}

void test_half_linear(Report& report) {
  struct Shape { int64_t k, n; };
  for (const Shape& s : {Shape{1, 1}, Shape{3, 16}, Shape{9, 34}, Shape{70, 133}, Shape{300, 420}, Shape{11, 4230}})
    for (int64_t m : {1, 2, 3, 4, 5, 6, 7, 12, 13, 25, 140})
      report.compare(name_of("linear of float16", {m, s.k, s.n}), [&](const KernelTable& table, Result& result) {
        run_half_linear(table, result, m, s.k, s.n, pool_of(m % 2 == 0 ? 1 : 3));
      });
}

void test_blocks(Report& report) {
  for (int kind = 0; kind < edge::kBlockKinds; ++kind)
    for (int64_t m : {1, 2, 3, 5, 8, 33})
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{7, 256}, {64, 512}, {41, 768}}) {
        if (m > 8 && n == 7) continue;
        const edge_test::BlockProblem p = edge_test::block_problem(kind, m, n, k);
        report.compare(name_of("linear of blocks", {kind, m, n, k}), [&](const KernelTable& table, Result& result) {
          edge_test::run_blocks(table, result, kind, p, pool_of(m % 2 == 0 ? 1 : 3));
        });
      }
}

void test_quantize(Report& report) {
  Array<float> ties(1061);  // every half from -132.5 to 132.5 and its neighbours
  for (int64_t i = 0; i < ties.size(); ++i) ties[i] = static_cast<float>(i - 530) * 0.25f;
  report.compare("quantize rounds half to even", [&](const KernelTable& table, Result& result) {
    Array<int8_t> q(ties.size());
    std::vector<edge::ResidualRow> rows(1);
    const edge::QuantizeInput input = {ties.data(), 1, ties.size(), 1.0f, nullptr, 0, true, nullptr, 0.0f};
    result.expect(table.linear->quantize(input, q.data(), rows.data(), pool_of(1)), "finite values are refused");
    for (int64_t i = 0; i < ties.size(); ++i) {
      const float nearest = std::min(127.0f, std::max(-127.0f, __builtin_rintf(ties[i])));
      result.expect(q[i] == static_cast<int8_t>(nearest), "not rounded half to even");
    }
    const Residual residual = read_residual(rows, pool_of(1));
    result.add(q);
    result.add(residual.column);
    result.add(residual.value);
  });
  for (int64_t turn : {0, 4, 32, 128})
    for (bool row_scales : {false, true})
      for (bool normed : {false, true}) {
        constexpr int64_t kRows = 5, kColumns = 384;
        Random random(static_cast<uint64_t>(turn));
        const Array<float> x = random.floats(kRows * kColumns, 3.0f), gain = random.floats(kColumns, 2.0f);
        report.compare(name_of("linear of rows turned, scaled, normed", {turn, row_scales, normed}),
                       [&](const KernelTable& table, Result& result) {
          LinearProblem p = linear_problem(kRows, 40, kColumns, 0, Values::kCommon);
          p.x = x;
          edge::QuantizeInput input = p.input(!row_scales);
          input.turn = turn;
          input.row_scales = row_scales;
          input.gain = normed ? gain.data() : nullptr;
          input.eps = 1e-6f;
          const edge::Int8Weight plain = p.view(End::kPlain);
          Array<float> out(kRows * 40);
          for (int threads : {1, 3}) {
            Array<float> again(out.size());
            result.expect(table.linear->linear(input, &plain, 1, nullptr, nullptr, again.data(), pool_of(threads)), "refused");
            if (threads > 1) result.expect(same_bits(out, again), "other bits on other threads");
            out = again;
          }
          result.add(out);
        });
      }
  report.compare("linear refuses what it must", [&](const KernelTable& table, Result& result) {
    for (float bad : {kInfinity, -kInfinity, __builtin_nanf("")})
      for (int64_t at : {0, 15, 16, 36}) {
        LinearProblem p = linear_problem(3, 5, 37, 0, Values::kCommon);
        p.x[37 + at] = bad;
        const edge::Int8Weight plain = p.view(End::kPlain);
        Array<float> out(15, 7.0f);
        result.expect(!table.linear->linear(p.input(true), &plain, 1, nullptr, nullptr, out.data(), pool_of(1)),
                      "a value that is not finite is taken");
        result.expect(same_bits(out, Array<float>(15, 7.0f)), "the output of a refused call is touched");
        Array<int8_t> q(3 * 37, int8_t{1});
        q[37 + at] = -128;
        result.expect(!table.linear->linear_int8(q.data(), 3, plain, out.data(), pool_of(1)), "-128 is taken");
      }
    result.add_flag(true);
  });
}

void test_halves(Report& report) {
  Array<uint16_t> halves(0x10000);
  for (int64_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>((i & 0x7FFF) > 0x7C00 ? 0 : i);  // no NaN
  report.compare("every float16 as a hot weight", [&](const KernelTable& table, Result& result) {
    const Array<float> x(1, 1.0f);
    const Array<int32_t> hot(1, 0);
    Array<float> out(halves.size());
    table.linear->hot_product(out.data(), x.data(), 1, 1, halves.size(), hot.data(), 1, halves.data(), pool_of(1));
    result.add(out);
  });
}

// ---- attention -----------------------------------------------------------------------------------------------------

struct AttentionProblem {
  const char* name;
  int64_t q_heads, kv_heads, head_dim;
  int64_t tokens;           // of each of two sequences
  int64_t rows;             // the last tokens of the second sequence, one query row each
  int64_t rows_of_a_tile;
};

constexpr int64_t kSequences = 2;

struct Pages {
  Array<int8_t> values;    // [P, Hkv, 16 * D]
  Array<uint16_t> scales;  // [P, Hkv, 16]
};

struct KeyValuePages {
  Pages k, v;
  bool finite = true;
};

Pages stale_pages(int64_t count, int64_t kv_heads, int64_t dim) {
  return {Array<int8_t>(count * kv_heads * edge::kPage * dim, int8_t{77}),
          Array<uint16_t>(count * kv_heads * edge::kPage, uint16_t{0x7E00})};  // NaN
}

// The rows of a joint matrix [rows, Hq + 2 Hkv, D], changed in place, turned by some angles, into `pages` pages.
KeyValuePages append(const KernelTable& table, Array<float>& joint, int64_t q_heads, int64_t kv_heads, int64_t dim,
                     const Array<int64_t>& slots, int64_t pages, const float* gain, int64_t turn = 0, int64_t rotated = -1,
                     bool norm_last = false) {
  const int64_t width = (q_heads + 2 * kv_heads) * dim, half = (rotated < 0 ? dim : rotated) / 2;
  Random random(9);
  const Array<float> q_scale = random.floats(4, 1.0f);
  const Array<float> cos = random.floats(4 * half, 1.0f), sin = random.floats(4 * half, 1.0f);
  const Array<float> k_offset = random.floats(kv_heads * dim, 1.0f);
  Array<int32_t> positions(slots.size());
  for (int64_t m = 0; m < slots.size(); ++m) positions[m] = static_cast<int32_t>(m % 4);
  KeyValuePages out = {stale_pages(pages, kv_heads, dim), stale_pages(pages, kv_heads, dim)};
  float* k = joint.data() + q_heads * dim;
  const auto norm = [&](float* x, int64_t heads) {
    return edge::NormArgs{x, width, dim, x, width, dim, heads, dim, gain, 1e-6f};
  };
  const edge::RopeAppendArgs args = {
      norm(joint.data(), q_heads), norm(k, kv_heads),
      {joint.data(), width, dim, q_heads + kv_heads, half, positions.data(), cos.data(), sin.data()},
      k_offset.data(),
      turn,
      {k, width, kv_heads, dim, out.k.values.data(), out.k.scales.data(), slots.data()},
      {k + kv_heads * dim, width, kv_heads, dim, out.v.values.data(), out.v.scales.data(), slots.data()},
      norm_last ? norm(k + kv_heads * dim, kv_heads) : edge::NormArgs{},
      norm_last,
      norm_last ? q_scale.data() : nullptr};
  out.finite = table.attention->rope_append(args, 0, slots.size());
  return out;
}

// Sequence s has every second page, from the end of the store; its first row is padding, not stored.
Array<int64_t> slots_of(const AttentionProblem& p, const Array<int32_t>& page_table) {
  const int64_t max_pages = page_table.size() / kSequences;
  Array<int64_t> slots(kSequences * p.tokens);
  for (int64_t s = 0; s < kSequences; ++s)
    for (int64_t t = 0; t < p.tokens; ++t)
      slots[s * p.tokens + t] = page_table[s * max_pages + t / edge::kPage] * edge::kPage + t % edge::kPage;
  slots[0] = -1;
  return slots;
}

Array<float> attend(const KernelTable& table, edge::AttentionArgs args, const AttentionProblem& p, bool by_segments) {
  Array<float> out(p.rows * p.q_heads * p.head_dim, -1.0f);
  args.out = out.data();
  const edge::AttentionKernels& kernel = *table.attention;
  for (int64_t row = 0; row < p.rows; row += p.rows_of_a_tile)
    for (int64_t h = 0; h < p.kv_heads; ++h) {
      const int64_t rows = std::min(p.rows_of_a_tile, p.rows - row), queries = rows * (p.q_heads / p.kv_heads);
      int32_t last = -1;
      int64_t seen = INT64_MAX;
      for (int64_t r = row; r < row + rows; ++r) {
        last = std::max(last, args.row_position[r]);
        if (args.row_position[r] >= 0) seen = std::min(seen, std::max<int64_t>(0, args.row_position[r] + 1 - args.window));
      }
      const int64_t segments = last < 0 ? 0 : last / edge::kSegment + 1, first = last < 0 ? 0 : seen / edge::kSegment;
      const edge::AttentionTile tile = {row, rows, h, segments, first};
      Array<float> scratch(kernel.scratch_floats(queries, p.head_dim), -1.0f);
      if (!by_segments) {
        kernel.attend(args, tile, nullptr, scratch.data());
        continue;
      }
      const int64_t stride = edge::attention_part_floats(queries, p.head_dim);
      Array<float> parts(std::max<int64_t>(1, segments - first) * stride, -1.0f);
      kernel.load_queries(args, tile, scratch.data());
      for (int64_t s = segments; s-- > first;)
        kernel.attend_segment(args, tile, s, {&tile, s - (s > first)},
                              edge::attention_part(parts.data() + (s - first) * stride, queries), scratch.data());
      kernel.join(args, tile, parts.data(), stride);
    }
  return out;
}

void run_attention(const KernelTable& table, Result& result, const AttentionProblem& p) {
  Random random(static_cast<uint64_t>(p.q_heads * 7 + p.kv_heads * 5 + p.head_dim * 3 + p.tokens + p.rows));
  const int64_t max_pages = (p.tokens + edge::kPage - 1) / edge::kPage;
  Array<int32_t> page_table(kSequences * max_pages);
  for (int64_t i = 0; i < page_table.size(); ++i)
    page_table[i] = static_cast<int32_t>(page_table.size() - 1 - i % max_pages * kSequences - i / max_pages);
  Array<float> joint = random.floats(kSequences * p.tokens * 2 * p.kv_heads * p.head_dim, 2.0f);
  const KeyValuePages pages = append(table, joint, 0, p.kv_heads, p.head_dim, slots_of(p, page_table), page_table.size(), nullptr);
  const Pages &k = pages.k, &v = pages.v;

  // Query rows as in a joint q|k|v matrix; the first row is padding, where there are several.
  const int64_t row_stride = (p.q_heads + 2 * p.kv_heads) * p.head_dim;
  const Array<float> q = random.floats((p.rows - 1) * row_stride + p.q_heads * p.head_dim, 2.0f);
  Array<int32_t> row_sequence(p.rows, 1), row_position(p.rows);
  for (int64_t r = 0; r < p.rows; ++r) row_position[r] = static_cast<int32_t>(p.tokens - p.rows + r);
  if (p.rows > 2) row_position[0] = -1;
  const edge::AttentionArgs args = {q.data(), row_stride, p.head_dim, p.q_heads, p.kv_heads, p.head_dim,
                                    k.values.data(), v.values.data(), k.scales.data(), v.scales.data(),
                                    page_table.data(), max_pages, row_sequence.data(), row_position.data(),
                                    0.125f, nullptr};
  result.expect(pages.finite, "finite keys and values are refused");
  const Array<float> sinks = random.floats(p.q_heads, 3.0f);
  for (int64_t window : {edge::kNoWindow, int64_t{1}, int64_t{5}, int64_t{16}, int64_t{250}, int64_t{257}, int64_t{300}})
    for (bool capped : {false, true}) {
      edge::AttentionArgs these = args;
      these.window = window;
      if (capped) these.cap = 2.0f;
      if (capped) these.sinks = sinks.data();
      const Array<float> found = attend(table, these, p, false);
      result.expect(same_bits(found, attend(table, these, p, true)), "segments on their own give other bits");
      result.add(found);
    }
  result.add(k.values);
  result.add(k.scales);
  result.add(v.values);
  result.add(v.scales);
}

void test_attention(Report& report) {
  const AttentionProblem problems[] = {
      //            heads kv dim  tokens rows tile
      {"decode",        4, 2, 64,    300,  1,  1},
      {"decode",        8, 1, 40,     17,  1,  1},
      {"decode",        1, 1, 16,      1,  1,  1},
      {"decode",        3, 3,  8,     33,  1,  1},
      {"decode",        5, 1, 128,    20,  1,  1},
      {"prefill",       4, 4, 24,     40, 40,  8},
      {"prefill",       6, 2, 128,    19, 19,  4},
      {"prefill",       8, 1, 64,     35, 11,  5},
      {"prefill",       2, 1, 56,     18, 18, 16},
      {"long prefill",  2, 1, 24,    600,  5,  5},
  };
  for (const AttentionProblem& p : problems)
    report.compare(name_of(p.name, {p.q_heads, p.kv_heads, p.head_dim, p.tokens, p.rows}),
                   [&](const KernelTable& table, Result& result) { run_attention(table, result, p); }, true);
}

void test_append(Report& report) {
  // Tokens whose largest values run through all that a float16 scale can be: subnormal, normal, too large.
  constexpr int64_t kTokens = 1200, kDim = 24, kWidth = 4 * kDim;  // two query heads, a key, a value
  Random random(5);
  Array<float> tokens(kTokens * kWidth);
  for (int64_t t = 0; t < kTokens; ++t) {
    const auto exponent = static_cast<uint32_t>(t % 60 + 127 - 32);  // 2^-32 .. 2^27
    const uint32_t bits = exponent << 23 | static_cast<uint32_t>(random.between(0, (1 << 23) - 1));
    float most;
    memcpy(&most, &bits, 4);
    for (int64_t i = 0; i < kWidth; ++i) tokens[t * kWidth + i] = t % 100 == 99 ? 0.0f : random.unit() * most;
  }
  const Array<float> gain = random.floats(kDim, 1.0f);
  Array<int64_t> slots(kTokens);
  for (int64_t t = 0; t < kTokens; ++t) slots[t] = t;
  const auto run = [&](const KernelTable& table, Result& result, const float* norm_gain, bool finite,
                       int64_t turn = 0, int64_t rotated = -1, bool norm_last = false) {
    Array<float> joint = tokens;
    const KeyValuePages pages =
        append(table, joint, 2, 1, kDim, slots, kTokens / edge::kPage, norm_gain, turn, rotated, norm_last);
    result.expect(pages.finite == finite, "finite or not is mistaken");
    for (const Pages* each : {&pages.k, &pages.v}) {
      result.add(each->values);
      result.add(each->scales);
    }
    if (finite) result.add(joint);
  };
  report.compare("append", [&](const KernelTable& table, Result& result) { run(table, result, nullptr, true); });
  report.compare("append, normed", [&](const KernelTable& table, Result& result) { run(table, result, gain.data(), true); });
  for (int64_t turn : {2, 8})
    report.compare(name_of("append, turned", {turn}),
                   [&](const KernelTable& table, Result& result) { run(table, result, nullptr, true, turn); });
  for (int64_t rotated : {0, 4, 16})
    report.compare(name_of("append, partly rotated, normed last", {rotated}), [&](const KernelTable& table, Result& result) {
      run(table, result, gain.data(), true, 8, rotated, true);
    });
  tokens[3 * kWidth + 3 * kDim + 16] = __builtin_nanf("");
  tokens[7 * kWidth + 2 * kDim + 2] = -kInfinity;
  report.compare("append of what is not finite",
                 [&](const KernelTable& table, Result& result) { run(table, result, nullptr, false); });
}

// ---- pointwise -----------------------------------------------------------------------------------------------------

void test_norm(Report& report) {
  for (int64_t dim : {1, 5, 16, 33, 128, 200}) {
    Random random(static_cast<uint64_t>(dim));
    constexpr int64_t kRows = 3, kHeads = 2;
    const Array<float> x = random.floats(kRows * kHeads * dim, 5.0f), gain = random.floats(dim, 2.0f);
    report.compare(name_of("norm", {dim}), [&](const KernelTable& table, Result& result) {
      Array<float> out(x.size());
      const auto norm = [&](const float* from, float* to) {
        const int64_t stride = kHeads * dim;
        table.pointwise->norm({from, stride, dim, to, stride, dim, kHeads, dim, gain.data(), 1e-5f}, 0, kRows);
      };
      norm(x.data(), out.data());
      Array<float> in_place = x;
      norm(in_place.data(), in_place.data());
      result.expect(same_bits(out, in_place), "in place gives other bits");
      result.add(out);
    });
    for (bool centred : {false, true})
      for (bool more : {false, true})
        report.compare(name_of("norm of rows", {dim, centred, more}), [&](const KernelTable& table, Result& result) {
          Array<float> out(kRows * dim), in_place = x;
          const Array<float> bias = Random(1).floats(dim, 1.0f), add = Random(2).floats(kRows * dim, 1.0f);
          edge::NormArgs args = {x.data(), 2 * dim, 0, out.data(), dim, 0, 1, dim, gain.data(), 1e-5f, centred};
          if (more) args.bias = bias.data(), args.add = add.data(), args.add_row_stride = dim;
          table.pointwise->norm(args, 0, kRows);
          args.x = args.out = in_place.data();
          args.out_row_stride = 2 * dim;
          table.pointwise->norm(args, 0, kRows);
          for (int64_t i = 0; i < in_place.size(); ++i)
            if (i / dim % 2 == 0) result.expect(in_place[i] == out[i / (2 * dim) * dim + i % dim], "strided rows give other bits");
            else result.expect(in_place[i] == x[i], "what lies between rows is changed");
          result.add(out);
        });
  }
}

void test_rope(Report& report) {
  for (int64_t half : {1, 4, 16, 20, 64}) {
    Random random(static_cast<uint64_t>(half));
    constexpr int64_t kRows = 4, kHeads = 3, kPositions = 9;
    const Array<float> x = random.floats(kRows * kHeads * 2 * half, 3.0f);
    const Array<float> cos = random.floats(kPositions * half, 1.0f), sin = random.floats(kPositions * half, 1.0f);
    Array<int32_t> positions(kRows);
    for (int64_t m = 0; m < kRows; ++m) positions[m] = static_cast<int32_t>(random.between(0, kPositions - 1));
    report.compare(name_of("rope", {half}), [&](const KernelTable& table, Result& result) {
      Array<float> rotated = x;
      const int64_t stride = 2 * half;
      table.pointwise->rope(
          {rotated.data(), kHeads * stride, stride, kHeads, half, positions.data(), cos.data(), sin.data()}, 0, kRows);
      result.add(rotated);
    });
  }
}

void test_turn(Report& report) {
  for (int64_t block : {2, 4, 8, 16, 32, 64, 128})
    for (int64_t blocks : {1, 3, 9}) {
      const int64_t columns = block * blocks, kRows = 3;
      Random random(static_cast<uint64_t>(columns + block));
      const Array<float> x = random.floats(kRows * columns, 5.0f);
      report.compare(name_of("turn", {block, columns}), [&](const KernelTable& table, Result& result) {
        Array<float> turned = x;
        table.pointwise->turn({turned.data(), columns, block}, 0, kRows);
        result.add(turned);
        for (int64_t row = 0; row < kRows; ++row)  // the first channel of a block is the sum, the second one has every other sign
          for (int64_t c = row * columns; c < (row + 1) * columns; c += block) {
            float sum = 0.0f, alternating = 0.0f, most = 0.0f;
            for (int64_t i = 0; i < block; ++i) {
              sum += x[c + i];
              alternating += i % 2 == 0 ? x[c + i] : -x[c + i];
              most += std::abs(x[c + i]);
            }
            result.expect(std::abs(turned[c] - sum) <= most * 1e-5f, "the first channel is not the sum");
            result.expect(std::abs(turned[c + 1] - alternating) <= most * 1e-5f, "the second channel is not the difference");
          }
        table.pointwise->turn({turned.data(), columns, block}, 0, kRows);
        for (int64_t i = 0; i < x.size(); ++i)
          result.expect(std::abs(turned[i] / static_cast<float>(block) - x[i]) <= 1e-4f, "turned twice is not the same again");
      });
    }
}

void test_gates(Report& report) {
  for (int64_t width : {1, 15, 16, 50}) {
    Random random(static_cast<uint64_t>(width));
    const Array<float> gate_up = random.floats(3 * 2 * width, 20.0f);
    report.compare(name_of("gates", {width}), [&](const KernelTable& table, Result& result) {
      Array<float> out(3 * width);
      for (const edge::Gate gate : kGates) {
        table.pointwise->gate({gate_up.data(), out.data(), width, gate}, 0, 3);
        result.add(out);
      }
    });
  }
  // The exponential over its whole range, with what lies at and beyond its ends.
  constexpr int64_t kSteps = 20000;
  const float ends[] = {0.0f, -0.0f, 1e-40f, -1e-40f, 87.33654f, -87.33655f, 88.72283f, -88.72284f,
                        1e4f, -1e4f, 3e38f, -3e38f, kInfinity};
  constexpr int64_t kEnds = sizeof(ends) / sizeof(*ends), kWidth = kSteps + kEnds;
  Array<float> gate_up(2 * kWidth, 1.0f);
  for (int64_t i = 0; i < kSteps; ++i) gate_up[i] = static_cast<float>(i - kSteps / 2) * 0.01f;
  std::copy(ends, ends + kEnds, gate_up.begin() + kSteps);
  report.compare("gates and activations from end to end", [&](const KernelTable& table, Result& result) {
    Array<float> out(kWidth);
    for (const edge::Gate gate : kGates) {
      table.pointwise->gate({gate_up.data(), out.data(), kWidth, gate}, 0, 1);
      result.add(out);
      if (gate.kind == edge::kClampedSilu) continue;
      table.pointwise->activate({gate_up.data(), out.data(), kWidth, gate}, 0, 1);
      result.add(out);
    }
    table.pointwise->activate({gate_up.data(), out.data(), kWidth, {edge::kSoftCap, 30.0f}}, 0, 1);
    result.add(out);
  });
}

// ---- floats ------------------------------------------------------------------------------------------------------

void test_floats(Report& report) {
  struct Shape { int64_t m, n, k; };
  for (const Shape& s : {Shape{1, 1, 1}, Shape{5, 7, 15}, Shape{4, 4, 16}, Shape{9, 13, 49}, Shape{130, 9, 1030}}) {
    Random random(static_cast<uint64_t>(s.m * 1009 + s.k));
    const Array<float> x = random.floats(s.m * s.k, 3.0f), weight = random.floats(s.n * s.k, 2.0f);
    report.compare(name_of("float product", {s.m, s.n, s.k}), [&](const KernelTable& table, Result& result) {
      Array<float> out(s.m * s.n), halves(s.m * s.n);
      table.floats->product({x.data(), s.m, weight.data(), s.k, s.n, s.k, out.data()}, 0, s.n);
      table.floats->product({x.data(), s.m, weight.data(), s.k, s.n, s.k, halves.data()}, 0, s.n / 2);
      table.floats->product({x.data(), s.m, weight.data(), s.k, s.n, s.k, halves.data()}, s.n / 2, s.n);
      result.expect(same_bits(out, halves), "a channel depends on the others");
      result.add(out);
    });
  }
  for (int64_t count : {1, 15, 16, 50}) {
    const Array<float> x = Random(static_cast<uint64_t>(count)).floats(count, 100.0f);
    report.compare(name_of("exp", {count}), [&](const KernelTable& table, Result& result) {
      Array<float> out(count);
      table.floats->exp(x.data(), out.data(), 0, count);
      result.add(out);
    });
  }
}

// ---- sampling ------------------------------------------------------------------------------------------------------

void test_sampling(Report& report) {
  for (int64_t count : {1, 15, 16, 33, 512}) {
    Random random(static_cast<uint64_t>(count));
    Array<float> logits = random.floats(count, 20.0f);
    for (float& x : logits)
      if (random.chance(10)) x = -kInfinity;
    report.compare(name_of("sampling", {count}), [&](const KernelTable& table, Result& result) {
      constexpr float kBest = 21.0f, kLowest = -30.0f;
      Array<float> gaps(count), above(edge::kSamplingBlock);
      Array<int64_t> masses(count);
      Array<int32_t> buckets(edge::kSamplingBlock), where(edge::kSamplingBlock);
      const edge::ValueRange all = table.sampling->range(logits.data(), count);
      float greatest = -kInfinity, least = kInfinity;
      for (int64_t i = 0; i < count; ++i) {
        greatest = std::max(greatest, logits[i]);
        least = std::min(least, logits[i]);
        gaps[i] = std::max(logits[i] - kBest, kLowest);
      }
      result.expect(all.high == greatest && all.low == least, "not the greatest and the least logit");
      const int64_t kept_above = table.sampling->above(logits.data(), kBest, kLowest, 7, count, above.data(), where.data());
      int64_t expected = 0;
      for (int64_t i = 0; i < count; ++i) {
        if (!(logits[i] - kBest > kLowest)) continue;
        result.expect(above[expected] == logits[i] - kBest && where[expected] == 7 + i, "not the gaps above a bound");
        ++expected;
      }
      result.expect(kept_above == expected, "not as many as are above a bound");
      table.sampling->masses(gaps.data(), 1.0 / 0.7, 35, count, masses.data());
      const edge::ValueRange range = {0.0f, kLowest};
      table.sampling->buckets(gaps.data(), range, count, buckets.data());
      for (int32_t bucket : {0, buckets[0], edge::kSamplingBuckets - 1}) {
        const int64_t found = table.sampling->find(logits.data(), kBest, table.sampling->gaps_of(range, bucket), count, where.data());
        for (int64_t n = 0; n < found; ++n) result.expect(buckets[where[n]] == bucket, "found in another bucket");
        result.expect(found == std::count(buckets.begin(), buckets.begin() + count, bucket), "not all of a bucket");
      }
      std::vector<int64_t> sums(edge::kSamplingBuckets, 1), expected_sums = sums;
      for (int64_t i = 0; i < count; ++i) expected_sums[buckets[i]] += masses[i];
      Array<int64_t> weighed(count);
      table.sampling->tabulate(gaps.data(), 1.0 / 0.7, 35, range, count, weighed.data(), sums.data());
      result.expect(std::equal(weighed.begin(), weighed.end(), masses.begin()), "other masses in a table");
      result.expect(sums == expected_sums, "not the masses added up by buckets");
      for (const float value : {kInfinity, NAN, -kInfinity}) {
        std::vector<float> other(logits.begin(), logits.begin() + count);
        other[count / 2] = value;
        result.expect(table.sampling->sane(other.data(), count) == (value == -kInfinity), "not whether all are below infinity");
      }
      table.sampling->buckets(gaps.data(), {0.0f, 0.0f}, count, buckets.data());
      result.expect(std::count(buckets.begin(), buckets.begin() + count, 0) == count, "more than one bucket of one gap");
      table.sampling->buckets(gaps.data(), range, count, buckets.data());
      std::vector<int64_t> kept(masses.begin(), masses.begin() + count);
      table.sampling->keep(gaps.data(), {gaps[count - 1], gaps[0]}, count, kept.data());
      for (int64_t i = 0; i < count; ++i)
        result.expect(kept[i] == (gaps[i] <= gaps[count - 1] && gaps[i] >= gaps[0] ? masses[i] : 0), "not the range kept");
      result.add(masses);
      result.add(std::vector<int32_t>(buckets.begin(), buckets.begin() + count));
      result.add(std::vector<int64_t>{table.sampling->sum_from(masses.data(), masses[0], count)});
      result.add(std::vector<double>{table.sampling->exp_sum(logits.data(), kBest, count)});
      Array<uint8_t> bits((count + 7) / 8);
      for (uint8_t& byte : bits) byte = static_cast<uint8_t>(logits[0] * 8.0f + static_cast<float>(count));
      Array<float> masked(count);
      int64_t allowed = 0;
      for (int64_t i = 0; i < count; ++i) allowed += bits[i / 8] >> (i % 8) & 1;
      result.expect(table.sampling->mask(logits.data(), bits.data(), count, masked.data()) == allowed, "not as many bits");
      result.add(masked);
    });
  }
}

// ---- the rest ------------------------------------------------------------------------------------------------------

void test_roofs(Report& report) {
  Random random(11);
  Array<int8_t> data(100000);
  for (int8_t& byte : data) byte = static_cast<int8_t>(random.bits());
  report.compare("roofs", [&](const KernelTable& table, Result& result) {
    const std::vector<int32_t> read = {table.linear->read_stream(data.data(), data.size(), pool_of(1))};
    result.expect(table.linear->int8_operations(2, pool_of(3)) > 0, "no operations done");
    result.expect(table.half->float_operations(2, pool_of(3)) > 0, "no float operations done");
    result.add(read);
  });
}

// Threads that share a region of `pool`, where every worker must have his turn.
size_t threads_of(ThreadPool& pool) {
  std::mutex mutex;
  std::set<std::thread::id> seen;
  pool.run(pool.threads(), [&](int) {
    const std::lock_guard<std::mutex> guard(mutex);
    seen.insert(std::this_thread::get_id());
  });
  return seen.size();
}

// Not part of the table: pools of one size share their threads, each has its part, and none waits for another.
void test_team(Report& report) {
  report.compare("team", [](const KernelTable&, Result& result) {
    ThreadPool first(4, nullptr), second(4, nullptr), third(4, nullptr), other(3, nullptr);
    const edge::PoolLease lease(first);
    result.expect(threads_of(first) == 4, "a pool that works alone has not all threads");
    {
      const edge::PoolLease beside(second);
      result.expect(threads_of(first) == 2 && threads_of(second) == 2, "two pools have not half of the threads each");
      const edge::PoolLease third_lease(third), other_lease(other);
      result.expect(threads_of(first) == 2, "of four threads and three callers one is not left for a helper");
      result.expect(threads_of(other) == 3, "pools of other sizes take threads from each other");
      size_t found = 0;
      first.run(2, [&](int worker) {
        if (worker == 0) found = threads_of(second);
      });
      result.expect(found == 1, "a pool has a helper where all are taken");
    }
    size_t found = 0;
    first.run(4, [&](int worker) {
      const edge::PoolLease beside(second);
      if (worker == 0) found = threads_of(second);
    });
    result.expect(found == 1, "a pool does not work alone while another has all threads");
    result.expect(threads_of(first) == 4, "the threads do not come back");
  });
}

// Not part of the table: the CRC instruction, where the CPU has it, against the table of 8 x 256 entries.
void test_crc32c(Report& report) {
  Random random(13);
  Array<uint8_t> data(3 * 16384 * 2 + 3 * 1024 + 5);
  for (uint8_t& byte : data) byte = static_cast<uint8_t>(random.bits());
  report.compare("crc32c", [&](const KernelTable&, Result& result) {
    const uint8_t digits[] = {'1', '2', '3', '4', '5', '6', '7', '8', '9'};
    result.expect(edge::crc32c(digits, 9) == 0xE3069283u, "not the check value of CRC-32C");
    std::vector<int64_t> lengths = {3071, 3072, 3 * 16384 - 1, 3 * 16384 + 8, data.size()};
    for (int64_t n = 0; n <= 70; ++n) lengths.push_back(n);
    std::vector<uint32_t> found;
    for (int64_t n : lengths) {
      const uint8_t* end = data.end() - n;
      found.push_back(edge::crc32c(end, n));
      result.expect(found.back() == ~edge::crc::update_table(~0u, end, n), "the instruction and the table differ");
    }
    result.add(found);
  });
}

bool expected_variants(const std::vector<std::string>& wanted) {
  std::string found, asked;
  for (const std::string& name : edge::isa_variants()) found += " " + name;
  for (const std::string& name : wanted) asked += " " + name;
  printf("variants:%s\n", found.c_str());
  printf("emulated:");
  for (const std::string& name : edge::emulated_isas()) printf(" %s", name.c_str());
  printf("\n");
  if (wanted.empty() || found == asked) return true;
  printf("FAILED: expected%s\n", asked.c_str());
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  const bool variants_right = expected_variants({arguments + 1, arguments + count});
  Report report;
  test_vec(report);
  test_linear(report);
  test_codes(report);
  test_half_linear(report);
  test_blocks(report);
  test_quantize(report);
  test_halves(report);
  test_attention(report);
  test_append(report);
  test_norm(report);
  test_rope(report);
  test_turn(report);
  test_gates(report);
  test_floats(report);
  test_sampling(report);
  test_roofs(report);
  test_team(report);
  test_crc32c(report);
  printf("%d cases, %d failures, digest %08x\n", report.cases(), report.failures(), report.digest());
  return variants_right && report.failures() == 0 ? 0 : 1;
}

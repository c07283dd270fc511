// sampling_draw, sampling_candidates: what top-k, top-p and min-p leave of a vocabulary, and the token that a draw picks.
// sampling_log_sum, sampling_likeliest: what log-probabilities are made of. sampling_mask: the tokens that a grammar allows.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "candidates.h"

namespace edge {
namespace {

Array<const float, 1> read_logits(nb::handle logits_arg) {
  const auto logits = read<float, 1>(logits_arg, "logits");
  if (logits.shape[0] < 1 || logits.shape[0] >= int64_t{1} << 31)
    throw nb::value_error(("`logits` must have 1 to 2^31-1 values; got `" + std::to_string(logits.shape[0]) + "`").c_str());
  return logits;
}

void expect_finite(float best) {
  if (!std::isfinite(best)) throw nb::value_error(("`best` must be finite; got `" + std::to_string(best) + "`").c_str());
}

void expect_drawable(float best, double temperature) {
  expect_finite(best);
  if (!(temperature > 0 && temperature <= 1e30))  // gaps of logits times it stay within float32
    throw nb::value_error(("`temperature` must be above 0 and at most 1e30; got `" + std::to_string(temperature) + "`").c_str());
}

float sampling_best(nb::handle logits_arg) {
  const auto logits = read_logits(logits_arg);
  ReleasedGil released;
  const SamplingKernels& sampling = *kernels().sampling;
  float greatest = -std::numeric_limits<float>::infinity();
  for (int64_t first = 0; first < logits.shape[0]; first += kSamplingBlock) {
    const float* block = logits.data + first;
    const int64_t count = std::min(kSamplingBlock, logits.shape[0] - first);
    greatest = std::max(greatest, sampling.range(block, count).high);
    if (sampling.sane(block, count)) continue;
    if (std::any_of(block, block + count, [](float x) { return std::isnan(x); })) return NAN;  // `range` leaves it out
    greatest = std::numeric_limits<float>::infinity();
  }
  return greatest;
}

int64_t sampling_draw(nb::handle logits_arg, float best, double temperature, int64_t top_k, double top_p, double min_p,
                      double chance, ThreadPool* pool) {
  const auto logits = read_logits(logits_arg);
  expect_drawable(best, temperature);
  if (!(chance >= 0 && chance < 1))
    throw nb::value_error(("`chance` must be at least 0 and below 1; got `" + std::to_string(chance) + "`").c_str());
  ReleasedGil released;
  return Candidates(logits.data, logits.shape[0], best, {temperature, top_k, top_p, min_p}, pool).draw(chance);
}

nb::tuple sampling_candidates(nb::handle logits_arg, float best, double temperature, int64_t top_k, double top_p,
                              double min_p, ThreadPool* pool) {
  const auto logits = read_logits(logits_arg);
  expect_drawable(best, temperature);
  std::vector<int64_t> tokens, masses;
  {
    ReleasedGil released;
    Candidates candidates(logits.data, logits.shape[0], best, {temperature, top_k, top_p, min_p}, pool);
    candidates.each([&](int64_t token, int64_t mass) {
      tokens.push_back(token);
      masses.push_back(mass);
    });
  }
  const auto array_of = [](const std::vector<int64_t>& values) {
    nb::object array = new_array<int64_t, 1>({static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), data_of<int64_t, 1>(array));
    return array;
  };
  return nb::make_tuple(array_of(tokens), array_of(masses));
}

// As `floats.log64` of Python: x = 2^n m with m near 1, the series of 2 artanh((m - 1) / (m + 1)). x is above 0 and finite.
double log_of(double x) {
  int n = 0;
  double m = std::frexp(x, &n);
  if (m < 0x1.6a09e667f3bcdp-1) {  // sqrt(1/2)
    m *= 2.0;
    --n;
  }
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double y = 0.0;
  for (int term = 12; term > 0; --term) y = (y + 1.0 / (2 * term + 1)) * z;
  return n * 0x1.62e42feep-1 + (n * 0x1.a39ef35793c76p-33 + (2.0 * s * y + 2.0 * s));
}

double sampling_log_sum(nb::handle logits_arg, float best, ThreadPool* pool) {
  const auto logits = read_logits(logits_arg);
  expect_finite(best);
  ReleasedGil released;
  const int64_t vocab = logits.shape[0];
  const auto exp_sum = kernels().sampling->exp_sum;
  std::vector<double> sums((vocab + kSamplingBlock - 1) / kSamplingBlock);
  Workers(pool, vocab).each(static_cast<int64_t>(sums.size()), [&](int64_t index, int) {
    const int64_t first = index * kSamplingBlock;
    sums[index] = exp_sum(logits.data + first, best, std::min(kSamplingBlock, vocab - first));
  });
  double sum = 0.0;
  for (const double each : sums) sum += each;
  return log_of(sum);
}

// The best tokens so far, best first, equal ones in order of their ids; they come in that order.
class Likeliest {
 public:
  explicit Likeliest(int64_t most) : most_(most) {}
  void add(float logit, int64_t token) {
    if (static_cast<int64_t>(found_.size()) == most_) {
      if (!(logit > found_.back().logit)) return;
      found_.pop_back();
    }
    const auto above = [](float value, const Found& one) { return value > one.logit; };
    found_.insert(std::upper_bound(found_.begin(), found_.end(), logit, above), {logit, token});
  }
  nb::object tokens() const {
    nb::object array = new_array<int64_t, 1>({static_cast<int64_t>(found_.size())});
    std::transform(found_.begin(), found_.end(), data_of<int64_t, 1>(array), [](const Found& one) { return one.token; });
    return array;
  }

 private:
  struct Found {
    float logit;
    int64_t token;
  };
  int64_t most_;
  std::vector<Found> found_;
};

// Looks only into blocks whose best token is among the `count` best of the blocks.
void add_likeliest(const float* logits, int64_t vocab, int64_t count, Likeliest& found) {
  std::vector<float> greatest;
  for (int64_t first = 0; first < vocab; first += kSamplingBlock)
    greatest.push_back(kernels().sampling->range(logits + first, std::min(kSamplingBlock, vocab - first)).high);
  float bound = -std::numeric_limits<float>::infinity();
  if (count < static_cast<int64_t>(greatest.size())) {
    std::vector<float> best = greatest;
    std::nth_element(best.begin(), best.begin() + count - 1, best.end(), std::greater<float>());
    bound = best[count - 1];
  }
  for (int64_t first = 0; first < vocab; first += kSamplingBlock) {
    if (greatest[first / kSamplingBlock] < bound) continue;
    for (int64_t i = first; i < std::min(vocab, first + kSamplingBlock); ++i)
      if (logits[i] >= bound) found.add(logits[i], i);
  }
}

nb::object sampling_likeliest(nb::handle logits_arg, int64_t count) {
  const auto logits = read_logits(logits_arg);
  if (count < 0) throw nb::value_error(("`count` must not be negative; got `" + std::to_string(count) + "`").c_str());
  Likeliest found(std::min(count, logits.shape[0]));
  if (count > 0) {
    ReleasedGil released;
    add_likeliest(logits.data, logits.shape[0], count, found);
  }
  return found.tokens();
}

int64_t sampling_mask(nb::handle logits_arg, nb::handle bits_arg, nb::handle out_arg) {
  const auto logits = read_logits(logits_arg);
  const auto bits = read<uint8_t, 1>(bits_arg, "bits");
  const auto out = write<float, 1>(out_arg, "out");
  const int64_t vocab = logits.shape[0];
  if (bits.shape[0] < (vocab + 7) / 8)
    throw nb::value_error(("`bits` must have a bit for each of `" + std::to_string(vocab) + "` tokens; got `" +
                           std::to_string(8 * bits.shape[0]) + "`")
                              .c_str());
  expect_shape(out, "out", {vocab});
  if (out.data < logits.data + vocab && logits.data < out.data + vocab)
    throw nb::value_error("`out` must be other memory than `logits`");
  return kernels().sampling->mask(logits.data, bits.data, vocab, out.data);
}

}  // namespace

void bind_sampling(nb::module_& module) {
  const auto any = nb::arg();
  const auto pool = nb::arg().none();
  module.def("sampling_best", &sampling_best);
  module.def("sampling_draw", &sampling_draw, any, any, any, any, any, any, any, pool);
  module.def("sampling_candidates", &sampling_candidates, any, any, any, any, any, any, pool);
  module.def("sampling_log_sum", &sampling_log_sum, any, any, pool);
  module.def("sampling_likeliest", &sampling_likeliest);
  module.def("sampling_mask", &sampling_mask);
}

}  // namespace edge

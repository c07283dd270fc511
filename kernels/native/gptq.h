// GPTQ and coordinate descent on strips of rows, and the factor of the energy. An output is one chain of fma over its terms in
// their order (kernels/reference/gptq.py), whatever the block it falls in. Lanes are rows of the weight, or columns of the factor.
#pragma once

#include <sizes.h>

#include "pointwise.h"
#include "table_gptq.h"
#include "vec.h"
#include "w4_search.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int kFitVectors = static_cast<int>(kFitWidth) / kLanes;

// factors[m * factor_step + j * factor_next] * vectors[m * vector_step ..] for m in 0..count-1 and sums j.
struct FitTerms {
  const float* vectors;
  int64_t vector_step;
  const float* factors;
  int64_t factor_step, factor_next;
  int64_t count;
};

template <int J, int V>
EDGE_INLINE void add_terms(const FitTerms& t, float* sums) {
  f32x16 sum[J][V];
  unrolled<J>([&](auto j) EDGE_INLINE_LAMBDA {
    unrolled<V>([&](auto v) EDGE_INLINE_LAMBDA { sum[j][v] = load(sums + j * kFitWidth + v * kLanes); });
  });
  const float* vectors = t.vectors;
  const float* factors = t.factors;
  for (int64_t m = 0; m < t.count; ++m, vectors += t.vector_step, factors += t.factor_step) {
    f32x16 vector[V];
    unrolled<V>([&](auto v) EDGE_INLINE_LAMBDA { vector[v] = load(vectors + v * kLanes); });
    unrolled<J>([&](auto j) EDGE_INLINE_LAMBDA {
      const f32x16 factor = broadcast(factors[j * t.factor_next]);
      unrolled<V>([&](auto v) EDGE_INLINE_LAMBDA { sum[j][v] = fma(factor, vector[v], sum[j][v]); });
    });
  }
  unrolled<J>([&](auto j) EDGE_INLINE_LAMBDA {
    unrolled<V>([&](auto v) EDGE_INLINE_LAMBDA { store(sums + j * kFitWidth + v * kLanes, sum[j][v]); });
  });
}

// The terms of one row of sums.
static void add_to_row(const FitTerms& t, float* sums) { add_terms<1, kFitVectors>(t, sums); }

// The terms of `rows` rows of sums.
static void add_to_rows(FitTerms t, int64_t rows, float* sums) {
  int64_t j = 0;
  for (; j + 4 <= rows; j += 4, t.factors += 4 * t.factor_next)
    for (int v = 0; v < kFitVectors; v += kSumVectors) {
      FitTerms some = t;
      some.vectors += v * kLanes;
      add_terms<4, kSumVectors>(some, sums + j * kFitWidth + v * kLanes);
    }
  for (; j < rows; ++j, t.factors += t.factor_next) add_to_row(t, sums + j * kFitWidth);
}

static void gather_panels(const GatherPanels& a, int64_t begin, int64_t end) {
  const int64_t columns = a.to.columns;
  for (int64_t panel = 0; panel < a.to.count(); ++panel) {
    const int64_t first = panel * kFitWidth, width = min_i64(kFitWidth, columns - first);
    for (int64_t i = begin; i < end; ++i) {
      const float* row = a.matrix + a.order[i] * columns;
      float* to = a.to.at(panel, i);
      for (int64_t j = 0; j < width; ++j) to[j] = row[a.order[first + j]];
      for (int64_t j = width; j < kFitWidth; ++j) to[j] = 0.0f;
    }
  }
}

// Rows of panel `panel` that panel `block` has on its diagonal, from the last up: what the rows below them explain is taken off.
static bool factor_rows(const FitPanels& a, int64_t block, int64_t panel) {
  const int64_t first = block * kFitWidth, width = min_i64(kFitWidth, a.columns - first);
  float sums[kFitWidth * kFitWidth] = {};
  for (int64_t m = a.columns; m > first + width;) {
    const int64_t count = min_i64(kFitWidth, m - first - width);
    add_to_rows({a.at(panel, m - 1), -kFitWidth, a.at(block, m - 1), -kFitWidth, 1, count}, width, sums);
    m -= count;
  }
  for (int64_t j = width - 1; j >= 0; --j) {
    float* sum = sums + j * kFitWidth;
    float* row = a.at(panel, first + j);
    const int64_t last = first + width - 1;
    add_to_row({a.at(panel, last), -kFitWidth, a.at(block, last) + j, -kFitWidth, 0, width - 1 - j}, sum);
    float* pivot = a.at(block, first + j) + j;
    if (panel == block) {
      const float square = *pivot - sum[j];
      if (!(square > 0.0f && square < __builtin_inff())) return false;
      *pivot = __builtin_sqrtf(square);
    }
    const float root = *pivot;
    for (int v = 0; v < kFitVectors; ++v)
      store(row + v * kLanes, div(sub(load(row + v * kLanes), load(sum + v * kLanes)), broadcast(root)));
    if (panel != block) continue;
    *pivot = root;
    for (int64_t i = j + 1; i < kFitWidth; ++i) row[i] = 0.0f;
  }
  return true;
}

static bool factor_diagonal(const FitPanels& a, int64_t block) { return factor_rows(a, block, block); }

static void factor_panels(const FitPanels& a, int64_t block, int64_t begin, int64_t end) {
  for (int64_t panel = begin; panel < end; ++panel) factor_rows(a, block, panel);
}

// Some rows of a weight; columns are counted in `order`.
struct FitStrip {
  const FitWeight& a;
  int64_t first, rows;

  FitStrip(const FitWeight& weight, int64_t strip)
      : a(weight), first(strip * kFitWidth), rows(min_i64(kFitWidth, weight.rows - first)) {}

  // to[i, row] = matrix[row, order[begin + i]], zeros beyond the rows.
  void gather(const float* matrix, int64_t begin, int64_t count, float* to) const {
    for (int64_t r = 0; r < rows; ++r) {
      const float* row = matrix + (first + r) * a.panels.columns;
      for (int64_t i = 0; i < count; ++i) to[i * kFitWidth + r] = row[a.order[begin + i]];
    }
    for (int64_t i = 0; i < count && rows < kFitWidth; ++i)
      memset(to + i * kFitWidth + rows, 0, static_cast<size_t>(kFitWidth - rows) * sizeof(float));
  }
  void scatter(const float* from, int64_t begin, int64_t count) const {
    for (int64_t r = 0; r < rows; ++r) {
      float* row = a.found + (first + r) * a.panels.columns;
      for (int64_t i = 0; i < count; ++i) row[a.order[begin + i]] = from[i * kFitWidth + r];
    }
  }
  // What the 16 values of column `at` from row 16 `vector` on become.
  EDGE_INLINE f32x16 rounded(f32x16 value, int64_t at, int vector) const {
    const int lanes = static_cast<int>(min_i64(kLanes, rows - vector * kLanes));
    if (at >= a.panels.columns - a.kept || lanes <= 0) return value;
    const int64_t group = a.inverse == nullptr ? 0 : a.order[at] / kFitGroup;
    const int64_t place = group * a.rows + first + vector * kLanes;
    const f32x16 step = load_some(a.step + place, lanes);
    if (a.inverse == nullptr)
      return mul(clamp(round_even_f32(div(value, step)), broadcast(-127.0f), broadcast(127.0f)), step);
    const f32x16 shift = load_some(a.shift + place, lanes);
    const f32x16 code = nearest_code(add(mul(value, load_some(a.inverse + place, lanes)), shift));
    return mul(sub(code, shift), step);
  }
};

static void fit_strip(const FitStrip& strip, float* errors) {
  const FitPanels& factor = strip.a.panels;
  float wanted[kFitWidth * kFitWidth], found[kFitWidth * kFitWidth];
  for (int64_t block = 0; block < factor.count(); ++block) {
    const int64_t first = block * kFitWidth, width = min_i64(kFitWidth, factor.columns - first);
    strip.gather(strip.a.weight, first, width, wanted);
    float sums[kFitWidth * kFitWidth] = {};
    for (int64_t past = 0; past < block; ++past)
      add_to_rows({errors + past * kFitWidth * kFitWidth, kFitWidth, factor.at(past, first), 1, kFitWidth, kFitWidth}, width, sums);
    for (int64_t j = 0; j < width; ++j) {
      const float* row = factor.at(block, first + j);
      float* error = errors + (first + j) * kFitWidth;
      add_to_row({errors + first * kFitWidth, kFitWidth, row, 1, 0, j}, sums + j * kFitWidth);
      for (int v = 0; v < kFitVectors; ++v) {
        const int64_t place = j * kFitWidth + v * kLanes;
        const f32x16 asked = load(wanted + place);
        const f32x16 best = add(asked, div(load(sums + place), broadcast(row[j])));
        const f32x16 made = strip.rounded(best, first + j, v);
        store(found + place, made);
        store(error + v * kLanes, sub(asked, made));
      }
    }
    strip.scatter(found, first, width);
  }
}

static void descend_strip(const FitStrip& strip, float* errors, float* now) {
  const FitPanels& energy = strip.a.panels;
  const int64_t columns = energy.columns;
  strip.gather(strip.a.weight, 0, columns, errors);
  strip.gather(strip.a.found, 0, columns, now);
  for (int64_t i = 0; i < columns * kFitWidth; ++i) errors[i] -= now[i];
  for (int64_t pass = 0; pass < strip.a.passes; ++pass)
    for (int64_t block = 0; block < energy.count(); ++block) {
      const int64_t first = block * kFitWidth, width = min_i64(kFitWidth, columns - first);
      float wanted[kFitWidth * kFitWidth], sums[kFitWidth * kFitWidth] = {}, change[kFitWidth];
      strip.gather(strip.a.weight, first, width, wanted);
      for (int64_t other = 0; other < energy.count(); ++other)
        add_to_rows({errors + other * kFitWidth * kFitWidth, kFitWidth, energy.at(other, first), 1, kFitWidth,
                     min_i64(kFitWidth, columns - other * kFitWidth)}, width, sums);
      for (int64_t j = 0; j < width; ++j) {
        const float* row = energy.at(block, first + j);
        for (int v = 0; v < kFitVectors; ++v) {
          const int64_t place = (first + j) * kFitWidth + v * kLanes;
          const f32x16 before = load(now + place);
          const f32x16 pull = load(sums + j * kFitWidth + v * kLanes);
          const f32x16 made = strip.rounded(add(before, div(pull, broadcast(row[j]))), first + j, v);
          store(change + v * kLanes, sub(before, made));
          store(now + place, made);
          store(errors + place, sub(load(wanted + j * kFitWidth + v * kLanes), made));
        }
        add_to_rows({change, 0, row + j + 1, 0, 1, 1}, width - j - 1, sums + (j + 1) * kFitWidth);
      }
    }
  strip.scatter(now, 0, columns);
}

static void fit_weight(const FitWeight& a, float* scratch, int64_t begin, int64_t end) {
  for (int64_t strip = begin; strip < end; ++strip) fit_strip(FitStrip(a, strip), scratch);
}

static void descend_weight(const FitWeight& a, float* scratch, int64_t begin, int64_t end) {
  for (int64_t strip = begin; strip < end; ++strip) descend_strip(FitStrip(a, strip), scratch, scratch + a.strip_floats());
}

constexpr FitKernels fit_kernels = {gather_panels, factor_diagonal, factor_panels, fit_weight, descend_weight};

}  // namespace EDGE_VARIANT
}  // namespace edge

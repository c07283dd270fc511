// The search for codes: per row a scale, per group a multiplier and a shift (kernels/reference/w4.py, `search`, defines it).
#pragma once

#include "table_w4.h"
#include "vec.h"
#include "w4.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr float kSearchFactors[] = {0.82f, 0.88f, 0.94f, 1.0f, 1.06f};
constexpr float kSmallestScale = 1e-30f;
constexpr int kTopCode = 19;  // the last of the codebook

// The nearest value of the codebook.
EDGE_INLINE f32x16 nearest_code(f32x16 v) {
  const f32x16 middle = round_even_f32(clamp(v, broadcast(4.0f), broadcast(15.0f)));
  const f32x16 low = round_even_f32(mul(clamp(sub(v, broadcast(4.0f)), broadcast(-4.0f), zero()), broadcast(0.5f)));
  const f32x16 high = round_even_f32(mul(clamp(sub(v, broadcast(15.0f)), zero(), broadcast(4.0f)), broadcast(0.5f)));
  return add(add(middle, mul(low, broadcast(2.0f))), mul(high, broadcast(2.0f)));
}

// Before a cast to int: what is no number becomes the lowest.
EDGE_INLINE float limited(float v, float lowest, float highest) { return v > lowest ? (v < highest ? v : highest) : lowest; }

// 32 columns of a row, filled up with zeros.
struct SearchGroup {
  f32x16 weight[2], importance[2];
  float low, high;  // of weights and 0
  float step;       // that reaches over both, with the shift that fits best

  SearchGroup(const float* w, const float* h, int64_t columns) {
    low = high = 0.0f;
    for (int half = 0; half < 2; ++half) {
      const int64_t left = columns - half * kLanes;
      const int lanes = static_cast<int>(left < 0 ? 0 : min_i64(left, kLanes));
      weight[half] = lanes == kLanes ? load(w + half * kLanes) : load_partial(w + half * kLanes, lanes);
      importance[half] = lanes == kLanes ? load(h + half * kLanes) : load_partial(h + half * kLanes, lanes);
      const float least = -reduce_max(sub(zero(), weight[half])), most = reduce_max(weight[half]);
      low = least < low ? least : low;
      high = most > high ? most : high;
    }
    step = (high - low) / static_cast<float>(kTopCode);
    if (step <= 0.0f) return;
    const float at = shift();
    const float above = high / (static_cast<float>(kTopCode) - at), below = -low / at;
    step = above > below ? above : below;
  }
  float shift() const {
    return limited(-low / ((high - low) / static_cast<float>(kTopCode)), static_cast<float>(kMinShift), 15.0f);
  }
  // The scale under which the largest multiplier that its shift allows makes `step`.
  float least_scale() const {
    const float at = shift(), most = at > static_cast<float>(kTopCode) - at ? at : static_cast<float>(kTopCode) - at;
    return step / static_cast<float>(static_cast<int>(127.0f / most));
  }
};

struct GroupChoice {
  int multiplier, shift;
  float error;
};

EDGE_INLINE f32x16 codes_of(f32x16 weight, float inverse, int shift) {
  return nearest_code(add(mul(weight, broadcast(inverse)), broadcast(static_cast<float>(shift))));
}

static float code_error(const SearchGroup& group, float scale, int multiplier, int shift) {
  const float step = scale * static_cast<float>(multiplier), inverse = 1.0f / step;
  f32x16 error[2];
  for (int half = 0; half < 2; ++half) {
    const f32x16 code = codes_of(group.weight[half], inverse, shift);
    const f32x16 off = sub(mul(sub(code, broadcast(static_cast<float>(shift))), broadcast(step)), group.weight[half]);
    error[half] = mul(mul(off, off), group.importance[half]);
  }
  return reduce_add(add(error[0], error[1]));
}

static GroupChoice best_steps(const SearchGroup& group, float scale) {
  if (group.step <= 0.0f) return {0, 0, 0.0f};
  const float ratio = group.step / scale, middle = (group.low + group.high) * 0.5f;
  const int first = static_cast<int>(limited(ratio * 0.75f, 1.0f, static_cast<float>(kMaxMultiplier)));
  const int last = static_cast<int>(limited(ratio, 0.0f, static_cast<float>(kMaxMultiplier - 1))) + 1;
  GroupChoice best = {0, 0, __builtin_inff()};
  for (int wanted = first; wanted <= last; ++wanted) {
    const float at = 9.5f - middle / (scale * static_cast<float>(wanted));
    const int lower = static_cast<int>(limited(at, static_cast<float>(kMinShift), 15.0f));
    for (int shift = lower; shift <= lower + 1 && shift <= 15; ++shift) {
      const int most = 127 / (shift > kTopCode - shift ? shift : kTopCode - shift);
      const int multiplier = wanted < most ? wanted : most;
      const float error = code_error(group, scale, multiplier, shift);
      if (error < best.error) best = {multiplier, shift, error};
    }
  }
  return best;
}

// `weight` holds 32 columns, `columns` of which there are.
static void write_codes(const f32x16 (&weight)[2], float scale, int multiplier, int shift, int64_t columns, uint8_t* codes) {
  float value[kCodeGroup];
  const float inverse = multiplier == 0 ? 0.0f : 1.0f / (scale * static_cast<float>(multiplier));
  for (int half = 0; half < 2; ++half) store(value + half * kLanes, codes_of(weight[half], inverse, shift));
  for (int64_t c = 0; c < columns; ++c) {
    const int code = static_cast<int>(value[c]);
    codes[c] = static_cast<uint8_t>(multiplier == 0 ? 0 : code < 4 ? code / 2 : code <= 15 ? code - 2 : 14 + (code - 17) / 2);
  }
}

static void encode_codes(const CodeEncoding& a, int64_t begin, int64_t end) {
  const int64_t groups = ceil_div(a.columns, kCodeGroup);
  for (int64_t row = begin; row < end; ++row)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = row * a.columns + g * kCodeGroup, count = min_i64(kCodeGroup, a.columns - g * kCodeGroup);
      f32x16 weight[2];
      for (int half = 0; half < 2; ++half) {
        const int64_t lanes = max_i64(0, min_i64(kLanes, count - half * kLanes));
        weight[half] = lanes == kLanes ? load(a.weight + at + half * kLanes)
                                       : load_partial(a.weight + at + half * kLanes, static_cast<int>(lanes));
      }
      write_codes(weight, a.scale[row], a.multiplier[row * groups + g], a.shift[row * groups + g], count, a.codes + at);
    }
}

static void search_row(const CodeSearch& a, int64_t row) {
  const int64_t groups = (a.columns + kCodeGroup - 1) / kCodeGroup;
  const float* weight = a.weight + row * a.columns;
  const auto group_at = [&](int64_t g) { return SearchGroup(weight + g * kCodeGroup, a.importance + g * kCodeGroup,
                                                            min_i64(kCodeGroup, a.columns - g * kCodeGroup)); };
  float base = 0.0f;
  for (int64_t g = 0; g < groups; ++g) {
    const SearchGroup group = group_at(g);
    const float least = group.step <= 0.0f ? 0.0f : group.least_scale();
    base = least > base ? least : base;
  }
  float best_scale = kSmallestScale, best_error = __builtin_inff();
  if (base >= kSmallestScale)
    for (const float factor : kSearchFactors) {
      const float scale = base * factor;
      float error = 0.0f;
      for (int64_t g = 0; g < groups; ++g) error = error + best_steps(group_at(g), scale).error;
      if (error < best_error) best_error = error, best_scale = scale;
    }
  a.scale[row] = best_scale;
  for (int64_t g = 0; g < groups; ++g) {
    const SearchGroup group = group_at(g);
    const GroupChoice steps = base < kSmallestScale ? GroupChoice{0, 0, 0.0f} : best_steps(group, best_scale);
    a.multiplier[row * groups + g] = static_cast<uint8_t>(steps.multiplier);
    a.shift[row * groups + g] = static_cast<uint8_t>(steps.shift);
    write_codes(group.weight, best_scale, steps.multiplier, steps.shift, min_i64(kCodeGroup, a.columns - g * kCodeGroup),
                a.codes + row * a.columns + g * kCodeGroup);
  }
}

static void search_codes(const CodeSearch& args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) search_row(args, row);
}

static void expand_codes(const Int8Weight& weight, int64_t begin, int64_t end, int8_t* scratch, int8_t* tiles) {
  for (int64_t panel = begin; panel < end; ++panel) {
    expand_panel(CodePanel(weight.panel(panel), weight.groups(), weight.blocks()), scratch);
    memcpy(tiles + (panel - begin) * weight.tile_bytes(), scratch, static_cast<size_t>(weight.tile_bytes()));
  }
}

constexpr CodeKernels code_kernels = {&expand_codes, &search_codes, &encode_codes};

}  // namespace EDGE_VARIANT
}  // namespace edge

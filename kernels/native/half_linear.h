// The linear with float16 weights: y = x . W, W [K, N] as a bundle has it, in float32.
//
// Every output is one chain of fused multiply-adds over the input channels in ascending order (see
// kernels/reference/half_linear.py), so blocks cut rows and output channels as they like, and cut the input channels only
// where the sums so far are kept in memory. That is why a row does not depend on other rows, on threads or on the ISA.
//
// Memory is read in the order in which it lies, as far as can be: a strip of output channels is a short run of every row of W,
// and what fetches ahead loses its way in many short runs. So few rows of x meet W as it lies, their sums in a core's cache.
// More rows meet a chunk of W that is made float32 once, in a core's L2, while the next chunk is fetched.
#pragma once

#include <sizes.h>

#include "pointwise.h"
#include "pool.h"
#include "table_half.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int kHalfRows = 6;      // of a full tile
constexpr int kGroupPanels = 4;   // panels of 16 channels that lie side by side in a chunk
constexpr int64_t kGroupLanes = kGroupPanels * kLanes;

// Panels of a tile of R rows: as many sums as the registers hold, and enough to hide the latency of a multiply-add.
template <int R>
constexpr int half_panels() {
  return R == 1 || kWholeGroups ? kGroupPanels : R <= 3 ? 2 : 1;
}

EDGE_INLINE f32x16 some_halves(const uint16_t* p, int lanes) { return lanes == kLanes ? from_f16(p) : from_f16_partial(p, lanes); }

// Output channels first..first+width, and with a gate those of the up half; either in whole panels, the last one filled up.
struct HalfStrip {
  int64_t first, width;
  int64_t halves;  // 2 with a gate
  int64_t up;      // from a gate's channel to its up channel
  int64_t half_panels() const { return ceil_div(width, kLanes); }
  int64_t half_lanes() const { return half_panels() * kLanes; }
  int64_t lanes() const { return halves * half_lanes(); }
  int64_t half_groups() const { return ceil_div(half_panels(), kGroupPanels); }
  int64_t groups() const { return halves * half_groups(); }
};

// Input channels begin..end of a strip as float32: panels in groups, [groups()][depth][4 panels][16].
struct HalfChunk {
  float* data;
  int64_t begin, end;
  int64_t group_stride;  // elements; an odd number of lines apart, so that groups do not share cache sets
  int64_t depth() const { return end - begin; }
};

// Sums of a tile so far, [R][stride] with P panels in each row, and R rows of x times a group's first P panels on top.
template <int R, int P>
void half_tile(const float* x, int64_t x_stride, const float* weight, int64_t depth, float* sums, int64_t stride) {
  f32x16 sum[R][P];
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { sum[r][p] = load(sums + r * stride + p * kLanes); });
  });
  for (int64_t k = 0; k < depth; ++k, weight += kGroupLanes) {
    f32x16 w[P];
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { w[p] = load(weight + p * kLanes); });
    unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
      const f32x16 value = broadcast(x[r * x_stride + k]);
      unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { sum[r][p] = fma(value, w[p], sum[r][p]); });
    });
  }
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { store(sums + r * stride + p * kLanes, sum[r][p]); });
  });
}

// R rows times the `panels` (up to 4) of a group.
template <int R, int P = half_panels<R>()>
void half_tiles(const float* x, int64_t x_stride, const float* weight, int64_t depth, int64_t panels, float* sums,
                int64_t stride) {
  int64_t p = 0;
  for (; p + P <= panels; p += P) half_tile<R, P>(x, x_stride, weight + p * kLanes, depth, sums + p * kLanes, stride);
  if constexpr (P > 1)
    if (p < panels) half_tiles<R, P / 2>(x, x_stride, weight + p * kLanes, depth, panels - p, sums + p * kLanes, stride);
}

template <int R>
void half_tiles_of(int64_t rows, const float* x, int64_t x_stride, const float* weight, int64_t depth, int64_t panels,
                   float* sums, int64_t stride) {
  if (rows == R) return half_tiles<R>(x, x_stride, weight, depth, panels, sums, stride);
  if constexpr (R > 1) half_tiles_of<R - 1>(rows, x, x_stride, weight, depth, panels, sums, stride);
}

// The rows of the next tile of those that are `left`: the last two tiles share what is left evenly.
EDGE_INLINE int64_t next_tile_rows(int64_t left) {
  return left <= kHalfRows ? left : left >= 2 * kHalfRows ? kHalfRows : ceil_div(left, 2);
}

// The runs that a strip has in the rows begin..end of W, fetched into the cache a little at a time.
class RunPrefetch {
 public:
  RunPrefetch(const HalfLinearArgs& a, const HalfStrip& strip, int64_t begin, int64_t end)
      : at_(a.weight + begin * a.channels + strip.first), stride_(a.channels), up_(strip.up), halves_(strip.halves),
        run_(strip.width), rows_(end - begin) {}

  int64_t lines() const { return rows_ * halves_ * ceil_div(run_, kLine); }

  void step(int64_t lines) {
    for (; lines > 0 && rows_ > 0; lines -= halves_) {
      for (int64_t half = 0; half < halves_; ++half) __builtin_prefetch(at_ + half * up_ + offset_, 0, 2);
      if ((offset_ += kLine) < run_) continue;
      offset_ = 0;
      at_ += stride_;
      --rows_;
    }
  }

 private:
  static constexpr int64_t kLine = 32;  // float16 of a cache line
  const uint16_t* at_;
  int64_t stride_, up_, halves_, run_, rows_;
  int64_t offset_ = 0;
};

static void widen(const HalfLinearArgs& a, const HalfStrip& strip, const HalfChunk& chunk) {
  for (int64_t k = 0; k < chunk.depth(); ++k)
    for (int64_t half = 0; half < strip.halves; ++half) {
      const uint16_t* run = a.weight + (chunk.begin + k) * a.channels + strip.first + half * strip.up;
      float* to = chunk.data + half * strip.half_groups() * chunk.group_stride + k * kGroupLanes;
      int64_t n = 0;
      for (; n + kGroupLanes <= strip.width; n += kGroupLanes, to += chunk.group_stride)
        unrolled<kGroupPanels>([&](auto p) EDGE_INLINE_LAMBDA { store(to + p * kLanes, from_f16(run + n + p * kLanes)); });
      each_vector(strip.width - n, [&](int64_t i, int lanes) EDGE_INLINE_LAMBDA {
        store(to + i, some_halves(run + n + i, lanes));
      });
    }
}

// The rows of x [rows, x_stride] times a chunk, onto sums [rows, strip.lanes()]; `next` is fetched meanwhile.
static void multiply_chunk(const float* x, int64_t x_stride, int64_t rows, const HalfStrip& strip, const HalfChunk& chunk,
                           float* sums, RunPrefetch next) {
  const int64_t share = ceil_div(next.lines(), strip.groups() * ceil_div(rows, kHalfRows));
  for (int64_t group = 0; group < strip.groups(); ++group) {
    const int64_t half = group / strip.half_groups(), first = group % strip.half_groups() * kGroupPanels;
    const int64_t panels = min_i64(kGroupPanels, strip.half_panels() - first);
    const float* weight = chunk.data + group * chunk.group_stride;
    float* to = sums + half * strip.half_lanes() + first * kLanes;
    for (int64_t m = 0; m < rows;) {
      const int64_t tile_rows = next_tile_rows(rows - m);
      half_tiles_of<kHalfRows>(tile_rows, x + m * x_stride + chunk.begin, x_stride, weight, chunk.depth(), panels,
                               to + m * strip.lanes(), strip.lanes());
      next.step(share);
      m += tile_rows;
    }
  }
}

// A strip's gates meet their up channels in place of the gates; without bias.
static void gate_strip(const HalfLinearArgs& a, int64_t rows, const HalfStrip& strip, float* sums) {
  const int64_t up = strip.half_lanes();
  if (a.bias != nullptr)
    for (int64_t m = 0; m < rows; ++m)
      for (int64_t half = 0; half < 2; ++half)
        each_vector(strip.width, [&](int64_t i, int lanes) EDGE_INLINE_LAMBDA {
          float* const y = sums + m * strip.lanes() + half * up + i;
          store(y, add(load(y), load_some(a.bias + strip.first + half * strip.up + i, lanes)));
        });
  gate_block(a.gate, sums, sums + up, strip.lanes(), rows, up, sums, strip.lanes());
}

// What follows the products of the rows begin..end: bias, and the addition or gate; sums [end - begin, strip.lanes()].
static void finish_strip(const HalfLinearArgs& a, int64_t begin, int64_t end, const HalfStrip& strip, float* sums) {
  const bool swiglu_last = a.gate.kind == kSilu, met = a.gate.kind != kNoGate && !swiglu_last;
  const float* bias = met ? nullptr : a.bias;
  if (met) gate_strip(a, end - begin, strip, sums);
  const int64_t up = strip.half_lanes(), width = a.width();
  for (int64_t m = begin; m < end; ++m, sums += strip.lanes())
    each_vector(strip.width, [&](int64_t i, int lanes) EDGE_INLINE_LAMBDA {
      const int64_t n = strip.first + i, at = m * width + n;
      f32x16 y = load(sums + i);
      if (bias != nullptr) y = add(y, load_some(bias + n, lanes));
      if (swiglu_last) {
        f32x16 other = load(sums + up + i);
        if (bias != nullptr) other = add(other, load_some(bias + strip.up + n, lanes));
        y = swiglu(y, other);
      }
      if (a.add != nullptr) y = add(y, load_some(a.add + at, lanes));
      store_some(a.out + at, y, lanes);
    });
}

// `count` floats of a worker's memory, the sums set to 0, and what lies behind them.
static float* half_scratch(ThreadPool& pool, int worker, int64_t sums, int64_t more) {
  auto* memory = static_cast<float*>(pool.scratch(worker, static_cast<size_t>(sums + more) * sizeof(float)));
  memset(memory, 0, static_cast<size_t>(sums) * sizeof(float));
  return memory;
}

// The rows begin..end of x [M, x_stride] times a strip.
static void multiply_strip(const HalfLinearArgs& a, const float* x, int64_t x_stride, int64_t begin, int64_t end,
                           const HalfStrip& strip, int worker, ThreadPool& pool) {
  constexpr int64_t kChunkFloats = 32 << 10, kLeastDepth = 16;  // 128 KiB, beside the sums
  const int64_t depth = min_i64(a.columns, max_i64(kLeastDepth, kChunkFloats / strip.lanes()));
  const int64_t group_stride = (depth * kGroupPanels | 1) * kLanes;
  const int64_t sum_count = (end - begin) * strip.lanes();
  float* sums = half_scratch(pool, worker, sum_count, strip.groups() * group_stride);
  for (int64_t k = 0; k < a.columns; k += depth) {
    const int64_t k_end = min_i64(k + depth, a.columns);
    const HalfChunk chunk = {sums + sum_count, k, k_end, group_stride};
    widen(a, strip, chunk);
    const RunPrefetch next(a, strip, k_end, min_i64(k_end + depth, a.columns));
    multiply_chunk(x + begin * x_stride, x_stride, end - begin, strip, chunk, sums, next);
  }
  finish_strip(a, begin, end, strip, sums);
}

// Onto sums [R][sum_stride] of P panels: R rows of x times D rows of W, `stride` apart; the last panel has so many `lanes`.
template <int R, int P, int D>
EDGE_INLINE void stream_tile(const float* x, int64_t x_stride, const uint16_t* weight, int64_t stride, int lanes, float* sums,
                             int64_t sum_stride) {
  f32x16 sum[R][P];
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { sum[r][p] = load(sums + r * sum_stride + p * kLanes); });
  });
  unrolled<D>([&](auto k) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA {
      const f32x16 w = some_halves(weight + k * stride + p * kLanes, lanes);
      unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA { sum[r][p] = fma(broadcast(x[r * x_stride + k]), w, sum[r][p]); });
    });
  });
  unrolled<R>([&](auto r) EDGE_INLINE_LAMBDA {
    unrolled<P>([&](auto p) EDGE_INLINE_LAMBDA { store(sums + r * sum_stride + p * kLanes, sum[r][p]); });
  });
}

// The same for a strip's runs in the rows of W from k on.
template <int R, int P, int D>
static void stream_runs(const HalfLinearArgs& a, const float* x, int64_t x_stride, const HalfStrip& strip, int64_t k,
                        float* sums) {
  for (int64_t half = 0; half < strip.halves; ++half) {
    const uint16_t* run = a.weight + k * a.channels + strip.first + half * strip.up;
    float* to = sums + half * strip.half_lanes();
    int64_t n = 0;
    for (; n + P * kLanes <= strip.width; n += P * kLanes)
      stream_tile<R, P, D>(x + k, x_stride, run + n, a.channels, kLanes, to + n, strip.lanes());
    each_vector(strip.width - n, [&](int64_t i, int lanes) EDGE_INLINE_LAMBDA {
      stream_tile<R, 1, D>(x + k, x_stride, run + n + i, a.channels, lanes, to + n + i, strip.lanes());
    });
  }
}

// R rows of x times a strip, D rows of W at once.
template <int R, int P, int D>
static void stream_strip(const HalfLinearArgs& a, const float* x, int64_t x_stride, const HalfStrip& strip, int worker,
                         ThreadPool& pool) {
  float* sums = half_scratch(pool, worker, R * strip.lanes(), 0);
  int64_t k = 0;
  for (; k + D <= a.columns; k += D) stream_runs<R, P, D>(a, x, x_stride, strip, k, sums);
  for (; k < a.columns; ++k) stream_runs<R, P, 1>(a, x, x_stride, strip, k, sums);
  finish_strip(a, 0, R, strip, sums);
}

constexpr int64_t kStreamRows = 4;      // up to so many rows W passes by once, as it lies
constexpr int64_t kStreamWidth = 2048;  // a run of a page: what fetches ahead follows several rows of W at once
constexpr int kStreamDepth = 8;

// Few rows of x times a strip; row by row of W where the strip is all of it, so that memory is read from end to end.
static void stream_rows_of(const HalfLinearArgs& a, const float* x, int64_t x_stride, const HalfStrip& strip, int worker,
                           ThreadPool& pool) {
  constexpr int kPanels = half_panels<kHalfRows>() == 1 ? 1 : 2;
  if (a.rows == 1 && strip.width == a.width() && a.channels <= 2 * kStreamWidth)
    return stream_strip<1, kGroupPanels, 1>(a, x, x_stride, strip, worker, pool);
  if (a.rows == 1) return stream_strip<1, 2, kStreamDepth>(a, x, x_stride, strip, worker, pool);
  if (a.rows == 2) return stream_strip<2, 2, kStreamDepth>(a, x, x_stride, strip, worker, pool);
  if (a.rows == 3) return stream_strip<3, kPanels, kStreamDepth>(a, x, x_stride, strip, worker, pool);
  stream_strip<4, kPanels, kStreamDepth>(a, x, x_stride, strip, worker, pool);
}

// One row of x, normed where it is to be, into `to`. False: a value is not finite.
static bool prepare_half_row(const HalfLinearArgs& a, int64_t m, float* to) {
  const float* x = a.x + m * a.columns;
  const f32x16 r = a.gain == nullptr ? zero() : broadcast(inverse_rms(x, a.columns, a.eps));
  f32x16 not_finite = zero();  // sums values * 0: NaN as soon as one is infinite or NaN
  each_vector(a.columns, [&](int64_t i, int lanes) EDGE_INLINE_LAMBDA {
    f32x16 value = load_some(x + i, lanes);
    if (a.gain != nullptr) value = mul(mul(value, r), load_some(a.gain + i, lanes));
    not_finite = fma(value, zero(), not_finite);
    store_some(to + i, value, lanes);
  });
  return reduce_add(not_finite) == 0.0f;
}

// x as it is multiplied, [M, stride] in the pool's memory. Null: a value is not finite.
static const float* prepare_half_rows(const HalfLinearArgs& a, int64_t stride, ThreadPool& pool) {
  constexpr int64_t kGrainElements = 16384;  // a few microseconds
  auto* to = static_cast<float*>(pool.shared_scratch(1, static_cast<size_t>(a.rows * stride) * sizeof(float)));
  int refused = 0;
  pool.for_blocks(a.rows, max_i64(1, kGrainElements / max_i64(1, a.columns)), [&](int64_t begin, int64_t end, int) {
    for (int64_t m = begin; m < end; ++m)
      if (!prepare_half_row(a, m, to + m * stride)) __atomic_store_n(&refused, 1, __ATOMIC_RELAXED);
  });
  return refused ? nullptr : to;
}

// How a product is cut: strips of output channels times blocks of rows.
struct HalfCut {
  bool stream;
  int workers;
  int64_t width, strips, block_rows, blocks;
};

EDGE_INLINE HalfCut cut_half(const HalfLinearArgs& a, int threads) {
  constexpr int64_t kProductsPerWorker = 64 << 10;  // some microseconds: less is not worth waking a core
  constexpr int64_t kFewRows = 24, kMostRows = 132, kFewWidth = 1024, kManyWidth = 256, kWhole = 32;
  const int64_t halves = a.gate.kind != kNoGate ? 2 : 1, width = a.width();
  int64_t workers = min_i64(threads, 1 + a.rows * a.channels * a.columns / kProductsPerWorker);
  const bool stream = a.rows == 1 || (a.rows <= kStreamRows && width >= workers * kStreamWidth);
  // Shorter runs than those cost more than another core brings.
  if (stream) workers = max_i64(1, min_i64(workers, width / kStreamWidth));
  const int64_t most = stream ? 2 * kStreamWidth : (a.rows <= kFewRows ? kFewWidth : kManyWidth) / halves;
  const int64_t strips = workers * ceil_div(width, workers * most);
  const int64_t strip_width = ceil_div(ceil_div(width, strips), kWhole) * kWhole;
  const int64_t block_rows = ceil_div(ceil_div(a.rows, ceil_div(a.rows, kMostRows)), kHalfRows) * kHalfRows;
  return {stream, static_cast<int>(workers), strip_width, ceil_div(width, strip_width), block_rows, ceil_div(a.rows, block_rows)};
}

static bool half_linear(const HalfLinearArgs& a, ThreadPool& pool) {
  if (a.rows == 0) return true;
  const int64_t stride = (ceil_div(a.columns, kLanes) | 1) * kLanes;
  const float* x = prepare_half_rows(a, stride, pool);
  if (x == nullptr) return false;
  if (a.width() == 0) return true;
  const HalfCut cut = cut_half(a, pool.threads());
  pool.for_blocks(
      cut.strips * cut.blocks, 1,
      [&](int64_t item_begin, int64_t item_end, int worker) {
        for (int64_t item = item_begin; item < item_end; ++item) {
          const int64_t first = item % cut.strips * cut.width, begin = item / cut.strips * cut.block_rows;
          const HalfStrip strip = {first, min_i64(cut.width, a.width() - first), a.gate.kind != kNoGate ? 2 : 1, a.width()};
          if (cut.stream) stream_rows_of(a, x, stride, strip, worker, pool);
          else multiply_strip(a, x, stride, begin, min_i64(begin + cut.block_rows, a.rows), strip, worker, pool);
        }
      },
      cut.workers);
  return true;
}

static int64_t float_operations(int64_t repeats, ThreadPool& pool) {
  constexpr int kSums = kHalfRows * half_panels<kHalfRows>(), kSteps = 1024;
  pool.run(pool.threads(), [&](int) {
    f32x16 sum[kSums], value = broadcast(1.0f), weight = broadcast(1e-3f);
    unrolled<kSums>([&](auto i) EDGE_INLINE_LAMBDA { sum[i] = zero(); });
    for (int64_t step = 0; step < repeats * kSteps; ++step)
      unrolled<kSums>([&](auto i) EDGE_INLINE_LAMBDA { sum[i] = fma(value, weight, sum[i]); });
    float sink[kLanes];
    unrolled<kSums>([&](auto i) EDGE_INLINE_LAMBDA {
      store(sink, sum[i]);
      asm volatile("" ::"r"(sink) : "memory");
    });
  });
  return 2 * int64_t{kSums} * kLanes * kSteps * repeats * pool.threads();
}

constexpr HalfKernels half_kernels = {&half_linear, &float_operations};

}  // namespace EDGE_VARIANT
}  // namespace edge

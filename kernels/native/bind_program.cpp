// Program: kernel calls over fixed arrays, run one after the other without the interpreter, by one team of threads.
#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <vector>

#include "calls.h"
#include "reading.h"

namespace edge {
namespace {

// What differs from run to run.
struct ProgramRows {
  int64_t count;
  const int64_t* tokens;
  const int64_t* slots;
  AttentionRows attention;
  float* out;  // [count, of the linear that has no array of its own]
  const int32_t* adapters = nullptr;  // [count]: numbers from 1, or 0; null: no row has one
};

// Null, or why the call failed.
using Call = std::function<const char*(const ProgramRows&, ThreadPool&)>;

// A call, or what is read meanwhile.
struct Step {
  Call call;                                // none where a read is awaited or begun
  Reading* awaited = nullptr;               // must come whole, with these checksums
  std::vector<uint32_t> checksums = {};
  Reading* begun = nullptr;
};

using Clock = std::chrono::steady_clock;

// When a run that began now and has so many seconds should look up; a number that means forever is the end of time.
Clock::time_point end_of(double patience) {
  const auto now = Clock::now();
  const std::chrono::duration<double> longest = std::chrono::hours(24 * 365);
  return patience < longest.count() ? now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience))
                                    : Clock::time_point::max();
}

// Adds its lifetime to seconds[at]; no clock is read where there are none.
class Timed {
 public:
  Timed(double* seconds, size_t at) : spent_(seconds ? seconds + at : nullptr) {
    if (spent_) begun_ = Clock::now();
  }
  ~Timed() {
    if (spent_) *spent_ += std::chrono::duration<double>(Clock::now() - begun_).count();
  }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  double* spent_;
  Clock::time_point begun_;
};

class Program {
 public:
  void linear(nb::handle x, nb::handle linear_arg, nb::handle add, bool shadow, nb::handle gain, double eps, int gate,
              double limit, nb::handle out) {
    LinearCall call(x, nb::cast<const Int8Linear&>(linear_arg), add, shadow, gain, eps, gate, limit);
    add_linear(call, {x, linear_arg, add, gain}, out);
  }

  void half_linear(nb::handle x, nb::handle weight, nb::handle bias, nb::handle add, nb::handle gain, double eps, int gate,
                   double limit, nb::handle out) {
    HalfCall call(x, weight, bias, add, gain, eps, gate, limit);
    add_linear(call, {x, weight, bias, add, gain}, out);
  }

  void block_linear(nb::handle x, nb::handle linear_arg, nb::handle bias, nb::handle add, nb::handle gain, double eps, int gate,
                    double limit, nb::handle out) {
    BlockCall call(x, nb::cast<const BlockLinear&>(linear_arg), bias, add, gain, eps, gate, limit);
    add_linear(call, {x, linear_arg, bias, add, gain}, out);
  }

  void low_rank_down(nb::handle x, nb::handle low_rank_arg, nb::handle gain, double eps, nb::handle t) {
    const auto& low_rank = nb::cast<const LowRank&>(low_rank_arg);
    const LowRankDownCall call(x, low_rank, gain, eps, t);
    keep({x, low_rank_arg, gain, t}, call.rows);
    adapters_ = std::min(adapters_, static_cast<int64_t>(low_rank.entries.size()));
    push([call](const ProgramRows& rows, ThreadPool& pool) {
      return call.run(rows.count, rows.adapters, pool) ? nullptr : kNotFinite;
    });
  }

  void low_rank_up(nb::handle t, nb::handle low_rank_arg, nb::handle out) {
    const auto& low_rank = nb::cast<const LowRank&>(low_rank_arg);
    const LowRankUpCall call(t, low_rank, out);
    keep({t, low_rank_arg, out}, call.rows);
    adapters_ = std::min(adapters_, static_cast<int64_t>(low_rank.entries.size()));
    push([call](const ProgramRows& rows, ThreadPool& pool) {
      return call.run(rows.count, rows.adapters, pool) ? nullptr : kNotFinite;
    });
  }

  void block_embedding(nb::handle panels, int64_t kind, int64_t channels, int64_t columns, double factor, nb::handle out) {
    BlockRowsCall call(panels, kind, channels, columns, static_cast<float>(factor));
    const int64_t rows = read<float, 2>(out, "out").shape[0];
    const nb::object written = call.write_to(out, rows);
    keep({panels, written}, rows);
    tokens_ = std::min(tokens_, call.weight.channels);
    push([call](const ProgramRows& rows, ThreadPool& pool) {
      call.run(rows.count, rows.tokens, pool);
      return nullptr;
    });
  }

  void embedding(nb::handle integers, int64_t columns, nb::handle scale, nb::handle hot, nb::handle hot_weight, nb::handle out,
                 int64_t turn) {
    EmbeddingCall call(integers, columns, scale, hot, hot_weight, turn);
    const int64_t rows = read<float, 2>(out, "out").shape[0];
    const nb::object written = call.write_to(out, rows);
    keep({integers, scale, hot, hot_weight, written}, rows);
    tokens_ = std::min(tokens_, call.args.rows);
    push([call](const ProgramRows& rows, ThreadPool& pool) {
      call.run(rows.count, rows.tokens, pool);
      return nullptr;
    });
  }

  void rms_norm(nb::handle x, nb::handle gain, float eps, nb::handle out, nb::handle add) {
    add_plain(NormCall(x, gain, eps, add), {x, gain, add}, out);
  }

  void layer_norm(nb::handle x, nb::handle gain, nb::handle bias, float eps, nb::handle out, nb::handle add) {
    add_plain(LayerNormCall(x, gain, bias, eps, add), {x, gain, bias, add}, out);
  }

  void gated(nb::handle gate_up, int gate, double limit, nb::handle out) {
    add_plain(GateCall(gate_up, gate, limit), {gate_up}, out);
  }

  void activate(nb::handle x, int kind, double limit, nb::handle out) { add_plain(ActivateCall(x, kind, limit), {x}, out); }

  void rope_append(nb::handle qkv, int64_t heads, int64_t kv_heads, int64_t head_dim, nb::handle cos, nb::handle sin,
                   nb::handle q_gain, nb::handle k_gain, float eps, nb::handle k_offset, nb::handle k_pages,
                   nb::handle k_scales, nb::handle v_pages, nb::handle v_scales, int64_t turn, nb::handle v_gain,
                   bool norm_last, nb::handle q_scale) {
    const AppendCall call({qkv, heads, kv_heads, head_dim, cos, sin, {q_gain, k_gain, v_gain, eps, norm_last}, k_offset,
                           {k_pages, k_scales, v_pages, v_scales}, turn, q_scale});
    keep({qkv, cos, sin, q_gain, k_gain, k_offset, k_pages, k_scales, v_pages, v_scales, v_gain, q_scale}, call.rows);
    positions_ = std::min(positions_, call.positions);
    pages_ = std::min(pages_, call.pages);
    push([call](const ProgramRows& rows, ThreadPool& pool) {
      return call.run(rows.count, rows.attention.row_position, rows.slots, pool) ? nullptr : kNotFiniteKey;
    });
  }

  void paged_attention(nb::handle q, nb::handle k_pages, nb::handle k_scales, nb::handle v_pages, nb::handle v_scales,
                       float softmax_scale, nb::handle out, int64_t window, float cap, nb::handle sinks) {
    AttentionCall call(q, k_pages, k_scales, v_pages, v_scales, softmax_scale, window, cap, sinks);
    const nb::object written = call.write_to(out);
    keep({q, k_pages, k_scales, v_pages, v_scales, sinks, written}, call.rows);
    pages_ = std::min(pages_, call.pages);
    window_ = std::max(window_, call.args.window);
    push([call](const ProgramRows& rows, ThreadPool& pool) {
      call.run(rows.count, rows.attention, pool);
      return nullptr;
    });
  }

  int64_t wait(Reading& reading, nb::handle checksums_arg) {
    const auto checksums = read<uint32_t, 1>(checksums_arg, "checksums");
    expect_shape(checksums, "checksums", {static_cast<int64_t>(reading.pieces())});
    kept_.push_back(nb::find(reading));
    reads_ = true;
    steps_.push_back({nullptr, &reading, std::vector<uint32_t>(checksums.data, checksums.data + checksums.shape[0])});
    return static_cast<int64_t>(steps_.size()) - 1;
  }

  void request(Reading& reading) {
    kept_.push_back(nb::find(reading));
    reads_ = true;
    steps_.push_back({nullptr, nullptr, {}, &reading});
  }

  int64_t length() const { return static_cast<int64_t>(steps_.size()); }

  int64_t run(nb::handle tokens_arg, nb::handle positions_arg, nb::handle slots_arg, nb::handle sequence_arg,
              nb::handle page_table_arg, ThreadPool& pool, nb::handle out_arg, int64_t start, double patience,
              nb::handle seconds_arg, nb::handle adapters_arg) const {
    const int64_t length = this->length();
    if (start < 0 || start > length)
      throw nb::value_error(("`start` must be in 0.." + std::to_string(length) + "; got `" + std::to_string(start) + "`").c_str());
    const auto positions = read<int32_t, 1>(positions_arg, "positions");
    const int64_t count = positions.shape[0];
    if (count > rows_)
      throw nb::value_error(("`positions` must have at most `" + std::to_string(rows_) + "` rows, which the arrays have; got `" +
                             std::to_string(count) + "`")
                                .c_str());
    expect_positions(positions, positions_);
    const auto tokens = read<int64_t, 1>(tokens_arg, "tokens");
    expect_shape(tokens, "tokens", {count});
    expect_tokens(tokens, tokens_);
    const auto slots = read<int64_t, 1>(slots_arg, "slots");
    expect_shape(slots, "slots", {count});
    expect_slots(slots, pages_);
    const auto sequence = read<int32_t, 1>(sequence_arg, "row_sequence");
    expect_shape(sequence, "row_sequence", {count});
    const auto page_table = read<int32_t, 2>(page_table_arg, "page_table");
    const ProgramRows rows = {count,
                              tokens.data,
                              slots.data,
                              {page_table.data, page_table.shape[1], sequence.data, positions.data},
                              read_out(out_arg, count),
                              read_adapters(adapters_arg, count)};
    if (window_ > 0) expect_rows(rows.attention, count, page_table.shape[0], pages_, window_);
    return run_checked(start, end_of(patience), rows, pool, read_seconds(seconds_arg));
  }

  // The run of one row, of a sequence with these pages, and its output. Two numbers arrive faster than arrays of one element:
  // after a step all of Python has left the caches.
  nb::object run_row(int64_t token, int64_t position, nb::handle pages_arg, ThreadPool& pool, nb::handle seconds_arg) const {
    if (reads_ || out_width_ < 0)
      throw nb::value_error("`run_row` needs a program that reads nothing and has a linear without `out`; call `run`");
    const auto pages = read<int32_t, 1>(pages_arg, "pages");
    expect_tokens(one_of(token), tokens_);
    const int64_t seen = std::min(positions_, pages.shape[0] * kPage);
    if (position < 0 || position >= seen)
      throw nb::value_error(("`position` must be in 0.." + std::to_string(seen - 1) + ", where the tables and `pages` end; got `" +
                             std::to_string(position) + "`")
                                .c_str());
    const int64_t slot = pages.data[position / kPage] * kPage + position % kPage;
    const int32_t at = static_cast<int32_t>(position), sequence = 0;
    nb::object out = new_array<float, 2>({1, out_width_});
    const ProgramRows rows = {1, &token, &slot, {pages.data, pages.shape[0], &sequence, &at}, data_of<float, 2>(out)};
    expect_rows(rows.attention, 1, 1, pages_, std::max<int64_t>(1, window_));  // so the slot is inside too
    run_checked(0, Clock::time_point::max(), rows, pool, read_seconds(seconds_arg));
    return out;
  }

 private:
  static Array<const int64_t, 1> one_of(const int64_t& number) { return {&number, {1}, {1}}; }

  int64_t run_checked(int64_t start, Clock::time_point end, const ProgramRows& rows, ThreadPool& pool, double* seconds) const {
    const char* failure = nullptr;
    const int64_t done = run_from(start, end, rows, pool, seconds, &failure);
    if (failure) throw nb::value_error(failure);
    return done;
  }

  // The step at which it stopped: behind the last, at a read that did not come whole or that it came to after `end`, or at a
  // call that failed. The pool serves others while a read is awaited. `seconds`, if there are any, are of every step.
  int64_t run_from(int64_t start, Clock::time_point end, const ProgramRows& rows, ThreadPool& pool, double* seconds,
                   const char** failure) const {
    const ReleasedGil released;
    size_t at = static_cast<size_t>(start);
    while (at < steps_.size()) {
      if (const Step& step = steps_[at]; step.awaited) {
        const Timed timed(seconds, at);
        if (Clock::now() >= end || !step.awaited->whole(step.checksums)) break;
        ++at;
      } else if (step.begun) {
        step.begun->again();
        ++at;
      } else {
        const PoolLease held(pool);
        for (; at < steps_.size() && steps_[at].call; ++at) {
          const Timed timed(seconds, at);
          if ((*failure = steps_[at].call(rows, pool))) return static_cast<int64_t>(at);
        }
      }
    }
    return static_cast<int64_t>(at);
  }

  void push(Call call) { steps_.push_back({std::move(call)}); }

  // A call that reads these arrays and writes to `out`.
  template <class Call>
  void add_plain(Call call, std::initializer_list<nb::handle> arrays, nb::handle out) {
    kept_.push_back(call.write_to(out));
    keep(arrays, call.rows);
    push([call](const ProgramRows& rows, ThreadPool& pool) -> const char* {
      call.run(rows.count, pool);
      return nullptr;
    });
  }

  // A linear that reads these arrays.
  template <class Call>
  void add_linear(Call call, std::initializer_list<nb::handle> arrays, nb::handle out) {
    if (out.is_none()) {
      keep(arrays, call.rows);
      return write_later(call);
    }
    kept_.push_back(call.write_to(out));
    keep(arrays, call.rows);
    push([call](const ProgramRows& rows, ThreadPool& pool) { return call.run(rows.count, pool) ? nullptr : kNotFinite; });
  }

  // A linear whose output each run is given.
  template <class Call>
  void write_later(Call call) {
    if (out_width_ >= 0) throw nb::value_error("`out` must be given: another linear writes to that of `run`");
    out_width_ = call.width();
    push([call](const ProgramRows& rows, ThreadPool& pool) {
      Call now = call;
      now.set_out(rows.out);
      return now.run(rows.count, pool) ? nullptr : kNotFinite;
    });
  }

  // Null where nobody asks.
  double* read_seconds(nb::handle seconds_arg) const {
    if (seconds_arg.is_none()) return nullptr;
    const auto seconds = write<double, 1>(seconds_arg, "seconds");
    expect_shape(seconds, "seconds", {length()});
    return seconds.data;
  }

  // Null where no row has one.
  const int32_t* read_adapters(nb::handle adapters_arg, int64_t count) const {
    const auto adapters = read_optional<int32_t, 1>(adapters_arg, "adapters");
    if (!adapters) return nullptr;
    expect_shape(adapters, "adapters", {count});
    for (int64_t i = 0; i < count; ++i)
      if (adapters.data[i] < 0 || adapters.data[i] > adapters_)
        throw nb::value_error(("`adapters` must be in 0.." + std::to_string(adapters_) + "; got `" +
                               std::to_string(adapters.data[i]) + "`")
                                  .c_str());
    return adapters.data;
  }

  // Null where no call writes to it.
  float* read_out(nb::handle out_arg, int64_t count) const {
    if (out_width_ < 0) return nullptr;
    const auto out = write<float, 2>(out_arg, "out");
    expect_shape(out, "out", {count, out_width_});
    return out.data;
  }

  // The arrays of a call that has so many rows.
  void keep(std::initializer_list<nb::handle> arrays, int64_t rows) {
    for (nb::handle array : arrays) kept_.push_back(nb::borrow(array));
    rows_ = std::min(rows_, rows);
  }

  std::vector<Step> steps_;
  std::vector<nb::object> kept_;  // arrays and readings of the steps
  int64_t rows_ = INT32_MAX, tokens_ = INT64_MAX, positions_ = INT32_MAX, pages_ = INT32_MAX,
          adapters_ = INT32_MAX;  // that all calls have
  int64_t out_width_ = -1;  // of the output of a run; below 0: there is none
  int64_t window_ = 0;      // the widest of the attentions; 0: there is none
  bool reads_ = false;
};

}  // namespace

void bind_program(nb::module_& module) {
  const auto any = nb::arg().none();
  const nb::arg number, flag;
  nb::class_<Program>(module, "Program")
      .def(nb::init<>())
      .def("linear", &Program::linear, any, any, any, flag, any, number, number, number, any)
      .def("half_linear", &Program::half_linear, any, any, any, any, any, number, number, number, any)
      .def("low_rank_down", &Program::low_rank_down, any, nb::arg(), any, number, any)
      .def("low_rank_up", &Program::low_rank_up, any, nb::arg(), any)
      .def("block_linear", &Program::block_linear, any, nb::arg(), any, any, any, number, number, number, any)
      .def("block_embedding", &Program::block_embedding, any, number, number, number, number, any)
      .def("embedding", &Program::embedding, any, number, any, any, any, any, number)
      .def("rms_norm", &Program::rms_norm, any, any, number, any, any)
      .def("layer_norm", &Program::layer_norm, any, any, any, number, any, any)
      .def("gated", &Program::gated, any, number, number, any)
      .def("activate", &Program::activate, any, number, number, any)
      .def("rope_append", &Program::rope_append, any, number, number, number, any, any, any, any, number, any, any, any, any, any,
           number, any, flag, any)
      .def("paged_attention", &Program::paged_attention, any, any, any, any, any, number, any, number, number, any)
      .def("wait", &Program::wait, nb::arg(), any)
      .def("request", &Program::request, nb::arg())
      .def("__len__", &Program::length)
      .def("run", &Program::run, any, any, any, any, any, nb::arg(), any, number, number, any, any)
      .def("run_row", &Program::run_row, number, number, any, nb::arg(), any);
}

}  // namespace edge

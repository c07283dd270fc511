// ThreadPool: the cores of one kernel call.
//
// The calling thread is worker 0. The others are helpers of a `Team`, which pools of one size share. They spin for at most
// kSpinMicroseconds after their last work, then sleep, so a token's dozens of small regions start within a microsecond and an
// idle pool costs nothing. A pool serves one caller at a time: a binding holds `PoolLease` for the whole call, scratch memory
// included. Callers of several pools work at the same time, each with its part of the team.
// Everything is out of line: variant units must not instantiate library templates (see vec.h).
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace edge {

constexpr int kMaxThreads = 1024;

// Some pieces of a stream that follow each other.
struct Pieces { int64_t begin, end; };

// Memory in pieces: `count` of `piece_bytes` each, one after the other.
struct Stream {
  const void* data;
  int64_t count;
  int64_t piece_bytes;
};

class ThreadPool {
 public:
  static constexpr int kSpinMicroseconds = 50;

  // cpus: the CPU that worker i is bound to, `threads` of them (worker 0, the caller, is left alone); null: unbound.
  ThreadPool(int threads, const int* cpus);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // body(worker) once for each of workers 0..workers-1, at the same time as far as helpers are free; returns when all are done.
  // The first exception is rethrown here. Must not be nested.
  template <class Body>
  void run(int workers, Body&& body) {
    if (workers <= 1) return body(0);
    dispatch(gather(workers), workers, Latecomers::kAwaited, body);
  }

  // The same for work that whoever is there takes from a common store: a worker that has not begun when worker 0 returns
  // is left out. So a core that the system lends to someone else holds nobody up.
  template <class Body>
  void run_shared(int workers, Body&& body) {
    if (workers <= 1) return body(0);
    const int present = gather(workers);
    dispatch(present, present, Latecomers::kLeftOut, body);
  }

  // body(begin, end, worker) over blocks of `grain` that cover 0..count, taken in ascending order by whoever is free.
  // A result must not depend on who takes which block. `workers` <= 0: all of them. With one worker it is a single block.
  template <class Body>
  void for_blocks(int64_t count, int64_t grain, Body&& body, int workers = 0) {
    const int64_t blocks = (count + grain - 1) / grain;
    int64_t width = workers > 0 && workers < threads_ ? workers : threads_;
    if (width > blocks) width = blocks;
    if (width <= 1) {
      if (count > 0) body(int64_t{0}, count, 0);
      return;
    }
    reset_blocks();
    run_shared(static_cast<int>(width), [&](int worker) {
      for (int64_t begin; (begin = take_block() * grain) < count;)
        body(begin, begin + grain < count ? begin + grain : count, worker);
    });
  }

  // body(index, worker) for each piece of memory that passes by once. Every worker begins with pieces of its own, then the
  // rest goes to whoever is free, in ascending blocks. The pool remembers which stream came after which: who waits, for a
  // call or for the others at its end, meanwhile fetches his own pieces of the probable next one into his cache.
  template <class Body>
  void for_stream(const Stream& stream, Body&& body, int workers) {
    if (workers > threads_) workers = threads_;
    if (workers > stream.count) workers = static_cast<int>(stream.count);
    if (workers <= 1) {
      for (int64_t index = 0; index < stream.count; ++index) body(index, 0);
      return;
    }
    const int present = gather(workers);
    deal(stream, present);
    const auto work = [&](int worker) {
      for (Pieces pieces; (pieces = take(worker, present)).begin < pieces.end;)
        for (int64_t index = pieces.begin; index < pieces.end; ++index) body(index, worker);
    };
    dispatch(present, present, Latecomers::kLeftOut, work);
  }

  // Private memory of a worker, 64-byte aligned, at least `bytes`; contents are undefined and stay until the worker's
  // next scratch() call. Grows and never shrinks.
  void* scratch(int worker, size_t bytes);
  // A second private memory that keeps its contents as it grows, for results whose size is not known beforehand.
  void* extend(int worker, size_t bytes);
  // Memory for the whole call, to be taken before a region by the caller; `slot` in 0..kSharedSlots-1.
  static constexpr int kSharedSlots = 8;
  void* shared_scratch(int slot, size_t bytes);

  // Activation values that overflowed and were kept in a residual, since the pool was made. Any thread may ask.
  int64_t overflow() const;
  void add_overflow(int64_t values);

  void lock();
  void unlock();

  // The counter of for_blocks, for loops that need state per worker.
  void reset_blocks();
  int64_t take_block();

 private:
  struct State;
  class Registry;

  // What happens to helpers that have not begun when the caller has no more to do.
  enum class Latecomers { kAwaited, kLeftOut };

  // The pieces of for_stream: handed out before the call, and what a worker does next (nothing: none).
  void deal(const Stream& stream, int workers);
  Pieces take(int worker, int workers);

  // How many of `workers` are here for the region that `dispatch` must now run, the caller among them.
  int gather(int workers);
  // body(worker) once for each of `workers`; the caller does the work of those who are not present.
  void dispatch(int present, int workers, Latecomers latecomers, void (*body)(void*, int), void* context);

  template <class Body>
  void dispatch(int present, int workers, Latecomers latecomers, Body& body) {
    dispatch(present, workers, latecomers, [](void* context, int worker) { (*static_cast<Body*>(context))(worker); },
             const_cast<void*>(static_cast<const void*>(&body)));
  }

  int threads_;
  State* state_;
};

class PoolLease {
 public:
  explicit PoolLease(ThreadPool& pool) : pool_(pool) { pool_.lock(); }
  ~PoolLease() { pool_.unlock(); }
  PoolLease(const PoolLease&) = delete;
  PoolLease& operator=(const PoolLease&) = delete;

 private:
  ThreadPool& pool_;
};

}  // namespace edge

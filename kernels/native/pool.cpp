#include "pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace edge {
namespace {

using Clock = std::chrono::steady_clock;

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until ready() or the time is up; true when ready.
template <class Ready>
bool spin_until(int microseconds, Ready&& ready) {
  if (ready()) return true;
  if (microseconds <= 0) return false;
  const auto end = Clock::now() + std::chrono::microseconds(microseconds);
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      pause_core();
    }
  } while (Clock::now() < end);
  return ready();
}

// CPUs this process may keep busy: its affinity, bounded by the cgroup's quota.
int available_cpus() {
#if defined(__linux__)
  int cpus = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cpus = CPU_COUNT(&set);
  int64_t quota = 0, period = 0;  // "max 100000": no quota
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && period > 0)
    cpus = static_cast<int>(std::min<int64_t>(cpus, quota / period));
  return cpus;
#else
  return static_cast<int>(std::thread::hardware_concurrency());
#endif
}

void bind_to_cpu(int cpu) {
#if defined(__linux__)
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);  // a refused CPU leaves the worker unbound
#else
  (void)cpu;
#endif
}

class Buffer {
 public:
  // At least `bytes`, contents undefined.
  void* reserve(size_t bytes) {
    if (bytes > capacity_) {
      data_.reset();
      capacity_ = 0;
      data_ = allocate(bytes + bytes / 4);
    }
    return data_.get();
  }

  // At least `bytes`, contents kept.
  void* extend(size_t bytes) {
    if (bytes > capacity_) {
      const size_t kept = capacity_;
      Memory data = allocate(2 * bytes);
      if (kept > 0) std::memcpy(data.get(), data_.get(), kept);
      data_ = std::move(data);
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  using Memory = std::unique_ptr<void, Free>;

  Memory allocate(size_t bytes) {
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    Memory data(std::aligned_alloc(64, rounded));
    if (data == nullptr) throw std::bad_alloc();
    capacity_ = rounded;
    return data;
  }

  Memory data_;
  size_t capacity_ = 0;
};

}  // namespace

struct Pieces { int64_t begin, end; };

// The part of a stream that is dealt out before the call begins: more than is fetched in the time between two calls, and
// little enough for an L2 of 512 KiB.
constexpr int64_t kDealtBytes = 448 << 10;  // to each worker

int64_t pieces_per_worker(const Stream& stream) {
  return std::max<int64_t>(1, kDealtBytes / std::max<int64_t>(1, stream.piece_bytes));
}

int64_t dealt_pieces(const Stream& stream, int workers) {
  return std::min(stream.count, pieces_per_worker(stream) * workers);
}

Pieces dealt_to(const Stream& stream, int worker, int workers) {
  const int64_t dealt = dealt_pieces(stream, workers);
  return {dealt * worker / workers, dealt * (worker + 1) / workers};
}

// Which stream came after which, the last time. Entries that fall on one place replace each other.
class StreamOrder {
 public:
  // The stream that came after this one, or an empty one.
  Stream next(const Stream& stream) {
    entry(last_) = {last_, stream};
    last_ = stream.data;
    const Entry& known = entry(stream.data);
    return known.before == stream.data ? known.after : Stream{};
  }

 private:
  struct Entry {
    const void* before;
    Stream after;
  };
  static constexpr int kBits = 10;

  Entry& entry(const void* data) {
    const uint64_t mixed = (reinterpret_cast<uintptr_t>(data) >> 6) * uint64_t{0x9E3779B97F4A7C15};
    return entries_[mixed >> (64 - kBits)];
  }

  const void* last_ = nullptr;
  Entry entries_[1 << kBits] = {};
};

// What a waiting worker fetches into its cache, a little at a time. Never read: the memory may be gone by then.
class Prefetch {
 public:
  void follow(const Stream& stream, int worker, int workers) {
    if (stream.data == followed_) return;
    followed_ = stream.data;
    const Pieces own = dealt_to(stream, worker, workers);
    at_ = reinterpret_cast<uintptr_t>(stream.data) + static_cast<uintptr_t>(own.begin * stream.piece_bytes);
    left_ = std::min(kDealtBytes, (own.end - own.begin) * stream.piece_bytes);
  }

  void step() {
    constexpr int kLineBytes = 64, kLines = 8;
    if (left_ <= 0) return;
    for (int line = 0; line < kLines; ++line)
      __builtin_prefetch(reinterpret_cast<const void*>(at_ + static_cast<uintptr_t>(line * kLineBytes)), 0, 2);
    at_ += kLines * kLineBytes;
    left_ -= kLines * kLineBytes;
  }

 private:
  const void* followed_ = nullptr;
  uintptr_t at_ = 0;
  int64_t left_ = 0;
};

// Where a worker meets the caller, on a cache line of its own.
struct alignas(64) Desk {
  enum : uint32_t { kIdle, kOffered, kWorking };

  // The caller offers the job and may withdraw it; the worker takes it and, when done, is idle again. `body` and `context`
  // of the job stay until all are idle.
  std::atomic<uint32_t> state{kIdle};

  std::atomic<uint64_t> own{0};  // of the pieces dealt to it, those that are left: end << 32 | begin
};

struct ThreadPool::State {
  std::unique_ptr<Desk[]> desks;  // [threads]
  alignas(64) std::atomic<int64_t> next_block{0};
  alignas(64) std::atomic<int> sleeping{0};
  std::atomic<bool> stop{false};
  void (*body)(void*, int) = nullptr;
  void* context = nullptr;

  int64_t stream_count = 0;   // of the stream that is being worked on
  int64_t stream_block = 1;   // most pieces to take at once of what is not dealt
  int64_t stream_shares = 1;  // one of so many of what is left is taken at once
  Stream next_stream = {};    // its probable successor
  int next_workers = 1;       // who will share that
  StreamOrder stream_order;
  Prefetch prefetch;          // of the caller

  std::mutex sleep_mutex;  // guards the two condition variables, never held while working
  std::condition_variable work_ready;
  std::condition_variable work_done;
  std::atomic<bool> caller_sleeping{false};

  std::mutex error_mutex;
  std::exception_ptr error;

  std::atomic<int64_t> overflow{0};

  std::mutex lease;
  int spin_microseconds = kSpinMicroseconds;
  std::vector<Buffer> scratch;
  std::vector<Buffer> extended;
  Buffer shared[kSharedSlots];
  std::vector<std::thread> workers;

  // Without its threads.
  static std::unique_ptr<State> make(int threads) {
    auto state = std::make_unique<State>();
    state->desks = std::make_unique<Desk[]>(static_cast<size_t>(threads));
    state->scratch.resize(static_cast<size_t>(threads));
    state->extended.resize(static_cast<size_t>(threads));
    return state;
  }

  void run_body(int worker) {
    try {
      body(context, worker);
    } catch (...) {
      std::lock_guard<std::mutex> guard(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void wait_for_offer(const Desk& desk, Prefetch& prefetch) {
    const auto called = [&] {
      prefetch.step();
      return desk.state.load(std::memory_order_relaxed) == Desk::kOffered || stop.load(std::memory_order_relaxed);
    };
    if (spin_until(spin_microseconds, called)) return;
    std::unique_lock<std::mutex> guard(sleep_mutex);
    sleeping.fetch_add(1);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // an offer is seen here, or the sleeper there
    work_ready.wait(guard, called);
    sleeping.fetch_sub(1);
  }

  void worker_loop(int worker) {
    Desk& desk = desks[static_cast<size_t>(worker)];
    Prefetch prefetch;
    while (true) {
      wait_for_offer(desk, prefetch);
      if (stop.load()) return;
      uint32_t offered = Desk::kOffered;
      if (!desk.state.compare_exchange_strong(offered, Desk::kWorking, std::memory_order_acquire)) continue;
      run_body(worker);
      prefetch.follow(next_stream, worker, next_workers);
      desk.state.exchange(Desk::kIdle);
      if (caller_sleeping.load()) {
        std::lock_guard<std::mutex> guard(sleep_mutex);
        work_done.notify_one();
      }
    }
  }

  void offer(int workers) {
    for (int worker = 1; worker < workers; ++worker)
      desks[static_cast<size_t>(worker)].state.store(Desk::kOffered, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // see wait_for_offer
    if (sleeping.load(std::memory_order_relaxed) > 0) {
      std::lock_guard<std::mutex> guard(sleep_mutex);
      work_ready.notify_all();
    }
  }

  // Who has not begun need not.
  void withdraw(int workers) {
    for (int worker = 1; worker < workers; ++worker) {
      uint32_t offered = Desk::kOffered;
      desks[static_cast<size_t>(worker)].state.compare_exchange_strong(offered, Desk::kIdle, std::memory_order_relaxed);
    }
  }

  void wait_for_workers(int workers) {
    int waiting = 1;  // the first that may not be idle
    prefetch.follow(next_stream, 0, next_workers);
    const auto done = [&] {
      prefetch.step();
      while (waiting < workers && desks[static_cast<size_t>(waiting)].state.load() == Desk::kIdle) ++waiting;
      return waiting >= workers;
    };
    if (spin_until(spin_microseconds, done)) return;
    std::unique_lock<std::mutex> guard(sleep_mutex);
    caller_sleeping.store(true);
    work_done.wait(guard, done);
    caller_sleeping.store(false);
  }

  // The first piece that a worker has left; or, of another's, the later half.
  Pieces take_dealt(int owner, bool half) {
    std::atomic<uint64_t>& own = desks[static_cast<size_t>(owner)].own;
    uint64_t left = own.load(std::memory_order_relaxed);
    while (true) {
      const auto begin = static_cast<int64_t>(left & 0xFFFFFFFF), end = static_cast<int64_t>(left >> 32);
      if (begin >= end) return {0, 0};
      const int64_t cut = half ? begin + (end - begin) / 2 : begin + 1;
      const auto keep = static_cast<uint64_t>(half ? cut << 32 | begin : end << 32 | cut);
      if (own.compare_exchange_weak(left, keep, std::memory_order_relaxed)) return half ? Pieces{cut, end} : Pieces{begin, cut};
    }
  }

  // A block of what was not dealt: the less is left, the smaller, so that all end together.
  Pieces take_rest() {
    int64_t begin = next_block.load(std::memory_order_relaxed);
    while (begin < stream_count) {
      const int64_t end = begin + std::clamp<int64_t>((stream_count - begin) / stream_shares, 1, stream_block);
      if (next_block.compare_exchange_weak(begin, end, std::memory_order_relaxed)) return {begin, end};
    }
    return {0, 0};
  }

  void stop_workers() {
    {
      std::lock_guard<std::mutex> guard(sleep_mutex);
      stop.store(true);
      work_ready.notify_all();
    }
    for (std::thread& thread : workers) thread.join();
  }
};

// All pools of the process. A child of a fork has none of their threads, and perhaps a lock that one of them held: each pool
// gets a new state there, in which the caller does all the work. The old one stays as it is, for nobody can end it.
class ThreadPool::Forks {
 public:
  static Forks& known() {
    static Forks* const forks = new Forks;  // never destroyed: pools may end after it
    return *forks;
  }

  void add(ThreadPool* pool) {
    const std::lock_guard<std::mutex> guard(mutex_);
    pools_.push_back(pool);
  }

  void remove(ThreadPool* pool) {
    const std::lock_guard<std::mutex> guard(mutex_);
    pools_.erase(std::find(pools_.begin(), pools_.end(), pool));
  }

 private:
  Forks() {
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork([] { known().mutex_.lock(); }, [] { known().mutex_.unlock(); }, [] {
      for (ThreadPool* pool : known().pools_) {
        State* alone = State::make(pool->threads_).release();
        alone->overflow.store(pool->overflow());
        pool->state_ = alone;
      }
      known().mutex_.unlock();
    });
#endif
  }

  std::mutex mutex_;
  std::vector<ThreadPool*> pools_;
};

ThreadPool::ThreadPool(int threads, const int* cpus) : threads_(threads), state_(nullptr) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads out of range");
  auto state = State::make(threads);
  // More threads than CPUs: spinning would only keep the thread that has the work from running.
  if (threads > available_cpus()) state->spin_microseconds = 0;
  try {
    for (int worker = 1; worker < threads; ++worker) {
      const int cpu = cpus != nullptr ? cpus[worker] : -1;
      state->workers.emplace_back([s = state.get(), worker, cpu] {
        if (cpu >= 0) bind_to_cpu(cpu);
        s->worker_loop(worker);
      });
    }
  } catch (...) {
    state->stop_workers();
    throw;
  }
  state_ = state.release();
  Forks::known().add(this);
}

ThreadPool::~ThreadPool() {
  Forks::known().remove(this);
  state_->stop_workers();
  delete state_;
}

void ThreadPool::dispatch(int workers, bool all, void (*body)(void*, int), void* context) {
  State& s = *state_;
  if (workers > threads_) workers = threads_;
  if (s.workers.empty()) {  // in the child of a fork
    for (int worker = 0; worker < (all ? workers : 1); ++worker) body(context, worker);
    return;
  }
  s.body = body;
  s.context = context;
  s.offer(workers);
  s.run_body(0);
  if (!all) s.withdraw(workers);
  s.wait_for_workers(workers);
  if (s.error) {
    std::exception_ptr error = nullptr;
    std::swap(error, s.error);
    std::rethrow_exception(error);
  }
}

void ThreadPool::reset_blocks() { state_->next_block.store(0, std::memory_order_relaxed); }

int64_t ThreadPool::take_block() { return state_->next_block.fetch_add(1, std::memory_order_relaxed); }

void ThreadPool::deal(const Stream& stream, int workers) {
  State& s = *state_;
  for (int worker = 0; worker < workers; ++worker) {
    const Pieces own = dealt_to(stream, worker, workers);
    s.desks[static_cast<size_t>(worker)].own.store(static_cast<uint64_t>(own.end << 32 | own.begin), std::memory_order_relaxed);
  }
  s.next_block.store(dealt_pieces(stream, workers), std::memory_order_relaxed);
  s.stream_count = stream.count;
  s.stream_block = pieces_per_worker(stream);
  s.stream_shares = 2 * workers;
  s.next_stream = s.stream_order.next(stream);
  s.next_workers = static_cast<int>(std::min<int64_t>(threads_, std::max<int64_t>(1, s.next_stream.count)));
}

ThreadPool::Range ThreadPool::take(int worker, int workers) {
  Pieces pieces = state_->take_dealt(worker, false);
  if (pieces.begin == pieces.end) pieces = state_->take_rest();
  for (int step = 1; step < workers && pieces.begin == pieces.end; ++step)
    pieces = state_->take_dealt((worker + step) % workers, true);
  return {pieces.begin, pieces.end};
}

void* ThreadPool::scratch(int worker, size_t bytes) { return state_->scratch[static_cast<size_t>(worker)].reserve(bytes); }

void* ThreadPool::extend(int worker, size_t bytes) { return state_->extended[static_cast<size_t>(worker)].extend(bytes); }

void* ThreadPool::shared_scratch(int slot, size_t bytes) { return state_->shared[slot].reserve(bytes); }

int64_t ThreadPool::overflow() const { return state_->overflow.load(std::memory_order_relaxed); }

void ThreadPool::add_overflow(int64_t values) { state_->overflow.fetch_add(values, std::memory_order_relaxed); }

void ThreadPool::lock() { state_->lease.lock(); }

void ThreadPool::unlock() { state_->lease.unlock(); }

}  // namespace edge

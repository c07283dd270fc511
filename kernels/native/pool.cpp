#include "pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <pthread.h>
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

// CPUs this process may run on.
int available_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
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

struct ThreadPool::State {
  static constexpr uint64_t kClosed = uint64_t{1} << 31, kInside = kClosed - 1;

  // A job is announced by one word, generation << 16 | workers; a worker that is not part of the job needs nothing else.
  alignas(64) std::atomic<uint64_t> ticket{0};
  // Who is inside the job: generation << 32 | closed (bit 31) | workers inside. A worker enters by counting itself in while
  // the gate is open; `body` and `context` stay until it has counted itself out again.
  alignas(64) std::atomic<uint64_t> gate{kClosed};
  std::atomic<int> finished{0};  // workers that have been inside
  alignas(64) std::atomic<int64_t> next_block{0};
  alignas(64) std::atomic<int> sleeping{0};
  std::atomic<bool> stop{false};
  void (*body)(void*, int) = nullptr;
  void* context = nullptr;

  std::mutex sleep_mutex;  // guards the two condition variables, never held while working
  std::condition_variable work_ready;
  std::condition_variable work_done;
  std::atomic<bool> caller_sleeping{false};

  std::mutex error_mutex;
  std::exception_ptr error;

  std::mutex lease;
  int spin_microseconds = kSpinMicroseconds;
  std::vector<Buffer> scratch;
  std::vector<Buffer> extended;
  Buffer shared[kSharedSlots];
  std::vector<std::thread> workers;

  void run_body(int worker) {
    try {
      body(context, worker);
    } catch (...) {
      std::lock_guard<std::mutex> guard(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void wait_for_ticket(uint64_t seen) {
    const auto changed = [&] { return ticket.load() != seen || stop.load(); };
    if (spin_until(spin_microseconds, changed)) return;
    std::unique_lock<std::mutex> guard(sleep_mutex);
    sleeping.fetch_add(1);
    work_ready.wait(guard, changed);
    sleeping.fetch_sub(1);
  }

  bool enter(uint64_t generation) {
    uint64_t value = gate.load();
    while (value >> 32 == generation && !(value & kClosed))
      if (gate.compare_exchange_weak(value, value + 1)) return true;
    return false;
  }

  void leave() {
    finished.fetch_add(1);
    gate.fetch_sub(1);
    if (caller_sleeping.load()) {
      std::lock_guard<std::mutex> guard(sleep_mutex);
      work_done.notify_one();
    }
  }

  void worker_loop(int worker) {
    uint64_t seen = 0;
    while (true) {
      wait_for_ticket(seen);
      if (stop.load()) return;
      seen = ticket.load();
      if (worker >= static_cast<int>(seen & 0xFFFF) || !enter(seen >> 16)) continue;
      run_body(worker);
      leave();
    }
  }

  // Until at least `wanted` workers have been inside and nobody is.
  void wait_for_workers(int wanted) {
    const auto done = [&] { return finished.load() >= wanted && (gate.load() & kInside) == 0; };
    if (spin_until(spin_microseconds, done)) return;
    std::unique_lock<std::mutex> guard(sleep_mutex);
    caller_sleeping.store(true);
    work_done.wait(guard, done);
    caller_sleeping.store(false);
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

ThreadPool::ThreadPool(int threads, const int* cpus) : threads_(threads), state_(nullptr) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads out of range");
  auto state = std::make_unique<State>();
  // More threads than CPUs: spinning would only keep the thread that has the work from running.
  if (threads > available_cpus()) state->spin_microseconds = 0;
  state->scratch.resize(static_cast<size_t>(threads));
  state->extended.resize(static_cast<size_t>(threads));
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
}

ThreadPool::~ThreadPool() {
  state_->stop_workers();
  delete state_;
}

void ThreadPool::dispatch(int workers, bool all, void (*body)(void*, int), void* context) {
  State& s = *state_;
  if (workers > threads_) workers = threads_;
  s.body = body;
  s.context = context;
  s.finished.store(0);
  const uint64_t generation = ((s.ticket.load(std::memory_order_relaxed) >> 16) + 1) & 0xFFFFFFFFu;
  s.gate.store(generation << 32);
  s.ticket.store(generation << 16 | static_cast<uint64_t>(workers));
  if (s.sleeping.load() > 0) {
    std::lock_guard<std::mutex> guard(s.sleep_mutex);
    s.work_ready.notify_all();
  }
  s.run_body(0);
  if (!all) s.gate.fetch_or(State::kClosed);
  s.wait_for_workers(all ? workers - 1 : 0);
  if (s.error) {
    std::exception_ptr error = nullptr;
    std::swap(error, s.error);
    std::rethrow_exception(error);
  }
}

void ThreadPool::reset_blocks() { state_->next_block.store(0, std::memory_order_relaxed); }

int64_t ThreadPool::take_block() { return state_->next_block.fetch_add(1, std::memory_order_relaxed); }

void* ThreadPool::scratch(int worker, size_t bytes) { return state_->scratch[static_cast<size_t>(worker)].reserve(bytes); }

void* ThreadPool::extend(int worker, size_t bytes) { return state_->extended[static_cast<size_t>(worker)].extend(bytes); }

void* ThreadPool::shared_scratch(int slot, size_t bytes) { return state_->shared[slot].reserve(bytes); }

void ThreadPool::lock() { state_->lease.lock(); }

void ThreadPool::unlock() { state_->lease.unlock(); }

}  // namespace edge

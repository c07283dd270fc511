#include "pool.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "team.h"

namespace edge {
namespace {

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

// The pieces that are dealt to a worker, on a cache line of their own.
struct alignas(64) DealtPieces {
  std::atomic<uint64_t> left{0};  // those that nobody took yet: end << 32 | begin
};

}  // namespace

struct ThreadPool::State final : Job {
  std::shared_ptr<Team> team;            // null: the caller does all the work
  Helpers helpers;                       // of the region that is worked on
  std::unique_ptr<DealtPieces[]> dealt;  // [threads]
  alignas(64) std::atomic<int64_t> next_block{0};
  void (*body)(void*, int) = nullptr;
  void* context = nullptr;

  int64_t stream_count = 0;   // of the stream that is being worked on
  int64_t stream_block = 1;   // most pieces to take at once of what is not dealt
  int64_t stream_shares = 1;  // one of so many of what is left is taken at once
  Stream next_stream = {};    // its probable successor
  int next_workers = 1;       // who will share that
  StreamOrder stream_order;
  Prefetch prefetch;          // of the caller

  std::mutex error_mutex;
  std::exception_ptr error;

  std::atomic<int64_t> overflow{0};

  std::mutex lease;
  std::vector<Buffer> scratch;
  std::vector<Buffer> extended;
  Buffer shared[kSharedSlots];

  State(int threads, std::shared_ptr<Team> with) : team(std::move(with)) {
    helpers.reserve(static_cast<size_t>(threads));
    dealt = std::make_unique<DealtPieces[]>(static_cast<size_t>(threads));
    scratch.resize(static_cast<size_t>(threads));
    extended.resize(static_cast<size_t>(threads));
  }

  void run_body(int worker) {
    try {
      body(context, worker);
    } catch (...) {
      std::lock_guard<std::mutex> guard(error_mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(int worker, Prefetch& helper) override {
    run_body(worker);
    helper.follow(next_stream, worker, next_workers);
  }

  // The first piece that a worker has left; or, of another's, the later half.
  Pieces take_dealt(int owner, bool half) {
    std::atomic<uint64_t>& pieces = dealt[static_cast<size_t>(owner)].left;
    uint64_t left = pieces.load(std::memory_order_relaxed);
    while (true) {
      const auto begin = static_cast<int64_t>(left & 0xFFFFFFFF), end = static_cast<int64_t>(left >> 32);
      if (begin >= end) return {0, 0};
      const int64_t cut = half ? begin + (end - begin) / 2 : begin + 1;
      const auto keep = static_cast<uint64_t>(half ? cut << 32 | begin : end << 32 | cut);
      if (pieces.compare_exchange_weak(left, keep, std::memory_order_relaxed)) return half ? Pieces{cut, end} : Pieces{begin, cut};
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
};

// All pools of the process, and the teams that they share. A child of a fork has none of their threads, and perhaps a lock
// that one of them held: each pool gets a new state there, in which the caller does all the work. The old one stays as it is,
// for nobody can end it.
class ThreadPool::Registry {
 public:
  static Registry& instance() {
    static Registry* const registry = new Registry;  // never destroyed: pools may end after it
    return *registry;
  }

  // The team of this key: that of the pools that have one, or a new one. It ends with its last pool.
  std::shared_ptr<Team> team(const Team::Key& key) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto ended = [](const Entry& entry) { return entry.team.expired(); };
    teams_.erase(std::remove_if(teams_.begin(), teams_.end(), ended), teams_.end());
    for (const Entry& entry : teams_)
      if (std::shared_ptr<Team> team = entry.key == key ? entry.team.lock() : nullptr) return team;
    auto team = std::make_shared<Team>(key);
    teams_.push_back({key, team});
    return team;
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
  struct Entry {
    Team::Key key;
    std::weak_ptr<Team> team;
  };

  Registry() {
#if defined(__unix__) || defined(__APPLE__)
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); }, [] { instance().begin_child(); });
#endif
  }

  void begin_child() {
    for (ThreadPool* pool : pools_) {
      auto* alone = new State(pool->threads_, nullptr);
      alone->overflow.store(pool->overflow());
      pool->state_ = alone;
    }
    teams_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<ThreadPool*> pools_;
  std::vector<Entry> teams_;
};

ThreadPool::ThreadPool(int threads, const int* cpus) : threads_(threads), state_(nullptr) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("threads out of range");
  Registry& registry = Registry::instance();
  state_ = new State(threads, threads > 1 ? registry.team(Team::Key(threads, cpus)) : nullptr);
  registry.add(this);
}

ThreadPool::~ThreadPool() {
  Registry::instance().remove(this);
  delete state_;
}

int ThreadPool::gather(int workers) {
  State& s = *state_;
  if (!s.team) return 1;
  s.team->take(std::min(workers, threads_) - 1, s.helpers);
  return static_cast<int>(s.helpers.size()) + 1;
}

void ThreadPool::dispatch(int present, int workers, Latecomers latecomers, void (*body)(void*, int), void* context) {
  State& s = *state_;
  s.body = body;
  s.context = context;
  if (present > 1) s.team->offer(s, s.helpers);
  s.run_body(0);
  for (int worker = present; worker < workers; ++worker) s.run_body(worker);  // for whom there was no helper
  if (present > 1) {
    if (latecomers == Latecomers::kLeftOut) s.team->withdraw(s.helpers);
    s.prefetch.follow(s.next_stream, 0, s.next_workers);
    s.team->wait(s.helpers, s.prefetch);
    s.team->release(s.helpers);
  }
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
    s.dealt[static_cast<size_t>(worker)].left.store(static_cast<uint64_t>(own.end << 32 | own.begin), std::memory_order_relaxed);
  }
  s.next_block.store(dealt_pieces(stream, workers), std::memory_order_relaxed);
  s.stream_count = stream.count;
  s.stream_block = pieces_per_worker(stream);
  s.stream_shares = 2 * workers;
  s.next_stream = s.stream_order.next(stream);
  s.next_workers = static_cast<int>(std::min<int64_t>(threads_, std::max<int64_t>(1, s.next_stream.count)));
}

Pieces ThreadPool::take(int worker, int workers) {
  Pieces pieces = state_->take_dealt(worker, false);
  if (pieces.begin == pieces.end) pieces = state_->take_rest();
  for (int step = 1; step < workers && pieces.begin == pieces.end; ++step)
    pieces = state_->take_dealt((worker + step) % workers, true);
  return pieces;
}

void* ThreadPool::scratch(int worker, size_t bytes) { return state_->scratch[static_cast<size_t>(worker)].reserve(bytes); }

void* ThreadPool::extend(int worker, size_t bytes) { return state_->extended[static_cast<size_t>(worker)].extend(bytes); }

void* ThreadPool::shared_scratch(int slot, size_t bytes) { return state_->shared[slot].reserve(bytes); }

int64_t ThreadPool::overflow() const { return state_->overflow.load(std::memory_order_relaxed); }

void ThreadPool::add_overflow(int64_t values) { state_->overflow.fetch_add(values, std::memory_order_relaxed); }

void ThreadPool::lock() {
  state_->lease.lock();
  if (state_->team) state_->team->enter();
}

void ThreadPool::unlock() {
  if (state_->team) state_->team->leave();
  state_->lease.unlock();
}

}  // namespace edge

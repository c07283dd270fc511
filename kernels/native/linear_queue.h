// How the workers of a linear share its rows and panels, and wait for each other.
#pragma once

#include <sched.h>

#include "linear_plan.h"

namespace edge {
namespace EDGE_VARIANT {

// Items of one row block, which its owner and then others take in ascending order.
struct alignas(64) BlockQueue {
  int64_t next;
};

// body(block, item) for every item of every block, `count` blocks of `items` each: those from block `first` on, then the
// others, each item by whoever takes it.
template <class Body>
void take_all(BlockQueue* queues, int64_t count, int64_t items, int64_t first, Body&& body) {
  for (int64_t i = 0; i < count; ++i) {
    const int64_t block = (first + i) % count;
    for (int64_t item; (item = __atomic_fetch_add(&queues[block].next, 1, __ATOMIC_RELAXED)) < items;) body(block, item);
  }
}

// Counts up when it goes, also by an exception: whoever waits for the count is let go.
class CountWhenDone {
 public:
  CountWhenDone(int64_t* counter, int64_t amount) : counter_(counter), amount_(amount) {}
  ~CountWhenDone() { __atomic_fetch_add(counter_, amount_, __ATOMIC_RELEASE); }

 private:
  int64_t* counter_;
  int64_t amount_;
};

EDGE_INLINE void wait_for_count(const int64_t* counter, int64_t wanted) {
  constexpr int kSpins = 20000;  // then someone else may need the core
  for (int spins = 0; __atomic_load_n(counter, __ATOMIC_ACQUIRE) < wanted; ++spins) {
    if (spins >= kSpins) sched_yield();
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
  }
}

static void collect_entries(ThreadPool& pool, const ResidualEntry** worker_entries) {
  for (int worker = 0; worker < pool.threads(); ++worker)
    worker_entries[worker] = static_cast<const ResidualEntry*>(pool.extend(worker, 0));
}

}  // namespace EDGE_VARIANT
}  // namespace edge

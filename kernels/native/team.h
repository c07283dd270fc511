// Team: the threads that all pools of one size and the same CPUs share in a process.
//
// A pool that works alone has all of them. Pools that work at the same time each have a part, anew for every region: callers
// and helpers together are no more than the team's threads. Nobody waits for another pool, because a caller always works
// himself and does alone what he finds no helpers for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "prefetch.h"

namespace edge {

// What a pool gives its helpers.
class Job {
 public:
  // Runs on a helper and throws nothing; `prefetch` then follows what this worker probably does next.
  virtual void work(int worker, Prefetch& prefetch) = 0;

 protected:
  ~Job() = default;
};

// The helpers of one caller, in order: helpers[i] is worker i + 1.
using Helpers = std::vector<int>;

class Team {
 public:
  // What makes two teams the same. `cpus` is null in a team that is not bound: its threads run where their maker may.
  struct Key {
    Key(int threads, const int* cpus);
    bool operator==(const Key& other) const { return threads == other.threads && bound == other.bound && cpus == other.cpus; }

    int threads;
    bool bound;
    std::vector<int> cpus;  // of each worker; of a team that is not bound: those that its maker may use
  };

  // `threads`, the caller's among them. Throws what std::thread throws.
  explicit Team(const Key& key);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  // Around everything that a pool's caller does with the team.
  void enter() { callers_.fetch_add(1, std::memory_order_relaxed); }
  void leave() { callers_.fetch_sub(1, std::memory_order_relaxed); }

  // Up to `wanted` helpers, until `release`.
  void take(int wanted, Helpers& helpers);
  void release(const Helpers& helpers);

  // `job` stays until `wait` is over.
  void offer(Job& job, const Helpers& helpers);
  // Who has not begun need not.
  void withdraw(const Helpers& helpers);
  void wait(const Helpers& helpers, Prefetch& prefetch);

 private:
  // Where a helper finds the job of the caller who took him, on a cache line of its own.
  struct alignas(64) Mailbox {
    enum : uint32_t { kIdle, kOffered, kWorking };

    // The caller offers the job and may withdraw it; the helper takes it and, when done, is idle again.
    std::atomic<uint32_t> state{kIdle};
    std::atomic<bool> asleep{false};
    std::atomic<bool> taken{false};  // by a caller, who alone may offer
    Job* job = nullptr;
    int worker = 0;
  };

  void help(int helper, int cpu);
  bool wait_for_offer(Mailbox& mailbox, Prefetch& prefetch);
  void stop();

  const int threads_;
  int spin_microseconds_;
  std::unique_ptr<Mailbox[]> mailboxes_;  // [threads], the first is nobody's

  alignas(64) std::atomic<int> callers_{0};
  std::atomic<int> helping_{0};  // helpers that are taken
  std::atomic<int> callers_asleep_{0};
  std::atomic<bool> stop_{false};

  std::mutex sleep_mutex_;  // guards the two condition variables, never held while working
  std::condition_variable work_ready_;
  std::condition_variable work_done_;
  std::vector<std::thread> helpers_;
};

}  // namespace edge

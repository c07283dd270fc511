#include "team.h"

#include <algorithm>
#include <chrono>
#include <fstream>

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

// CPUs that the calling thread may run on, and so what it starts; none where the system does not tell.
std::vector<int> own_cpus() {
  std::vector<int> cpus;
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
#endif
  return cpus;
}

// CPUs this process may keep busy: its affinity, bounded by the cgroup's quota.
int available_cpus() {
  const std::vector<int> own = own_cpus();
  int cpus = own.empty() ? static_cast<int>(std::thread::hardware_concurrency()) : static_cast<int>(own.size());
#if defined(__linux__)
  int64_t quota = 0, period = 0;  // "max 100000": no quota
  if (std::ifstream("/sys/fs/cgroup/cpu.max") >> quota >> period && period > 0)
    cpus = static_cast<int>(std::min<int64_t>(cpus, quota / period));
#endif
  return cpus;
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

}  // namespace

Team::Key::Key(int count, const int* bound_to)
    : threads(count), bound(bound_to != nullptr), cpus(bound ? std::vector<int>(bound_to, bound_to + count) : own_cpus()) {}

Team::Team(const Key& key)
    : threads_(key.threads),
      // More threads than CPUs: spinning would only keep the thread that has the work from running.
      spin_microseconds_(key.threads > available_cpus() ? 0 : ThreadPool::kSpinMicroseconds),
      mailboxes_(std::make_unique<Mailbox[]>(static_cast<size_t>(key.threads))) {
  try {
    for (int helper = 1; helper < threads_; ++helper) {
      const int cpu = key.bound ? key.cpus[static_cast<size_t>(helper)] : -1;
      helpers_.emplace_back([this, helper, cpu] { help(helper, cpu); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

Team::~Team() { stop(); }

void Team::stop() {
  {
    std::lock_guard<std::mutex> guard(sleep_mutex_);
    stop_.store(true);
    work_ready_.notify_all();
  }
  for (std::thread& helper : helpers_) helper.join();
}

// False: the team ends.
bool Team::wait_for_offer(Mailbox& mailbox, Prefetch& prefetch) {
  const auto called = [&] {
    prefetch.step();
    return mailbox.state.load(std::memory_order_relaxed) == Mailbox::kOffered || stop_.load(std::memory_order_relaxed);
  };
  if (!spin_until(spin_microseconds_, called)) {
    std::unique_lock<std::mutex> guard(sleep_mutex_);
    mailbox.asleep.store(true);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // an offer is seen here, or the sleeper there
    work_ready_.wait(guard, called);
    mailbox.asleep.store(false);
  }
  return !stop_.load();
}

void Team::help(int helper, int cpu) {
  if (cpu >= 0) bind_to_cpu(cpu);
  Mailbox& mailbox = mailboxes_[static_cast<size_t>(helper)];
  Prefetch prefetch;
  while (wait_for_offer(mailbox, prefetch)) {
    uint32_t offered = Mailbox::kOffered;
    if (!mailbox.state.compare_exchange_strong(offered, Mailbox::kWorking, std::memory_order_acquire)) continue;
    mailbox.job->work(mailbox.worker, prefetch);
    mailbox.state.exchange(Mailbox::kIdle);  // from here the job and its pool may be gone
    if (callers_asleep_.load() > 0) {
      std::lock_guard<std::mutex> guard(sleep_mutex_);
      work_done_.notify_all();
    }
  }
}

void Team::take(int wanted, Helpers& helpers) {
  helpers.clear();
  const int callers = std::max(1, callers_.load(std::memory_order_relaxed));
  const int most = std::min(wanted, (threads_ + callers - 1) / callers - 1);
  const int free = threads_ - callers - helping_.load(std::memory_order_relaxed);  // others may take them meanwhile: no harm
  for (int helper = 1; helper < threads_ && static_cast<int>(helpers.size()) < std::min(most, free); ++helper)
    if (!mailboxes_[static_cast<size_t>(helper)].taken.exchange(true, std::memory_order_acquire)) helpers.push_back(helper);
  if (!helpers.empty()) helping_.fetch_add(static_cast<int>(helpers.size()), std::memory_order_relaxed);
}

void Team::release(const Helpers& helpers) {
  for (int helper : helpers) mailboxes_[static_cast<size_t>(helper)].taken.store(false, std::memory_order_release);
  if (!helpers.empty()) helping_.fetch_sub(static_cast<int>(helpers.size()), std::memory_order_relaxed);
}

void Team::offer(Job& job, const Helpers& helpers) {
  int worker = 0;
  for (int helper : helpers) {
    Mailbox& mailbox = mailboxes_[static_cast<size_t>(helper)];
    mailbox.job = &job;
    mailbox.worker = ++worker;
    mailbox.state.store(Mailbox::kOffered, std::memory_order_release);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // see wait_for_offer
  for (int helper : helpers) {
    if (!mailboxes_[static_cast<size_t>(helper)].asleep.load(std::memory_order_relaxed)) continue;
    std::lock_guard<std::mutex> guard(sleep_mutex_);
    return work_ready_.notify_all();
  }
}

void Team::withdraw(const Helpers& helpers) {
  for (int helper : helpers) {
    uint32_t offered = Mailbox::kOffered;
    mailboxes_[static_cast<size_t>(helper)].state.compare_exchange_strong(offered, Mailbox::kIdle, std::memory_order_relaxed);
  }
}

void Team::wait(const Helpers& helpers, Prefetch& prefetch) {
  size_t waiting = 0;  // the first that may not be idle
  const auto done = [&] {
    prefetch.step();
    while (waiting < helpers.size() && mailboxes_[static_cast<size_t>(helpers[waiting])].state.load() == Mailbox::kIdle) ++waiting;
    return waiting >= helpers.size();
  };
  if (spin_until(spin_microseconds_, done)) return;
  std::unique_lock<std::mutex> guard(sleep_mutex_);
  callers_asleep_.fetch_add(1);
  work_done_.wait(guard, done);
  callers_asleep_.fetch_sub(1);
}

}  // namespace edge

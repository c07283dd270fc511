// Ranges of files read in the background: several requests in flight, in the order in which the ranges were asked for (the
// urgent ones before all others) and without a pause between two of them, and the CRC-32C of every piece taken by the
// thread that read it.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "checksum.h"

namespace edge {

// A descriptor of our own: whoever closes the file meanwhile must not make us read another.
struct Descriptor {
  explicit Descriptor(int file) : fd(fcntl(file, F_DUPFD_CLOEXEC, 0)) {}
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  const int fd;
};

// One range: where it goes, what its pieces are, and what came of it.  `out` belongs to the readers until `finished`.
struct RangeJob {
  RangeJob(std::shared_ptr<const Descriptor> from, uint8_t* to, int64_t count, int64_t at, std::vector<int64_t> piece_ends)
      : file(std::move(from)), out(to), bytes(count), offset(at), ends(std::move(piece_ends)) {
    if (file->fd < 0) failed_at = 0;
  }
  RangeJob(const RangeJob&) = delete;
  RangeJob& operator=(const RangeJob&) = delete;

  std::shared_ptr<const Descriptor> file;
  uint8_t* out;
  int64_t bytes, offset;
  std::vector<int64_t> ends;  // of the pieces, ascending
  int64_t asked = 0;          // bytes that a reader took on
  int64_t running = 0;        // requests that are not back
  int64_t failed_at = INT64_MAX;
  struct Part {
    int64_t begin;
    size_t piece;
    int64_t bytes;
    uint32_t crc;
  };
  std::vector<Part> parts;

  bool finished() const { return running == 0 && (asked == bytes || failed()); }
  bool failed() const { return failed_at != INT64_MAX; }
  int64_t there() const { return std::min(failed_at, bytes); }

  // CRC-32C of every piece; of a range that failed, only pieces that end before `there` count.
  std::vector<uint32_t> checksums() {
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
    std::vector<uint32_t> crcs(ends.size(), 0);
    for (const Part& part : parts) {
      uint32_t& crc = crcs[part.piece];
      crc = crc == 0 ? part.crc : crc::join(crc, part.crc, static_cast<uint64_t>(part.bytes));
    }
    return crcs;
  }
};

// The threads that read, and what they were asked for.
class RangeQueue {
 public:
  RangeQueue(int threads, int64_t request_bytes) : request_bytes_(request_bytes) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  // Every range must be finished.
  ~RangeQueue() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    wanted_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  RangeQueue(const RangeQueue&) = delete;
  RangeQueue& operator=(const RangeQueue&) = delete;

  void start(std::shared_ptr<RangeJob> job, bool urgent) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (job->finished()) return;
      (urgent ? urgent_ : queue_).push_back(std::move(job));
    }
    wanted_.notify_one();  // who comes wakes the next, so that the caller need not wait for all to be woken
  }

  void wait(const RangeJob& job) {
    std::unique_lock<std::mutex> lock(mutex_);
    finished_.wait(lock, [&] { return job.finished(); });
  }

  // Reads what is left of a range before all that is not urgent.
  void hurry(const std::shared_ptr<RangeJob>& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (remove(queue_, job)) urgent_.push_back(job);
  }

  // Reads no more of a range than what readers took on; what is left counts as failed.
  void drop(const std::shared_ptr<RangeJob>& job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool waits = remove(queue_, job), hurries = remove(urgent_, job);
    if (!waits && !hurries) return;
    job->failed_at = std::min(job->failed_at, job->asked);
    if (job->finished()) finished_.notify_all();
  }

  // Bytes read since it was made. Any thread may ask.
  int64_t read_bytes() const { return read_.load(std::memory_order_relaxed); }

 private:
  static constexpr int64_t kPage = 4096;

  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      wanted_.wait(lock, [&] { return closing_ || !urgent_.empty() || !queue_.empty(); });
      if (closing_) return;
      std::deque<std::shared_ptr<RangeJob>>& queue = urgent_.empty() ? queue_ : urgent_;
      const std::shared_ptr<RangeJob> job = queue.front();
      const int64_t begin = job->asked, end = std::min(begin + request_bytes_, job->bytes);
      job->asked = end;
      ++job->running;
      if (end == job->bytes) queue.pop_front();
      const bool more = !urgent_.empty() || !queue_.empty();
      lock.unlock();
      if (more) wanted_.notify_one();
      const bool good = fill(*job, begin, end);
      if (good) read_.fetch_add(end - begin, std::memory_order_relaxed);
      const std::vector<RangeJob::Part> parts = good ? check(*job, begin, end) : std::vector<RangeJob::Part>();
      lock.lock();
      --job->running;
      job->parts.insert(job->parts.end(), parts.begin(), parts.end());
      if (!good) give_up(job, begin);
      if (job->finished()) finished_.notify_all();
    }
  }

  // Ask for no more of a range.
  void give_up(const std::shared_ptr<RangeJob>& job, int64_t begin) {
    job->failed_at = std::min(job->failed_at, begin);
    remove(urgent_, job);
    remove(queue_, job);
  }

  static bool remove(std::deque<std::shared_ptr<RangeJob>>& queue, const std::shared_ptr<RangeJob>& job) {
    const auto left = std::remove(queue.begin(), queue.end(), job);
    const bool found = left != queue.end();
    queue.erase(left, queue.end());
    return found;
  }

  // False when the file ends or the system refuses.  A short direct read goes on at the last whole page.
  static bool fill(const RangeJob& job, int64_t begin, int64_t end) {
    while (begin < end) {
      const ssize_t got = pread(job.file->fd, job.out + begin, static_cast<size_t>(end - begin), job.offset + begin);
      if (got < 0 && errno == EINTR) continue;
      if (got < std::min(kPage, end - begin)) return false;
      begin += got == end - begin ? got : got / kPage * kPage;
    }
    return true;
  }

  static std::vector<RangeJob::Part> check(const RangeJob& job, int64_t begin, int64_t end) {
    std::vector<RangeJob::Part> parts;
    auto piece = static_cast<size_t>(std::upper_bound(job.ends.begin(), job.ends.end(), begin) - job.ends.begin());
    for (; begin < end && piece < job.ends.size(); ++piece) {
      const int64_t stop = std::min(end, job.ends[piece]);
      parts.push_back({begin, piece, stop - begin, crc32c(job.out + begin, stop - begin)});
      begin = stop;
    }
    return parts;
  }

  const int64_t request_bytes_;
  std::atomic<int64_t> read_{0};
  std::vector<std::thread> threads_;
  std::mutex mutex_;  // guards all below, and the progress of every range
  std::condition_variable wanted_, finished_;
  std::deque<std::shared_ptr<RangeJob>> urgent_, queue_;
  bool closing_ = false;
};

// A child of a fork has none of the threads, and perhaps a lock that one of them held: there nothing is read, every range is
// given back without its bytes, and the queue stays as it is, for nobody can end it.
class RangeReader {
 public:
  // Each of the threads has one request of `request_bytes` (a multiple of the page) in flight.
  RangeReader(int threads, int64_t request_bytes) : queue_(new RangeQueue(threads, request_bytes)) {}
  ~RangeReader() {
    if (!forked()) delete queue_;
  }
  RangeReader(const RangeReader&) = delete;
  RangeReader& operator=(const RangeReader&) = delete;

  // Whether this process is not the one that has the threads.
  bool forked() const { return getpid() != owner_; }

  void start(std::shared_ptr<RangeJob> job, bool urgent) {
    if (!forked()) queue_->start(std::move(job), urgent);
  }

  // In a child nobody writes to the range, whose progress means nothing.
  void wait(const RangeJob& job) {
    if (!forked()) queue_->wait(job);
  }

  void hurry(const std::shared_ptr<RangeJob>& job) {
    if (!forked()) queue_->hurry(job);
  }
  void drop(const std::shared_ptr<RangeJob>& job) {
    if (!forked()) queue_->drop(job);
  }

  int64_t read_bytes() const { return queue_->read_bytes(); }

 private:
  const pid_t owner_ = getpid();
  RangeQueue* const queue_;
};

}  // namespace edge

// What a worker works on next of a stream, fetched into its cache while it waits.
#pragma once

#include <stdint.h>

#include <algorithm>

#include "pool.h"

namespace edge {

// The part of a stream that is dealt out before the call begins: more than is fetched in the time between two calls, and
// little enough for an L2 of 512 KiB.
constexpr int64_t kDealtBytes = 448 << 10;  // to each worker

inline int64_t pieces_per_worker(const Stream& stream) {
  return std::max<int64_t>(1, kDealtBytes / std::max<int64_t>(1, stream.piece_bytes));
}

inline int64_t dealt_pieces(const Stream& stream, int workers) {
  return std::min(stream.count, pieces_per_worker(stream) * workers);
}

inline Pieces dealt_to(const Stream& stream, int worker, int workers) {
  const int64_t dealt = dealt_pieces(stream, workers);
  return {dealt * worker / workers, dealt * (worker + 1) / workers};
}

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

}  // namespace edge

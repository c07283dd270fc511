// Memory for large arrays that is handed on to the next one in place of going back to the system, which would have to clear
// each of its pages again. What is in use and what waits together never exceed the most that was in use at once.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <unordered_map>

namespace edge {

class Recycler {
 public:
  ~Recycler() { stop(); }

  void* allocate(size_t bytes) {
    if (bytes < kSmallest) return malloc(bytes);
    const size_t size = whole_pages(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    const Block block = take(size);
    if (!block.start) return nullptr;
    used_[block.start] = {block.start, block.size, size};
    in_use_ += size;
    most_in_use_ = std::max(most_in_use_, in_use_);
    return block.start;
  }

  void* allocate_zeros(size_t count, size_t size) {
    if (size && count > SIZE_MAX / size) return nullptr;
    if (count * size < kSmallest) return calloc(count, size);
    void* start = allocate(count * size);
    if (start) memset(start, 0, count * size);
    return start;
  }

  void* reallocate(void* start, size_t bytes) {
    const size_t held = bytes_of(start);
    if (!held) return realloc(start, bytes);
    void* moved = allocate(bytes);
    if (!moved) return nullptr;
    memcpy(moved, start, std::min(bytes, held));
    release(start);
    return moved;
  }

  void release(void* start) {
    if (!may_be_ours(start)) return free(start);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = used_.find(start);
    if (found == used_.end()) return free(start);
    const Block block = found->second;
    used_.erase(found);
    in_use_ -= block.used;
    if (stopped_)
      unmap(block);
    else
      idle_.push_front(block);
  }

  // Gives back what waits; from now on everything goes back at once.
  void stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopped_ = true;
    for (const Block& block : idle_) unmap(block);
    idle_.clear();
  }

 private:
  static constexpr size_t kSmallest = 64 << 10;  // less is malloc's
  static constexpr size_t kPage = 4096;
  static constexpr size_t kHuge = 4 << 20;  // worth pages of 2 MiB

  struct Block {
    void* start = nullptr;
    size_t size = 0;  // mapped
    size_t used = 0;  // asked for, in whole pages
  };

  static size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
  static bool may_be_ours(const void* start) { return reinterpret_cast<size_t>(start) % kPage == 0; }

  size_t bytes_of(void* start) {
    if (!start || !may_be_ours(start)) return 0;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = used_.find(start);
    return found == used_.end() ? 0 : found->second.used;
  }

  // The smallest block that waits and is not more than twice too large; a new one where there is none.
  Block take(size_t size) {
    auto best = idle_.end();
    for (auto it = idle_.begin(); it != idle_.end(); ++it)
      if (it->size >= size && it->size <= 2 * size && (best == idle_.end() || it->size < best->size)) best = it;
    if (best != idle_.end()) {
      const Block block = *best;
      idle_.erase(best);
      return block;
    }
    const size_t limit = std::max(most_in_use_, in_use_ + size);
    while (!idle_.empty() && mapped_ + size > limit) {  // those that waited longest go first
      unmap(idle_.back());
      idle_.pop_back();
    }
    if (mapped_ + size > limit) give_back_slack();
    return map(size);
  }

  // What blocks in use have behind what was asked for.
  void give_back_slack() {
    for (auto& [start, block] : used_) {
      if (block.size == block.used) continue;
      munmap(static_cast<char*>(start) + block.used, block.size - block.used);
      mapped_ -= block.size - block.used;
      block.size = block.used;
    }
  }

  Block map(size_t size) {
    void* start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) return {};
#if defined(MADV_HUGEPAGE)
    if (size >= kHuge) madvise(start, size, MADV_HUGEPAGE);
#endif
    mapped_ += size;
    return {start, size, 0};
  }

  void unmap(const Block& block) {
    munmap(block.start, block.size);
    mapped_ -= block.size;
  }

  std::mutex mutex_;
  std::unordered_map<void*, Block> used_;
  std::list<Block> idle_;  // the last that came first
  size_t in_use_ = 0, most_in_use_ = 0, mapped_ = 0;
  bool stopped_ = false;
};

}  // namespace edge

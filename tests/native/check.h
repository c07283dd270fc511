// What kernels_test.cpp is made of: memory with an edge, numbers that are the same on every machine, and the comparison of
// all variants with the portable one.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "checksum.h"
#include "isa.h"

namespace edge_test {

// n values, all `fill`, that end where a page begins which nobody may touch: reading or writing past them is a fault.
// Aligned for T and no more.
template <class T>
class Array {
 public:
  explicit Array(int64_t n = 0, T fill = T{}) : size_(n) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), bytes = static_cast<size_t>(n) * sizeof(T);
    mapped_ = (bytes + page - 1) / page * page + page;
    base_ = static_cast<char*>(mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + mapped_ - page, page, PROT_NONE) != 0) throw std::runtime_error("mmap");
    data_ = reinterpret_cast<T*>(base_ + mapped_ - page - bytes);
    std::fill(begin(), end(), fill);
  }
  Array(const Array& other) : Array(other.size_) { std::copy(other.begin(), other.end(), begin()); }
  Array& operator=(Array other) {
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Array() { munmap(base_, mapped_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }
  int64_t size() const { return size_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  char* base_;
  size_t mapped_;
  T* data_;
  int64_t size_;
};

// SplitMix64. Floats are made of integers by exact operations, so that every machine gets the same.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u) {}

  uint64_t bits() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  int64_t between(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(int percent) { return between(0, 99) < percent; }
  float unit() { return static_cast<float>(between(-(1 << 23), 1 << 23)) * 0x1p-23f; }  // [-1, 1]
  uint16_t half() { return static_cast<uint16_t>(between(0, 1) << 15 | between(8, 18) << 10 | between(0, 1023)); }

  Array<float> floats(int64_t n, float scale) {
    Array<float> out(n);
    for (float& x : out) x = unit() * scale;
    return out;
  }

 private:
  uint64_t state_;
};

// What a run has to show, byte by byte.
class Result {
 public:
  template <class Values>
  void add(const Values& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    bytes_.insert(bytes_.end(), bytes, bytes + static_cast<size_t>(values.size()) * sizeof(*values.data()));
  }
  void add_flag(bool flag) { bytes_.push_back(flag); }
  // What must hold whatever the variant.
  void expect(bool holds, const char* what) {
    if (!holds && broken_.empty()) broken_ = what;
  }

  const std::vector<uint8_t>& bytes() const { return bytes_; }
  const std::string& broken() const { return broken_; }

 private:
  std::vector<uint8_t> bytes_;
  std::string broken_;
};

class Report {
 public:
  // Runs a case on every variant, with `emulated` also on those that this CPU lacks and that run without their instructions; the
  // first one, portable, says what is right.
  void compare(const std::string& name, const std::function<void(const edge::KernelTable&, Result&)>& run, bool emulated = false) {
    ++cases_;
    std::vector<uint8_t> expected;
    std::vector<std::string> variants = edge::isa_variants();
    if (emulated) {
      const std::vector<std::string> more = edge::emulated_isas();
      variants.insert(variants.end(), more.begin(), more.end());
    }
    for (const std::string& variant : variants) {
      edge::use_isa(variant);
      Result result;
      run(edge::kernels(), result);
      if (!result.broken().empty()) fail(name, variant, result.broken());
      if (expected.empty()) {
        expected = result.bytes();
        const uint32_t crc = edge::crc32c(expected.data(), static_cast<int64_t>(expected.size()));
        digest_ = edge::crc::join(digest_, crc, expected.size());
      } else if (result.bytes() != expected) {
        fail(name, variant, describe_difference(result.bytes(), expected));
      }
    }
  }

  int cases() const { return cases_; }
  int failures() const { return failures_; }
  uint32_t digest() const { return digest_; }  // of all that the portable variant gave

 private:
  static std::string describe_difference(const std::vector<uint8_t>& found, const std::vector<uint8_t>& expected) {
    if (found.size() != expected.size()) return "another number of bytes than portable";
    size_t different = 0, first = expected.size();
    for (size_t i = expected.size(); i-- > 0;)
      if (found[i] != expected[i]) first = i, ++different;
    return std::to_string(different) + " of " + std::to_string(expected.size()) + " bytes differ from portable, first " +
           std::to_string(first);
  }

  void fail(const std::string& name, const std::string& variant, const std::string& what) {
    ++failures_;
    printf("FAILED %s on %s: %s\n", name.c_str(), variant.c_str(), what.c_str());
  }

  int cases_ = 0, failures_ = 0;
  uint32_t digest_ = 0;
};

}  // namespace edge_test

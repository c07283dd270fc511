// A range that Python asked for, and may ask for again: the array it goes into, and what reads it.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bind.h"
#include "range_reader.h"

namespace edge {

// Keeps the array and the reader until the range is read. One caller at a time; of the methods none needs the interpreter.
class Reading {
 public:
  Reading(nb::object reader, nb::object out, std::shared_ptr<RangeJob> job, bool urgent)
      : reader_(std::move(reader)), out_(std::move(out)), owner_(nb::cast<RangeReader&>(reader_)), job_(std::move(job)),
        urgent_(urgent) {
    owner_.start(job_, urgent_);
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() {
    const ReleasedGil released;
    wait();
  }

  void wait() const { owner_.wait(*job_); }

  // What is left of it comes before all that is not urgent.
  void hurry() const { owner_.hurry(job_); }
  // What no reader took on yet is not read any more.
  void drop() const { owner_.drop(job_); }

  // Reads the range once more; returns at once, or when the reading before has ended.
  void again() {
    wait();
    job_ = std::make_shared<RangeJob>(job_->file, job_->out, job_->bytes, job_->offset, job_->ends);
    owner_.start(job_, urgent_);
  }

  // How many of the first bytes are there, once they are.
  int64_t there() const { return owner_.forked() ? 0 : job_->there(); }
  // Of every piece, after `wait`; of them, only those before that end mean anything.
  std::vector<uint32_t> checksums() const {
    return owner_.forked() ? std::vector<uint32_t>(pieces()) : job_->checksums();
  }
  // Waits, and says whether all bytes are there and have these checksums.
  bool whole(const std::vector<uint32_t>& expected) const {
    wait();
    return there() == job_->bytes && checksums() == expected;
  }

  size_t pieces() const { return job_->ends.size(); }
  int64_t bytes() const { return job_->bytes; }
  const std::shared_ptr<const Descriptor>& file() const { return job_->file; }

 private:
  nb::object reader_, out_;
  RangeReader& owner_;
  std::shared_ptr<RangeJob> job_;
  bool urgent_;
};

}  // namespace edge

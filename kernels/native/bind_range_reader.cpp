// Bindings of range_reader.h.
#include "bind.h"
#include "range_reader.h"

namespace edge {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

void make_reader(RangeReader* self, int threads, int64_t request_bytes) {
  if (threads < 1 || threads > kMaxThreads)
    refuse("`threads` must be in 1.." + std::to_string(kMaxThreads) + "; got `" + std::to_string(threads) + "`");
  if (request_bytes < 4096 || request_bytes % 4096 != 0)
    refuse("`request_bytes` must be a multiple of 4096; got `" + std::to_string(request_bytes) + "`");
  new (self) RangeReader(threads, request_bytes);
}

// Keeps the array and the reader until the range is read.
struct Reading {
  nb::object reader, out;
  std::shared_ptr<RangeJob> job;

  Reading(nb::object reader, nb::object out, std::shared_ptr<RangeJob> job)
      : reader(std::move(reader)), out(std::move(out)), job(std::move(job)) {}
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  ~Reading() { finish(); }

  void finish() const {
    auto& owner = nb::cast<RangeReader&>(reader);
    ReleasedGil released;
    owner.wait(*job);
  }
};

Reading* start(nb::object self, int fd, nb::object out, int64_t offset, nb::handle ends_arg, bool urgent) {
  const auto to = write<uint8_t, 1>(out, "out");
  const auto ends = read<int64_t, 1>(ends_arg, "ends");
  const int64_t bytes = to.shape[0], pieces = ends.shape[0];
  for (int64_t i = 0; i < pieces; ++i)
    if (ends.data[i] < (i ? ends.data[i - 1] : 0) || ends.data[i] > bytes)
      refuse("`ends` must ascend in 0.." + std::to_string(bytes) + "; got `" + std::to_string(ends.data[i]) + "`");
  if (offset < 0) refuse("`offset` must not be negative; got `" + std::to_string(offset) + "`");
  auto job = std::make_shared<RangeJob>(fd, to.data, bytes, offset, std::vector<int64_t>(ends.data, ends.data + pieces));
  nb::cast<RangeReader&>(self).start(job, urgent);
  return new Reading(std::move(self), std::move(out), std::move(job));
}

nb::tuple wait_for(const Reading& reading) {
  reading.finish();
  const bool forked = nb::cast<RangeReader&>(reading.reader).forked();
  const std::vector<uint32_t> crcs = forked ? std::vector<uint32_t>(reading.job->ends.size()) : reading.job->checksums();
  nb::object out = new_array<uint32_t, 1>({static_cast<int64_t>(crcs.size())});
  std::copy(crcs.begin(), crcs.end(), data_of<uint32_t, 1>(out));
  return nb::make_tuple(forked ? 0 : reading.job->there(), out);
}

}  // namespace

void bind_range_reader(nb::module_& module) {
  nb::class_<Reading>(module, "Reading").def("wait", &wait_for);
  nb::class_<RangeReader>(module, "RangeReader")
      .def("__init__", &make_reader, nb::arg("threads"), nb::arg("request_bytes"))
      .def("start", &start, nb::arg("fd"), nb::arg("out"), nb::arg("offset"), nb::arg("ends"),
           nb::arg("urgent") = false)
      .def_prop_ro("read_bytes", &RangeReader::read_bytes);
}

}  // namespace edge

// Bindings of range_reader.h.
#include "reading.h"

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

Reading* start(nb::object self, int fd, nb::object out, int64_t offset, nb::handle ends_arg, bool urgent,
               const Reading* beside) {
  const auto to = write<uint8_t, 1>(out, "out");
  const auto ends = read<int64_t, 1>(ends_arg, "ends");
  const int64_t bytes = to.shape[0], pieces = ends.shape[0];
  for (int64_t i = 0; i < pieces; ++i)
    if (ends.data[i] < (i ? ends.data[i - 1] : 0) || ends.data[i] > bytes)
      refuse("`ends` must ascend in 0.." + std::to_string(bytes) + "; got `" + std::to_string(ends.data[i]) + "`");
  if (offset < 0) refuse("`offset` must not be negative; got `" + std::to_string(offset) + "`");
  auto file = beside ? beside->file() : std::make_shared<const Descriptor>(fd);
  auto job = std::make_shared<RangeJob>(std::move(file), to.data, bytes, offset,
                                        std::vector<int64_t>(ends.data, ends.data + pieces));
  return new Reading(std::move(self), std::move(out), std::move(job), urgent);
}

void again(Reading& reading) {
  const ReleasedGil released;
  reading.again();
}

nb::tuple wait_for(const Reading& reading) {
  {
    const ReleasedGil released;
    reading.wait();
  }
  const std::vector<uint32_t> crcs = reading.checksums();
  nb::object out = new_array<uint32_t, 1>({static_cast<int64_t>(crcs.size())});
  std::copy(crcs.begin(), crcs.end(), data_of<uint32_t, 1>(out));
  return nb::make_tuple(reading.there(), out);
}

}  // namespace

void bind_range_reader(nb::module_& module) {
  nb::class_<Reading>(module, "Reading")
      .def("wait", &wait_for)
      .def("again", &again)
      .def("hurry", &Reading::hurry)
      .def("drop", &Reading::drop)
      .def_prop_ro("nbytes", &Reading::bytes);
  nb::class_<RangeReader>(module, "RangeReader")
      .def("__init__", &make_reader, nb::arg("threads"), nb::arg("request_bytes"))
      .def("start", &start, nb::arg("fd"), nb::arg("out"), nb::arg("offset"), nb::arg("ends"),
           nb::arg("urgent") = false, nb::arg("beside") = nb::none())
      .def_prop_ro("read_bytes", &RangeReader::read_bytes);
}

}  // namespace edge

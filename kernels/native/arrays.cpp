#include "arrays.h"

#include <nanobind/stl/string.h>

namespace edge::detail {
namespace {

std::string shape_text(const int64_t* shape, int dimensions) {
  std::string text = "[";
  for (int d = 0; d < dimensions; ++d) {
    if (d > 0) text += ", ";
    text += shape[d] < 0 ? "*" : std::to_string(shape[d]);
  }
  return text + "]";
}

}  // namespace

std::string describe(nb::handle value) {
  PyObject* object = value.ptr();
  if (!PyArray_Check(object)) return nb::cast<std::string>(value.type().attr("__name__"));
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  int64_t shape[NPY_MAXDIMS];
  for (int d = 0; d < PyArray_NDIM(array); ++d) shape[d] = PyArray_DIM(array, d);
  std::string text = nb::str(nb::handle(reinterpret_cast<PyObject*>(PyArray_DESCR(array)))).c_str();
  text += shape_text(shape, PyArray_NDIM(array));
  if (!PyArray_IS_C_CONTIGUOUS(array)) text += ", not contiguous";
  if (!PyArray_ISALIGNED(array)) text += ", not aligned";
  if (!PyArray_ISWRITEABLE(array)) text += ", read-only";
  return text;
}

void refuse_array(nb::handle value, const char* name, const char* type, int dimensions, const char* more) {
  throw nb::value_error(("`" + std::string(name) + "` must be a " + type + " array of " + std::to_string(dimensions) +
                         (dimensions == 1 ? " axis" : " axes") + more + "; got `" + describe(value) + "`")
                            .c_str());
}

void refuse_shape(const int64_t* shape, int dimensions, const char* name, const int64_t* wanted) {
  throw nb::value_error(("`" + std::string(name) + "` must have shape " + shape_text(wanted, dimensions) + "; got `" +
                         shape_text(shape, dimensions) + "`")
                            .c_str());
}

}  // namespace edge::detail

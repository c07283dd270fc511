// NumPy arrays at the border of the native library.
//
// Array arguments arrive as nb::handle and are read through the NumPy C API: some 10 ns each instead of a DLPack or
// buffer-protocol round trip, and a wrong one raises ValueError with its name, the wanted type and shape and the given.
//   const auto x = read<float, 2>(x_arg, "x");                       // C-contiguous
//   const auto q = strided<float, 3>(q_arg, "q");                    // only the last axis contiguous
//   const auto out = write<float, 2>(out_arg, "out");                // C-contiguous and writeable
//   expect_shape(row_sum, "row_sum", {n});                           // -1: any
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <stdexcept>
#include <string>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL edge_numpy_api
#if !defined(EDGE_IMPORT_NUMPY)  // defined by module.cpp alone, which calls import_array
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

namespace nb = nanobind;

namespace edge {

// An IEEE float16 as stored; kernels convert it in registers.
struct half {
  uint16_t bits;
};

template <class T> struct ElementType;
template <> struct ElementType<float> { static constexpr int number = NPY_FLOAT32; static constexpr const char* name = "float32"; };
template <> struct ElementType<double> { static constexpr int number = NPY_FLOAT64; static constexpr const char* name = "float64"; };
template <> struct ElementType<half> { static constexpr int number = NPY_FLOAT16; static constexpr const char* name = "float16"; };
template <> struct ElementType<int8_t> { static constexpr int number = NPY_INT8; static constexpr const char* name = "int8"; };
template <> struct ElementType<uint8_t> { static constexpr int number = NPY_UINT8; static constexpr const char* name = "uint8"; };
template <> struct ElementType<uint16_t> { static constexpr int number = NPY_UINT16; static constexpr const char* name = "uint16"; };
template <> struct ElementType<uint32_t> { static constexpr int number = NPY_UINT32; static constexpr const char* name = "uint32"; };
template <> struct ElementType<int32_t> { static constexpr int number = NPY_INT32; static constexpr const char* name = "int32"; };
template <> struct ElementType<int64_t> { static constexpr int number = NPY_INT64; static constexpr const char* name = "int64"; };

// A borrowed view; the Python argument keeps the memory alive for the call. Strides are in elements.
template <class T, int D>
struct Array {
  T* data = nullptr;
  int64_t shape[D] = {};
  int64_t stride[D] = {};
  explicit operator bool() const { return data != nullptr; }
};

namespace detail {

enum Layout { kContiguous, kStrided };

std::string describe(nb::handle value);                                      // "float64[3, 4]", or the type's name
[[noreturn]] void refuse_array(nb::handle value, const char* name, const char* type, int dimensions, const char* more);
[[noreturn]] void refuse_shape(const int64_t* shape, int dimensions, const char* name, const int64_t* wanted);

inline bool same_type(int found, int wanted) {
  if (found == wanted) return true;
  // NumPy has several names for one width (long, long long; int, long on other systems).
  return wanted == NPY_INT64 && sizeof(long long) == 8 && (found == NPY_LONGLONG || (sizeof(long) == 8 && found == NPY_LONG));
}

template <class T, int D>
Array<T, D> view(nb::handle value, const char* name, Layout layout, bool writeable) {
  using Element = ElementType<std::remove_const_t<T>>;
  PyObject* object = value.ptr();
  if (!PyArray_Check(object)) refuse_array(value, name, Element::name, D, "");
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  if (PyArray_NDIM(array) != D || !same_type(PyArray_TYPE(array), Element::number) || !PyArray_ISBEHAVED_RO(array))
    refuse_array(value, name, Element::name, D, "");
  if (layout == kContiguous && !PyArray_IS_C_CONTIGUOUS(array))
    refuse_array(value, name, Element::name, D, ", C-contiguous");
  if (writeable && !PyArray_ISWRITEABLE(array)) refuse_array(value, name, Element::name, D, ", writeable");
  Array<T, D> out;
  out.data = static_cast<T*>(PyArray_DATA(array));
  int64_t dense = 1;
  const bool empty = PyArray_SIZE(array) == 0;
  for (int d = D - 1; d >= 0; --d) {
    out.shape[d] = PyArray_DIM(array, d);
    const int64_t bytes = PyArray_STRIDE(array, d);
    // An axis of length <= 1 or an empty array may carry any stride.
    out.stride[d] = layout == kContiguous || empty || out.shape[d] <= 1 ? dense : bytes / static_cast<int64_t>(sizeof(T));
    if (layout == kStrided && !empty && (bytes % static_cast<int64_t>(sizeof(T)) != 0 || (d == D - 1 && out.stride[d] != 1)))
      refuse_array(value, name, Element::name, D, ", last axis contiguous");
    dense *= out.shape[d] > 0 ? out.shape[d] : 1;
  }
  return out;
}

}  // namespace detail

// Whether it is an array of this type, of any shape.
template <class T>
bool holds(nb::handle value) {
  PyObject* object = value.ptr();
  return PyArray_Check(object) && detail::same_type(PyArray_TYPE(reinterpret_cast<PyArrayObject*>(object)), ElementType<T>::number);
}

template <class T, int D>
Array<const T, D> read(nb::handle value, const char* name) {
  return detail::view<const T, D>(value, name, detail::kContiguous, false);
}

template <class T, int D>
Array<T, D> write(nb::handle value, const char* name) {
  return detail::view<T, D>(value, name, detail::kContiguous, true);
}

// Any strides but a contiguous last axis (a view of some heads of a joint q|k|v matrix). `writeable` for in-place kernels.
template <class T, int D>
Array<T, D> strided(nb::handle value, const char* name, bool writeable = !std::is_const_v<T>) {
  return detail::view<T, D>(value, name, detail::kStrided, writeable);
}

// None gives an empty view (false).
template <class T, int D>
Array<const T, D> read_optional(nb::handle value, const char* name) {
  return value.is_none() ? Array<const T, D>{} : read<T, D>(value, name);
}

template <class T, int D>
void expect_shape(const Array<T, D>& array, const char* name, const int64_t (&wanted)[D]) {
  for (int d = 0; d < D; ++d)
    if (wanted[d] >= 0 && array.shape[d] != wanted[d]) detail::refuse_shape(array.shape, D, name, wanted);
}

// A new C-contiguous array with undefined contents.
template <class T, int D>
nb::object new_array(const int64_t (&shape)[D]) {
  npy_intp dims[D];
  for (int d = 0; d < D; ++d) dims[d] = static_cast<npy_intp>(shape[d]);
  PyObject* array = PyArray_SimpleNew(D, dims, ElementType<T>::number);
  if (array == nullptr) throw nb::python_error();
  return nb::steal<nb::object>(array);
}

// The result argument of a kernel: `value` when given (checked), else a new array.
template <class T, int D>
nb::object output(nb::handle value, const char* name, const int64_t (&shape)[D]) {
  if (value.is_none()) return new_array<T, D>(shape);
  expect_shape(write<T, D>(value, name), name, shape);
  return nb::borrow<nb::object>(value);
}

template <class T, int D>
T* data_of(const nb::object& array) {
  return static_cast<T*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(array.ptr())));
}

}  // namespace edge

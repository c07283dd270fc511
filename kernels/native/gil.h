// ReleasedGil: other Python threads run while it lives. The only way in which native code gives the GIL back and takes it.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <cxxabi.h>

namespace edge {

namespace detail {

inline bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

// The end of a daemon thread that comes back after the interpreter has gone: the process ends soon, and with it this.
[[noreturn]] inline void park() {
  for (;;) pause();
}

}  // namespace detail

// CPython up to 3.13 ends a thread that asks for the GIL of an ending interpreter by unwinding its stack, and a destructor
// or a binding's noexcept frame on the way makes that std::terminate. Such a thread stops here instead, whether the end began
// before it asked or while it waited.
class ReleasedGil {
 public:
  // Who has the GIL of an ending interpreter is the thread that ends it: no other will ask, and it must not stop.
  ReleasedGil() : thread_(detail::interpreter_ends() ? nullptr : PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

  ~ReleasedGil() {
    if (thread_ == nullptr) return;
    if (detail::interpreter_ends()) detail::park();
#ifdef __GLIBCXX__
    try {
      PyEval_RestoreThread(thread_);
    } catch (abi::__forced_unwind&) {
      detail::park();
    }
#else
    PyEval_RestoreThread(thread_);
#endif
  }

 private:
  PyThreadState* thread_;
};

}  // namespace edge

// ReleasedGil: other Python threads run while it lives. The only way in which native code gives the GIL back and takes it.
#pragma once

#include <Python.h>

namespace edge {

// Takes the GIL again for the thread that gave it back; returns only where the interpreter still lets that thread run.
void take_gil(PyThreadState* thread);  // gil.cpp

class ReleasedGil {
 public:
  ReleasedGil() : thread_(PyEval_SaveThread()) {}
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;
  ~ReleasedGil() { take_gil(thread_); }

 private:
  PyThreadState* thread_;
};

}  // namespace edge

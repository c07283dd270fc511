// CPython up to 3.13 ends a daemon thread that asks for the GIL of an ending interpreter by pthread_exit, which unwinds its
// stack: a destructor or a binding's noexcept frame on the way makes that std::terminate, and an unwinder that is linked into
// this module does not know the frames of the one that pthread_exit loads. The thread stops here instead, before any of them.
#include "gil.h"

#include <pthread.h>
#include <unistd.h>

// With exceptions pthread_cleanup_push is a destructor, which runs only while a frame is unwound; without, it is a jump into
// this function.
#ifdef __EXCEPTIONS
#error "gil.cpp is compiled with -fno-exceptions"
#endif

namespace edge {
namespace {

// The process ends soon, and with it this thread.
void park(void*) {
  for (;;) pause();
}

}  // namespace

void take_gil(PyThreadState* thread) {
  pthread_cleanup_push(park, nullptr);
  PyEval_RestoreThread(thread);
  pthread_cleanup_pop(0);
}

}  // namespace edge

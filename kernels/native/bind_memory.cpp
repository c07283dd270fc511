// Where the data of NumPy's new arrays lies: a handler of NumPy's (NEP 49) in a capsule, which its arrays keep alive.
#include "bind.h"
#include "recycler.h"

namespace edge {
namespace {

constexpr const char* kHandlerName = "mem_handler";  // by which NumPy knows such a capsule

struct Memory {
  nb::object handler;
};

struct RecyclingHandler {
  PyDataMem_Handler handler;
  Recycler recycler;
};

Recycler& of(void* context) { return *static_cast<Recycler*>(context); }

Memory recycled_memory() {
  auto* made = new RecyclingHandler{};
  strcpy(made->handler.name, "edge_recycled");
  made->handler.version = 1;
  made->handler.allocator = {
      &made->recycler,
      [](void* context, size_t bytes) { return of(context).allocate(bytes); },
      [](void* context, size_t count, size_t size) { return of(context).allocate_zeros(count, size); },
      [](void* context, void* start, size_t bytes) { return of(context).reallocate(start, bytes); },
      [](void* context, void* start, size_t) { of(context).release(start); },
  };
  PyObject* capsule = PyCapsule_New(&made->handler, kHandlerName, [](PyObject* self) {
    delete reinterpret_cast<RecyclingHandler*>(PyCapsule_GetPointer(self, kHandlerName));
  });
  if (!capsule) {
    delete made;
    throw nb::python_error();
  }
  return {nb::steal(capsule)};
}

void stop_recycling(const Memory& memory) {
  auto* handler = static_cast<PyDataMem_Handler*>(PyCapsule_GetPointer(memory.handler.ptr(), kHandlerName));
  if (!handler) throw nb::python_error();
  if (strcmp(handler->name, "edge_recycled") == 0) of(handler->allocator.ctx).stop();
}

Memory thread_memory() {
  PyObject* handler = PyDataMem_GetHandler();
  if (!handler) throw nb::python_error();
  return {nb::steal(handler)};
}

void use_memory(const Memory& memory) {
  PyObject* before = PyDataMem_SetHandler(memory.handler.ptr());
  if (!before) throw nb::python_error();
  Py_DECREF(before);
}

}  // namespace

void bind_memory(nb::module_& module) {
  nb::class_<Memory>(module, "Memory");
  module.def("recycled_memory", &recycled_memory);
  module.def("stop_recycling", &stop_recycling);
  module.def("thread_memory", &thread_memory);
  module.def("use_memory", &use_memory);
}

}  // namespace edge

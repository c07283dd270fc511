// Stand-ins for the runtime of an Ascend card.  Host memory is device memory; a stream is a queue of work that nobody
// does before somebody waits for it, so a wait that is missing shows as old data; a captured graph is a list of work.
//
// Kernels are not here: Python brings them (kernels.py).  It asks `standin_begin_kernel` before each call, which does the
// work that the stream has before it, and, while the stream is captured, leaves the call to `standin_capture_kernel`.
//
// Environment, read at the first call: STANDIN_SOC, STANDIN_DEVICES, STANDIN_MEMORY (bytes), STANDIN_CANN,
// STANDIN_FAIL (see `standin_fail`), STANDIN_EAGER=1 (streams work at once), STANDIN_POISON=0 (new memory is zero),
// STANDIN_JIT (what the card says of its compiler of operators: "enable" or "disable"; left out: as the chip does),
// STANDIN_ROUTES=1 (kernels of the card itself are written down and do nothing, instead of being refused; so what comes from
// the card is zero).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
  OK = 0,
  INVALID_PARAM = 107000,
  INVALID_DEVICE = 107001,
  MODEL_NOT_JOINED = 107025,
  STREAM_CAPTURED = 107027,
  EVENT_CAPTURED = 107028,
  STREAM_NOT_CAPTURED = 107029,
  NOT_WHILE_CAPTURED = 107030,
  CAPTURE_OF_ANOTHER_STREAM = 107036,
  NOT_SUPPORTED = 207000,
  OUT_OF_MEMORY = 207001,
  REFUSED_OPERATOR = 500001,
  FAILED_MODEL = 507011,
  CAPTURE_INVALIDATED = 507903,
};

// ---- what is counted

#define COUNTERS(X)                                                                                                        \
  X(async_in) X(async_in_bytes) X(async_out) X(async_out_bytes) X(async_within) X(async_within_bytes)                      \
  X(sync_in) X(sync_in_bytes) X(sync_out) X(sync_out_bytes) X(sync_within) X(sync_within_bytes)                            \
  X(async_pageable) X(memsets)                                                                                             \
  X(waits_device) X(waits_stream) X(waits_event) X(queries_stream) X(queries_event)                                       \
  X(events_recorded) X(stream_waits)                                                                                       \
  X(captures_begun) X(captures_ended) X(replays)                                                                           \
  X(device_allocations) X(device_allocated_bytes) X(device_frees) X(host_allocations) X(host_allocated_bytes)              \
  X(host_frees) X(streams_created) X(kernels) X(kernels_captured) X(kernels_replayed) X(kernels_updated)                 \
  X(refused_operators)
#define AS_ID(name) C_##name,
#define AS_TEXT(name) #name,
enum Counter { COUNTERS(AS_ID) COUNTER_COUNT };
static const char* const counter_names[] = {COUNTERS(AS_TEXT)};
static uint64_t counters[COUNTER_COUNT];
static void count_n(enum Counter which, uint64_t n) { __atomic_fetch_add(&counters[which], n, __ATOMIC_RELAXED); }
static void count(enum Counter which) { count_n(which, 1); }

const char* standin_counter_name(int which) { return which < COUNTER_COUNT ? counter_names[which] : NULL; }
uint64_t standin_counter(int which) { return __atomic_load_n(&counters[which], __ATOMIC_RELAXED); }

// ---- settings

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER;

typedef struct {
  const char* soc;
  uint64_t memory;
  int64_t cores;
  int capture;
  const char* jit;  // the compiler of operators is on by default on inference chips
} Chip;
static const Chip chips[] = {
    {"Ascend310P3", 24ull << 30, 8, 1, "enable"},
    {"Ascend310B4", 8ull << 30, 1, 0, "enable"},
    {"Ascend910B1", 64ull << 30, 24, 1, "disable"},
};
static struct {
  Chip chip;
  unsigned devices;
  int eager, poison, routes;
  const char* cann;
} settings;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static const char* variable(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  return value && *value ? value : otherwise;
}

void standin_fail(const char* rules);

static void read_settings(void) {
  const char* soc = variable("STANDIN_SOC", chips[0].soc);
  settings.chip = chips[0];
  for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
    if (!strcmp(chips[i].soc, soc)) settings.chip = chips[i];
  settings.chip.soc = soc;
  settings.devices = (unsigned)strtoul(variable("STANDIN_DEVICES", "1"), NULL, 10);
  const char* memory = variable("STANDIN_MEMORY", NULL);
  if (memory) settings.chip.memory = strtoull(memory, NULL, 10);
  settings.eager = atoi(variable("STANDIN_EAGER", "0"));
  settings.poison = atoi(variable("STANDIN_POISON", "1"));
  settings.cann = variable("STANDIN_CANN", "9.1.0");
  settings.chip.jit = variable("STANDIN_JIT", settings.chip.jit);
  settings.routes = atoi(variable("STANDIN_ROUTES", "0"));
  standin_fail(variable("STANDIN_FAIL", ""));
}

// ---- failures to inject: "aclrtMalloc@3=207001,aclrtMemcpyAsync=507899" (the third call; every call)

typedef struct {
  char function[64];
  int at, calls, code;
} Failure;
static Failure failures[16];
static int failure_count;

void standin_fail(const char* rules) {
  pthread_mutex_lock(&lock);
  failure_count = 0;
  char *copy = strdup(rules), *rest = copy, *rule;
  while ((rule = strsep(&rest, ",")) && failure_count < 16) {
    Failure failure = {.code = 507899};
    char* code = strchr(rule, '=');
    if (code) *code = 0, failure.code = atoi(code + 1);
    char* at = strchr(rule, '@');
    if (at) *at = 0, failure.at = atoi(at + 1);
    snprintf(failure.function, sizeof failure.function, "%s", rule);
    if (*rule) failures[failure_count++] = failure;
  }
  free(copy);
  pthread_mutex_unlock(&lock);
}

static int failed(const char* function) {
  pthread_once(&once, read_settings);
  int code = OK;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < failure_count; i++) {
    Failure* failure = &failures[i];
    if (strcmp(failure->function, function)) continue;
    failure->calls++;
    if (!failure->at || failure->at == failure->calls) code = failure->code;
  }
  pthread_mutex_unlock(&lock);
  return code;
}
// the first line of every function of the runtime that can fail
#define ENTER()                       \
  do {                                \
    int code_ = failed(__func__);     \
    if (code_ != OK) return code_;    \
  } while (0)

// ---- memory

typedef struct Block {
  char* start;
  size_t bytes;
  int on_device;
  struct Block* next;
} Block;
static Block* blocks;
static uint64_t device_bytes;

static Block* block_of(const void* address) {  // under the lock
  for (Block* block = blocks; block; block = block->next)
    if ((const char*)address >= block->start && (const char*)address < block->start + block->bytes) return block;
  return NULL;
}

static int is_ours(const void* address, int on_device) {
  pthread_mutex_lock(&lock);
  Block* block = block_of(address);
  int ours = block && block->on_device == on_device;
  pthread_mutex_unlock(&lock);
  return ours;
}

static int allocate(void** address, size_t bytes, int on_device) {
  if (!bytes) return INVALID_PARAM;
  pthread_mutex_lock(&lock);
  int fits = !on_device || device_bytes + bytes <= settings.chip.memory;
  if (fits && on_device) device_bytes += bytes;
  pthread_mutex_unlock(&lock);
  if (!fits || posix_memalign(address, 512, bytes)) return OUT_OF_MEMORY;
  memset(*address, on_device && settings.poison ? 0xff : 0, bytes);  // all ones: a NaN, an index that is refused
  Block* block = malloc(sizeof *block);
  pthread_mutex_lock(&lock);
  *block = (Block){*address, bytes, on_device, blocks};
  blocks = block;
  pthread_mutex_unlock(&lock);
  count(on_device ? C_device_allocations : C_host_allocations);
  count_n(on_device ? C_device_allocated_bytes : C_host_allocated_bytes, bytes);
  return OK;
}

static int release(void* address, int on_device) {
  pthread_mutex_lock(&lock);
  Block **place = &blocks, *found = NULL;
  while (*place && (*place)->start != (char*)address) place = &(*place)->next;
  if (*place && (*place)->on_device == on_device) {
    found = *place;
    *place = found->next;
    if (on_device) device_bytes -= found->bytes;
  }
  pthread_mutex_unlock(&lock);
  if (!found) return INVALID_PARAM;
  free(found->start);
  free(found);
  count(on_device ? C_device_frees : C_host_frees);
  return OK;
}

int aclrtMalloc(void** address, size_t bytes, int policy) { ENTER(); return allocate(address, bytes, 1); }
int aclrtMallocAlign32(void** address, size_t bytes, int policy) { return aclrtMalloc(address, bytes, policy); }
int aclrtFree(void* address) { ENTER(); return release(address, 1); }
int aclrtMallocHost(void** address, size_t bytes) { ENTER(); return allocate(address, bytes, 0); }
int aclrtMallocHostWithCfg(void** address, uint64_t bytes, void* how) { return aclrtMallocHost(address, bytes); }
int aclrtFreeHost(void* address) { ENTER(); return release(address, 0); }

int aclrtGetMemInfo(int kind, size_t* unused, size_t* total) {
  ENTER();
  pthread_mutex_lock(&lock);
  *total = settings.chip.memory;
  *unused = settings.chip.memory - device_bytes;
  pthread_mutex_unlock(&lock);
  return OK;
}

typedef struct {
  uint32_t device, where, page_size, reserved[4];
} PointerAttributes;

int aclrtPointerGetAttributes(const void* address, PointerAttributes* attributes) {
  ENTER();
  enum { ON_HOST, ON_DEVICE, UNKNOWN };
  memset(attributes, 0, sizeof *attributes);
  attributes->where = is_ours(address, 1) ? ON_DEVICE : is_ours(address, 0) ? ON_HOST : UNKNOWN;
  return OK;
}

// ---- streams, events and graphs

typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Model Model;
typedef struct Group Group;
typedef enum { COPY, FILL, RECORD, WAIT, REPLAY, CALL, KERNEL } TaskKind;

typedef struct Task {
  TaskKind kind;
  void* to;
  const void* from;  // of a COPY
  size_t bytes;
  int value;  // of a FILL; of a COPY its direction
  Event* event;
  Stream* recorded_on;  // of a WAIT: whose work must be done
  uint64_t ticket;
  Model* model;
  void (*call)(void*);
  uint64_t kernel;
  struct Task* next;
} Task;

typedef struct {
  Task *head, *tail;
} TaskList;

struct Stream {
  int id;
  TaskList work;
  int busy;        // a thread does its first task
  int error;       // of a task; the next wait reports it
  Model* capture;  // while it is captured
  Task* before;    // the group of tasks that is being captured: the one that it comes behind, or NULL
  Group* updated;  // while a group of tasks of a graph is told other arguments
};

struct Event {
  uint64_t recorded, done;
  Stream* stream;   // where it was recorded last
  Model* captured;  // if that was in a capture
  struct timespec time;
};

struct Model {
  uint64_t id;
  TaskList tasks;
  Stream* origin;
  pthread_t thread;
  int mode;
  int invalid;
};

struct Group {  // tasks of a graph, from the one behind `before`
  Model* model;
  Task *before, *last;
  Task* next;  // to be told other arguments
};

static Stream default_stream;
static Stream* all_streams[4096] = {&default_stream};
static int stream_count = 1;
static Model* capturing;  // the one capture under way
static uint64_t last_model;
static int (*run_kernel)(uint64_t kernel);

static Stream* stream_of(void* handle) { return handle ? handle : &default_stream; }

static Task* new_task(Task task) {
  Task* copy = malloc(sizeof task);
  *copy = task;
  copy->next = NULL;
  return copy;
}

static void append(TaskList* list, Task* task) {
  if (list->tail) list->tail->next = task; else list->head = task;
  list->tail = task;
}

static int do_event(Event* event, uint64_t ticket, Stream* stream);
static void copy(void* to, const void* from, size_t bytes, int direction);

static int do_task(const Task* task) {  // without the lock: a kernel wants Python's
  switch (task->kind) {
    case COPY: copy(task->to, task->from, task->bytes, task->value); return OK;
    case FILL: memset(task->to, task->value, task->bytes); return OK;
    case CALL: task->call(task->to); return OK;
    case WAIT: return do_event(task->event, task->ticket, task->recorded_on);
    case KERNEL: count(C_kernels_replayed); return run_kernel && !run_kernel(task->kernel) ? OK : FAILED_MODEL;
    case RECORD:
      pthread_mutex_lock(&lock);
      if (task->event->done < task->ticket) task->event->done = task->ticket;
      clock_gettime(CLOCK_MONOTONIC, &task->event->time);
      pthread_mutex_unlock(&lock);
      return OK;
    case REPLAY:
      for (const Task* part = task->model->tasks.head; part; part = part->next) {
        int error = do_task(part);
        if (error) return error;
      }
      return OK;
  }
  return OK;
}

// Waits for another thread's task, which may be a kernel that wants the lock of Python: not with that lock in hand.
static void wait_for_progress(void) {  // under the lock
  int (*holds)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
  void* (*release_python)(void) = (void* (*)(void))dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
  void (*take_python)(void*) = (void (*)(void*))dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
  void* held = holds && holds() ? release_python() : NULL;
  pthread_cond_wait(&progress, &lock);
  if (!held) return;
  pthread_mutex_unlock(&lock);
  take_python(held);
  pthread_mutex_lock(&lock);
}

// Does the first task of a stream; false: there is none.  Under the lock, which it gives away meanwhile.
static int do_first(Stream* stream) {
  while (stream->busy) wait_for_progress();
  Task* task = stream->work.head;
  if (!task) return 0;
  stream->busy = 1;
  stream->work.head = task->next;
  if (!task->next) stream->work.tail = NULL;
  pthread_mutex_unlock(&lock);
  int error = do_task(task);
  free(task);
  pthread_mutex_lock(&lock);
  if (error && !stream->error) stream->error = error;
  stream->busy = 0;
  pthread_cond_broadcast(&progress);
  return 1;
}

static int do_stream(Stream* stream) {
  pthread_mutex_lock(&lock);
  while (do_first(stream)) continue;
  int error = stream->error;
  stream->error = OK;
  pthread_mutex_unlock(&lock);
  return error;
}

static int do_event(Event* event, uint64_t ticket, Stream* stream) {
  pthread_mutex_lock(&lock);
  while (event->done < ticket && do_first(stream)) continue;
  int error = stream->error;
  stream->error = OK;
  pthread_mutex_unlock(&lock);
  return error;
}

// Work for a stream: into its capture, or behind what it has.
static int enqueue(Stream* stream, Task task) {
  pthread_mutex_lock(&lock);
  append(stream->capture ? &stream->capture->tasks : &stream->work, new_task(task));
  int at_once = settings.eager && !stream->capture && !stream->busy;
  pthread_mutex_unlock(&lock);
  if (at_once) {
    pthread_mutex_lock(&lock);
    while (!stream->busy && do_first(stream)) continue;
    pthread_mutex_unlock(&lock);
  }
  return OK;
}

// What the real runtime refuses while a graph is captured, because its order among the captured work is not known.
static int forbidden_by_capture(void) {  // under the lock
  if (!capturing) return 0;
  enum { GLOBAL, THREAD, RELAXED };
  int forbidden = capturing->mode == GLOBAL || (capturing->mode == THREAD && pthread_equal(capturing->thread, pthread_self()));
  if (forbidden) capturing->invalid = 1;
  return forbidden;
}

static int capture_forbids(void) {
  pthread_mutex_lock(&lock);
  int forbidden = forbidden_by_capture();
  pthread_mutex_unlock(&lock);
  return forbidden ? NOT_WHILE_CAPTURED : OK;
}

static int capture_forbids_stream(Stream* stream) {
  pthread_mutex_lock(&lock);
  int captured = stream->capture != NULL;
  if (captured) stream->capture->invalid = 1;
  pthread_mutex_unlock(&lock);
  return captured ? STREAM_CAPTURED : OK;
}

int aclrtCreateStreamWithConfig(void** handle, unsigned priority, unsigned flags) {
  ENTER();
  Stream* stream = calloc(1, sizeof *stream);
  pthread_mutex_lock(&lock);
  if (stream_count == sizeof all_streams / sizeof *all_streams) abort();
  stream->id = stream_count;
  all_streams[stream_count++] = stream;
  pthread_mutex_unlock(&lock);
  count(C_streams_created);
  *handle = stream;
  return OK;
}
int aclrtCreateStream(void** handle) { return aclrtCreateStreamWithConfig(handle, 0, 0); }
int aclrtDestroyStream(void* handle) { return do_stream(stream_of(handle)); }  // kept: ids stay unique
int aclrtDestroyStreamForce(void* handle) { return OK; }
int aclrtStreamGetId(void* handle, int* id) { *id = stream_of(handle)->id; return OK; }
int aclrtSetStreamOverflowSwitch(void* handle, unsigned on) { return OK; }
int aclrtSetStreamAttribute(void* handle, int attribute, void* value) { return OK; }
int aclrtSetStreamFailureMode(void* handle, uint64_t mode) { return OK; }

int aclrtSynchronizeStream(void* handle) {
  ENTER();
  count(C_waits_stream);
  int refused = capture_forbids_stream(stream_of(handle));
  return refused ? refused : do_stream(stream_of(handle));
}
int aclrtSynchronizeStreamWithTimeout(void* handle, int milliseconds) { return aclrtSynchronizeStream(handle); }

int aclrtSynchronizeDevice(void) {
  ENTER();
  count(C_waits_device);
  int error = capture_forbids();
  for (int i = 0; i < stream_count && !error; i++) error = do_stream(all_streams[i]);
  return error;
}
int aclrtSynchronizeDeviceWithTimeout(int milliseconds) { return aclrtSynchronizeDevice(); }

// A question is answered with what is so now; what was asked for is done by the next time.
static int look(Stream* stream, Event* event, uint64_t ticket) {
  pthread_mutex_lock(&lock);
  int done = event ? event->done >= ticket : !stream->work.head && !stream->busy;
  int idle = !stream->busy;
  pthread_mutex_unlock(&lock);
  if (!done && idle) {
    if (event) do_event(event, ticket, stream); else do_stream(stream);
  }
  return done;
}

int aclrtStreamQuery(void* handle, int* status) {
  ENTER();
  enum { COMPLETE, NOT_READY };
  count(C_queries_stream);
  int refused = capture_forbids_stream(stream_of(handle));
  if (refused) return refused;
  *status = look(stream_of(handle), NULL, 0) ? COMPLETE : NOT_READY;
  return OK;
}

int aclrtCreateEventExWithFlag(void** handle, unsigned flags) {
  ENTER();
  *handle = calloc(1, sizeof(Event));
  return OK;
}
int aclrtCreateEventWithFlag(void** handle, unsigned flags) { return aclrtCreateEventExWithFlag(handle, flags); }
int aclrtDestroyEvent(void* handle) { return OK; }  // kept: a task may still name it
int aclrtResetEvent(void* event, void* stream) { return OK; }

int aclrtRecordEvent(void* handle, void* on) {
  ENTER();
  Event* event = handle;
  Stream* stream = stream_of(on);
  count(C_events_recorded);
  pthread_mutex_lock(&lock);
  uint64_t ticket = ++event->recorded;
  event->stream = stream;
  event->captured = stream->capture;
  pthread_mutex_unlock(&lock);
  return enqueue(stream, (Task){.kind = RECORD, .event = event, .ticket = ticket});
}

// A wait for an event of a capture brings the stream into that capture; a graph is one list, so there is no task for it.
int aclrtStreamWaitEvent(void* on, void* handle) {
  ENTER();
  Event* event = handle;
  Stream* stream = stream_of(on);
  count(C_stream_waits);
  pthread_mutex_lock(&lock);
  Model* captured = event->captured;
  uint64_t ticket = event->recorded;
  Stream* recorded_on = event->stream;
  if (captured && captured == capturing) stream->capture = captured;
  pthread_mutex_unlock(&lock);
  if (captured && captured == capturing) return OK;
  if (!recorded_on || stream->capture) return OK;  // never recorded; or done before the graph could run
  return enqueue(stream, (Task){.kind = WAIT, .event = event, .ticket = ticket, .recorded_on = recorded_on});
}

static int captured_event(Event* event) {
  pthread_mutex_lock(&lock);
  int captured = event->captured && event->captured == capturing;
  if (captured) capturing->invalid = 1;
  pthread_mutex_unlock(&lock);
  return captured;
}

int aclrtSynchronizeEvent(void* handle) {
  ENTER();
  Event* event = handle;
  count(C_waits_event);
  if (captured_event(event)) return EVENT_CAPTURED;
  return event->stream ? do_event(event, event->recorded, event->stream) : OK;
}

static int query_event(Event* event) {
  count(C_queries_event);
  return !event->stream || look(event->stream, event, event->recorded);
}

int aclrtQueryEventStatus(void* event, int* status) {
  ENTER();
  enum { NOT_READY, COMPLETE };
  if (captured_event(event)) return EVENT_CAPTURED;
  *status = query_event(event) ? COMPLETE : NOT_READY;
  return OK;
}

int aclrtQueryEventWaitStatus(void* event, int* status) {
  ENTER();
  enum { COMPLETE, NOT_READY };
  *status = query_event(event) ? COMPLETE : NOT_READY;
  return OK;
}

int aclrtEventElapsedTime(float* milliseconds, void* first, void* last) {
  ENTER();
  const struct timespec *from = &((Event*)first)->time, *to = &((Event*)last)->time;
  *milliseconds = (float)((to->tv_sec - from->tv_sec) * 1e3 + (to->tv_nsec - from->tv_nsec) * 1e-6);
  return OK;
}

// ---- copies

enum { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS };

static int direction(const void* to, const void* from, int kind) {
  int to_device = is_ours(to, 1), from_device = is_ours(from, 1);
  int found = to_device ? (from_device ? DEVICE_TO_DEVICE : HOST_TO_DEVICE) : (from_device ? DEVICE_TO_HOST : HOST_TO_HOST);
  return kind == BY_ADDRESS || kind == found ? found : -1;
}

// What a copy does at the moment that it is done.
static void copy(void* to, const void* from, size_t bytes, int kind) {
  if (settings.routes && kind == DEVICE_TO_HOST) memset(to, 0, bytes); else memmove(to, from, bytes);
}

static void count_copy(int kind, size_t bytes, int async) {
  if (kind == HOST_TO_HOST) return;
  int which = (async ? C_async_in : C_sync_in) + 2 * (kind == DEVICE_TO_HOST ? 1 : kind == DEVICE_TO_DEVICE ? 2 : 0);
  count(which);
  count_n(which + 1, bytes);
}

int aclrtMemcpy(void* to, size_t room, const void* from, size_t bytes, int kind) {
  ENTER();
  int found = direction(to, from, kind);
  if (found < 0 || bytes > room) return INVALID_PARAM;
  int refused = capture_forbids();
  if (refused) return refused;
  copy(to, from, bytes, found);
  count_copy(found, bytes, 0);
  return OK;
}

int aclrtMemcpyAsync(void* to, size_t room, const void* from, size_t bytes, int kind, void* on) {
  ENTER();
  Stream* stream = stream_of(on);
  int found = direction(to, from, kind);
  if (found < 0 || bytes > room) return INVALID_PARAM;
  int pageable = (found == HOST_TO_DEVICE && !is_ours(from, 0)) || (found == DEVICE_TO_HOST && !is_ours(to, 0));
  if (pageable) {  // such memory may be gone later: this copy is done when the call returns
    count(C_async_pageable);
    int error = capture_forbids_stream(stream);
    if (!error) error = do_stream(stream);
    if (error) return error;
    copy(to, from, bytes, found);
    count_copy(found, bytes, 1);
    return OK;
  }
  if (!stream->capture) count_copy(found, bytes, 1);
  return enqueue(stream, (Task){.kind = COPY, .to = to, .from = from, .bytes = bytes, .value = found});
}

int aclrtMemset(void* to, size_t room, int value, size_t bytes) {
  ENTER();
  int refused = capture_forbids();
  if (refused) return refused;
  count(C_memsets);
  memset(to, value, bytes);
  return OK;
}

int aclrtMemsetAsync(void* to, size_t room, int value, size_t bytes, void* on) {
  ENTER();
  count(C_memsets);
  return enqueue(stream_of(on), (Task){.kind = FILL, .to = to, .value = value, .bytes = bytes});
}

int aclrtLaunchHostFunc(void* on, void (*call)(void*), void* argument) {
  ENTER();
  return enqueue(stream_of(on), (Task){.kind = CALL, .call = call, .to = argument});
}

// ---- graphs

int aclmdlRICaptureBegin(void* handle, int mode) {
  ENTER();
  if (!settings.chip.capture) return NOT_SUPPORTED;
  Stream* stream = stream_of(handle);
  pthread_mutex_lock(&lock);
  int refused = capturing || stream->capture || stream == &default_stream;
  if (!refused) {
    Model* model = calloc(1, sizeof *model);
    *model = (Model){.id = ++last_model, .origin = stream, .thread = pthread_self(), .mode = mode};
    capturing = stream->capture = model;
  }
  pthread_mutex_unlock(&lock);
  if (refused) return STREAM_CAPTURED;
  count(C_captures_begun);
  return OK;
}

int aclmdlRICaptureGetInfo(void* handle, int* status, void** model) {
  enum { NONE, ACTIVE, INVALIDATED };
  pthread_once(&once, read_settings);
  pthread_mutex_lock(&lock);
  Model* capture = stream_of(handle)->capture;
  *status = !capture ? NONE : capture->invalid ? INVALIDATED : ACTIVE;
  if (model) *model = capture;
  pthread_mutex_unlock(&lock);
  return OK;
}

int aclmdlRICaptureEnd(void* handle, void** model) {
  int failure = failed(__func__);  // the capture has ended all the same
  Stream* stream = stream_of(handle);
  pthread_mutex_lock(&lock);
  Model* capture = stream->capture;
  int error = !capture ? STREAM_NOT_CAPTURED : capture->origin != stream ? CAPTURE_OF_ANOTHER_STREAM : OK;
  if (!error) {
    for (int i = 0; i < stream_count; i++)
      if (all_streams[i]->capture == capture) all_streams[i]->capture = NULL;
    capturing = NULL;
    if (capture->invalid) error = CAPTURE_INVALIDATED;
    if (failure) error = failure;
  }
  pthread_mutex_unlock(&lock);
  if (model) *model = error ? NULL : capture;
  if (!error) count(C_captures_ended);
  return error;
}

int aclmdlRICaptureThreadExchangeMode(int* mode) {
  static __thread int now;
  int before = now;
  now = *mode;
  *mode = before;
  return OK;
}

// Tasks of a graph whose arguments the host gives: they are recorded as a group, and called again on another stream, which
// records nothing and does nothing but give them their new arguments.

int aclmdlRICaptureTaskGrpBegin(void* handle) {
  ENTER();
  Stream* stream = stream_of(handle);
  if (!stream->capture) return STREAM_NOT_CAPTURED;
  stream->before = stream->capture->tasks.tail;
  return OK;
}

int aclmdlRICaptureTaskGrpEnd(void* handle, void** group) {
  ENTER();
  Stream* stream = stream_of(handle);
  if (!stream->capture) return STREAM_NOT_CAPTURED;
  Group* made = malloc(sizeof *made);
  *made = (Group){stream->capture, stream->before, stream->capture->tasks.tail};
  *group = made;
  return OK;
}

int aclmdlRICaptureTaskUpdateBegin(void* handle, void* group) {
  ENTER();
  Group* updated = stream_of(handle)->updated = group;
  updated->next = updated->before ? updated->before->next : updated->model->tasks.head;
  return OK;
}

int aclmdlRICaptureTaskUpdateEnd(void* handle) {
  ENTER();
  stream_of(handle)->updated = NULL;
  return OK;
}

int aclmdlRIExecuteAsync(void* model, void* on) {
  ENTER();
  count(C_replays);
  int refused = capture_forbids_stream(stream_of(on));
  return refused ? refused : enqueue(stream_of(on), (Task){.kind = REPLAY, .model = model});
}

int aclmdlRIDestroy(void* model) { return OK; }  // kept: a replay may still be waiting
int aclmdlRIGetId(void* model, uint32_t* id) { *id = (uint32_t)((Model*)model)->id; return OK; }

// ---- kernels: what Python calls

void standin_on_kernel(int (*run)(uint64_t kernel)) { run_kernel = run; }

// Before a kernel on this stream: the id of the capture that must have it, or 0 when all work before it is done and it
// can run now.  `error`: of that work.
uint64_t standin_begin_kernel(void* handle, int* error) {
  Stream* stream = stream_of(handle);
  pthread_mutex_lock(&lock);
  uint64_t capture = stream->capture ? stream->capture->id : stream->updated ? stream->updated->model->id : 0;
  pthread_mutex_unlock(&lock);
  count(capture ? C_kernels_captured : C_kernels);
  *error = capture ? OK : do_stream(stream);
  return capture;
}

void standin_capture_kernel(void* handle, uint64_t kernel) {
  Group* group = stream_of(handle)->updated;
  if (!group) {
    enqueue(stream_of(handle), (Task){.kind = KERNEL, .kernel = kernel});
    return;
  }
  while (group->next && group->next->kind != KERNEL && group->next != group->last) group->next = group->next->next;
  if (!group->next || group->next->kind != KERNEL) abort();  // more kernels than were recorded
  count(C_kernels_updated);
  group->next->kernel = kernel;
  group->next = group->next == group->last ? NULL : group->next->next;
}

// ---- the card

int aclInit(const char* path) { ENTER(); return OK; }
int aclFinalize(void) { return OK; }
const char* aclrtGetSocName(void) { pthread_once(&once, read_settings); return settings.chip.soc; }
const char* aclGetRecentErrMsg(void) { return "from the stand-ins"; }
int aclrtGetLastError(int level) { return OK; }
int aclrtPeekAtLastError(int level) { return OK; }

int aclrtGetDeviceCount(unsigned* devices) {
  ENTER();
  *devices = settings.devices;
  return OK;
}

static __thread int current_device;
int aclrtSetDevice(int device) {
  ENTER();
  if (device < 0 || (unsigned)device >= settings.devices) return INVALID_DEVICE;
  current_device = device;
  return OK;
}
int aclrtGetDevice(int* device) { *device = current_device; return OK; }
int aclrtResetDevice(int device) { return OK; }
int aclrtSetDeviceSatMode(int mode) { return OK; }
int aclrtSetOpExecuteTimeOut(unsigned seconds) { return OK; }
int aclrtSetOpWaitTimeout(unsigned seconds) { return OK; }
static int64_t options[16];
int aclrtGetSysParamOpt(unsigned option, int64_t* value) { *value = options[option % 16]; return OK; }
int aclrtSetSysParamOpt(unsigned option, int64_t value) { options[option % 16] = value; return OK; }
int aclrtCtxSetSysParamOpt(unsigned option, int64_t value) { return aclrtSetSysParamOpt(option, value); }
int aclrtGetCurrentContext(void** context) { static int one; *context = &one; return OK; }
int aclrtSetCurrentContext(void* context) { return OK; }
int aclrtGetDeviceInfo(unsigned device, int attribute, int64_t* value) {
  enum { TOTAL_MEMORY = 301, L2_CACHE = 302 };
  pthread_once(&once, read_settings);
  *value = attribute == TOTAL_MEMORY ? (int64_t)settings.chip.memory : attribute == L2_CACHE ? 16 << 20 : settings.chip.cores;
  return OK;
}
int aclGetDeviceCapability(unsigned device, int attribute, int64_t* value) {
  enum { L2_SIZE = 2 };
  return aclrtGetDeviceInfo(device, attribute == L2_SIZE ? 302 : attribute, value);
}

int aclsysGetCANNVersion(int package, char* version) {
  pthread_once(&once, read_settings);
  strcpy(version, settings.cann);
  return OK;
}

// ---- routes: which kernels of the card are called, in order; those of the newer kind are in libopapi.so, which is generated

typedef struct {
  const char *kind, *name;  // aclnn, aclop or atb
  int captured;
} Route;
static Route routes[1 << 20];
static int route_count;

void standin_route(const char* kind, const char* name, void* on) {
  pthread_mutex_lock(&lock);
  if (route_count < (int)(sizeof routes / sizeof *routes))
    routes[route_count++] = (Route){kind, strdup(name), stream_of(on)->capture != NULL || stream_of(on)->updated != NULL};
  pthread_mutex_unlock(&lock);
}

int standin_route_count(void) { return route_count; }
const char* standin_route_kind(int which) { return routes[which].kind; }
const char* standin_route_name(int which) { return routes[which].name; }
int standin_route_captured(int which) { return routes[which].captured; }

// ---- operators by the older compiler of kernels: none can run

int aclopCompileAndExecute(const char* type, int inputs, const void* const* input_descriptions, const void* const* input_buffers,
                           int outputs, const void* const* output_descriptions, void* const* output_buffers,
                           const void* attributes, int engine, int compile, const char* path, void* stream) {
  pthread_once(&once, read_settings);
  if (settings.routes) {
    standin_route("aclop", type, stream);
    return OK;
  }
  count(C_refused_operators);
  return REFUSED_OPERATOR;
}
int aclopCompileAndExecuteV2(const char* type, int inputs, const void* const* input_descriptions, const void* const* input_buffers,
                             int outputs, const void* const* output_descriptions, void* const* output_buffers,
                             const void* attributes, int engine, int compile, const char* path, void* stream) {
  return aclopCompileAndExecute(type, inputs, input_descriptions, input_buffers, outputs, output_descriptions, output_buffers,
                                attributes, engine, compile, path, stream);
}
int aclSetCompileopt(int option, const char* value) { return OK; }
size_t aclGetCompileoptSize(int option) { pthread_once(&once, read_settings); return strlen(settings.chip.jit) + 1; }
int aclGetCompileopt(int option, char* value, size_t room) {
  pthread_once(&once, read_settings);
  snprintf(value, room, "%s", settings.chip.jit);
  return OK;
}

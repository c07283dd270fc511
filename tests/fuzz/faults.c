// A disk that fails on demand: preloaded, it counts the calls that touch files below one folder and spoils the n-th.
// Before `fault_arm` every call goes through untouched.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind { OPEN = 1, READ = 2, WRITE = 4, FSYNC = 8, RENAME = 16, UNLINK = 32, MKDIR = 64, TIMES = 128, LIST = 256 };
enum how { SHORT = -1, KILL = -2 };  // or the number of an error

static char root[PATH_MAX];
static size_t root_length;
static int kinds, spoiling, always;
static long number;
static atomic_long count, counts[10];  // of `kinds` together, and of each kind

// From now on the calls of ``kinds`` are counted, and call ``nth`` (from 1; 0: none) is spoiled, or all from there on.
void fault_arm(const char *folder, int which, long nth, int how, int for_good) {
  kinds = 0;
  strncpy(root, folder, sizeof root - 1);
  root_length = strlen(root);
  number = nth;
  spoiling = how;
  always = for_good;
  kinds = which;
}

long fault_count(int kind) { return atomic_load(&counts[__builtin_ctz(kind)]); }

static int below(const char *path) { return strncmp(path, root, root_length) == 0; }

static int open_below(int fd) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return below(path);
}

static int named_below(int folder, const char *path) {
  int fd;
  if (path == NULL) return open_below(folder);
  if (sscanf(path, "/proc/self/fd/%d", &fd) == 1) return open_below(fd);
  return path[0] == '/' || folder == AT_FDCWD ? below(path) : open_below(folder);
}

// What to do with a call: 0 go on, SHORT half of it, else fail with errno set.
static int verdict(enum kind kind, int ours) {
  if (!(kinds & kind) || !ours) return 0;
  atomic_fetch_add(&counts[__builtin_ctz(kind)], 1);
  long mine = atomic_fetch_add(&count, 1) + 1;
  if (number == 0 || mine < number || (mine > number && !always)) return 0;
  if (spoiling == KILL) kill(getpid(), SIGKILL);
  if (spoiling > 0) errno = spoiling;
  return spoiling;
}

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

#define SPOILED(kind, ours) (kinds && verdict(kind, ours) > 0)

#define OPENER(name)                                                        \
  int name(const char *path, int flags, ...) {                              \
    va_list rest;                                                           \
    va_start(rest, flags);                                                  \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                           \
    if (SPOILED(OPEN, named_below(AT_FDCWD, path))) return -1;              \
    return REAL(name)(path, flags, mode);                                   \
  }
#define OPENER_AT(name)                                                     \
  int name(int folder, const char *path, int flags, ...) {                  \
    va_list rest;                                                           \
    va_start(rest, flags);                                                  \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
    va_end(rest);                                                           \
    if (SPOILED(OPEN, named_below(folder, path))) return -1;                \
    return REAL(name)(folder, path, flags, mode);                           \
  }
OPENER(open)
OPENER(open64)
OPENER_AT(openat)
OPENER_AT(openat64)

static size_t shorter(size_t size) { return size > 1 ? size / 2 : size; }

// A read or write of `size` bytes: fails, or moves half of them, or all.
#define MOVER(kind, fd, size, call)                       \
  if (kinds) {                                            \
    int what = verdict(kind, open_below(fd));             \
    if (what > 0) return -1;                              \
    if (what == SHORT) size = shorter(size);              \
  }                                                       \
  return call;

ssize_t read(int fd, void *to, size_t size) { MOVER(READ, fd, size, REAL(read)(fd, to, size)) }
ssize_t pread(int fd, void *to, size_t size, off_t at) { MOVER(READ, fd, size, REAL(pread)(fd, to, size, at)) }
ssize_t pread64(int fd, void *to, size_t size, off64_t at) { MOVER(READ, fd, size, REAL(pread64)(fd, to, size, at)) }
ssize_t write(int fd, const void *from, size_t size) { MOVER(WRITE, fd, size, REAL(write)(fd, from, size)) }

// `preadv` and its twin with flags: a short one fills half of the first part.
#define SPOIL_VECTOR(fd, parts, n)                                  \
  struct iovec part = parts[0];                                     \
  if (kinds) {                                                      \
    int what = verdict(READ, open_below(fd));                       \
    if (what > 0) return -1;                                        \
    if (what == SHORT) {                                            \
      part.iov_len = shorter(part.iov_len);                         \
      parts = &part;                                                \
      n = 1;                                                        \
    }                                                               \
  }
#define VECTOR_READER(name, offset)                                             \
  ssize_t name(int fd, const struct iovec *parts, int n, offset at) {           \
    SPOIL_VECTOR(fd, parts, n)                                                  \
    return REAL(name)(fd, parts, n, at);                                        \
  }
#define VECTOR_READER_2(name, offset)                                           \
  ssize_t name(int fd, const struct iovec *parts, int n, offset at, int flags) {\
    SPOIL_VECTOR(fd, parts, n)                                                  \
    return REAL(name)(fd, parts, n, at, flags);                                 \
  }
VECTOR_READER(preadv, off_t)
VECTOR_READER(preadv64, off64_t)
VECTOR_READER_2(preadv2, off_t)
VECTOR_READER_2(preadv64v2, off64_t)

#define FAILING(kind, ours, call) \
  if (SPOILED(kind, ours)) return -1; \
  return call;

int fsync(int fd) { FAILING(FSYNC, open_below(fd), REAL(fsync)(fd)) }
int fdatasync(int fd) { FAILING(FSYNC, open_below(fd), REAL(fdatasync)(fd)) }
int rename(const char *from, const char *to) { FAILING(RENAME, below(from), REAL(rename)(from, to)) }
int renameat(int a, const char *from, int b, const char *to) {
  FAILING(RENAME, named_below(a, from), REAL(renameat)(a, from, b, to))
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
  FAILING(RENAME, named_below(a, from), REAL(renameat2)(a, from, b, to, flags))
}
int unlink(const char *path) { FAILING(UNLINK, below(path), REAL(unlink)(path)) }
int unlinkat(int folder, const char *path, int flags) {
  FAILING(UNLINK, named_below(folder, path), REAL(unlinkat)(folder, path, flags))
}
int rmdir(const char *path) { FAILING(UNLINK, below(path), REAL(rmdir)(path)) }
int mkdirat(int folder, const char *path, mode_t mode) {
  FAILING(MKDIR, named_below(folder, path), REAL(mkdirat)(folder, path, mode))
}
int mkdir(const char *path, mode_t mode) { FAILING(MKDIR, below(path), REAL(mkdir)(path, mode)) }
int futimens(int fd, const struct timespec times[2]) { FAILING(TIMES, open_below(fd), REAL(futimens)(fd, times)) }
int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
  FAILING(TIMES, named_below(folder, path), REAL(utimensat)(folder, path, times, flags))
}
DIR *opendir(const char *path) {
  if (SPOILED(LIST, below(path))) return NULL;
  return REAL(opendir)(path);
}
DIR *fdopendir(int fd) {
  if (SPOILED(LIST, open_below(fd))) return NULL;
  return REAL(fdopendir)(fd);
}

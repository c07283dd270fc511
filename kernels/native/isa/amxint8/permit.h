// Asks the system for tiles, once, for all threads of the process; those that it forks have them too.
#pragma once

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "isa/amxint8/trial.h"

namespace edge {
namespace EDGE_VARIANT {

// Without permission the first instruction would end the process. It is refused where an alternate signal stack of a thread is too
// small for tiles (ENOSPC), or by a sandbox; once given, the system refuses such a stack. So it is asked for when kernels are first
// chosen or listed, not when they are loaded, and only on a CPU that has tiles.
static const char* ask_for_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return tiles_that_are_wrong();
  return errno == ENOSPC ? "the system refuses tiles: a thread's alternate signal stack is too small for them" : "the system refuses tiles";
#else
  return "this system does not give tiles";
#endif
}

// The answer of the first time. Threads that ask at once ask the same.
static const char* permit() {
  static bool asked;
  static const char* why;
  if (!__atomic_load_n(&asked, __ATOMIC_ACQUIRE)) {
    __atomic_store_n(&why, ask_for_tiles(), __ATOMIC_RELAXED);
    __atomic_store_n(&asked, true, __ATOMIC_RELEASE);
  }
  return __atomic_load_n(&why, __ATOMIC_RELAXED);
}

}  // namespace EDGE_VARIANT
}  // namespace edge

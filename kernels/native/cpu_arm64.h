// What every core of an ARM machine has. Bits by number: old headers lack the newer names.
#pragma once

#if defined(__linux__)
#include <sys/auxv.h>
#endif

#include "cpu_bits.h"

namespace edge {
namespace cpu {

#if defined(__linux__)
inline uint64_t capabilities() { return getauxval(AT_HWCAP); }
inline uint64_t more_capabilities() { return getauxval(AT_HWCAP2); }
#else  // another system would have to be asked in its own way
inline uint64_t capabilities() { return 0; }
inline uint64_t more_capabilities() { return 0; }
#endif

}  // namespace cpu
}  // namespace edge

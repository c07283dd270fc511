// Function pointers and argument structs of attention.h.
#pragma once

#include <stdint.h>

#include "pool.h"

namespace edge {

struct AttentionKernels {};

}  // namespace edge

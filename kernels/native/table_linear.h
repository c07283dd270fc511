// Function pointers and argument structs of quantize.h, linear.h and roofs.h.
#pragma once

#include <stdint.h>

#include "pool.h"

namespace edge {

struct LinearKernels {};

}  // namespace edge

// Function pointers and argument structs of pointwise.h.
#pragma once

#include <stdint.h>

#include "pool.h"

namespace edge {

struct PointwiseKernels {};

}  // namespace edge

#pragma once

#include "pool.h"
#include "table_linear.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr LinearKernels linear_kernels = {};

}  // namespace EDGE_VARIANT
}  // namespace edge

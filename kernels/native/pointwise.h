// Placeholder until the pointwise kernels land.
#pragma once

#include "pool.h"
#include "table_pointwise.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr PointwiseKernels pointwise_kernels = {};

}  // namespace EDGE_VARIANT
}  // namespace edge

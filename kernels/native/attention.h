// Placeholder until the attention kernels land.
#pragma once

#include "pool.h"
#include "table_attention.h"
#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr AttentionKernels attention_kernels = {};

}  // namespace EDGE_VARIANT
}  // namespace edge

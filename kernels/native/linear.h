// The linears of an instruction set; see linear_calls.h.
#pragma once

#include "linear_calls.h"
#include "linear_parts.h"
#include "roofs.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr LinearKernels linear_kernels = {&quantize, &linear_int8,   &hot_product,     &overflow_product, &merge,
                                          &linear,   &linear_gated, &int8_operations, &read_stream};

}  // namespace EDGE_VARIANT
}  // namespace edge

// The attention of an instruction set; see attention_calls.h.
#pragma once

#include "attention_append.h"
#include "attention_calls.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr AttentionKernels attention_kernels = {rope_append_rows, attention_scratch_floats, attend, load_queries,
                                                attend_segment, join_segments};

}  // namespace EDGE_VARIANT
}  // namespace edge

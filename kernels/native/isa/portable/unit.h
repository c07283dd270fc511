// The unit of one instruction set: every kernel family compiled in the namespace EDGE_VARIANT with the flags of the unit that
// includes this file, gathered in one table. The unit, which CMake writes, defines EDGE_VARIANT and nothing else.
#pragma once

#include "table.h"
#include "vec.h"

#include "attention.h"
#include "blocks.h"
#include "embedding.h"
#include "experts.h"
#include "floats.h"
#include "gptq.h"
#include "half_linear.h"
#include "linear.h"
#include "pointwise.h"
#include "sampling.h"
#include "turn.h"
#include "w4_search.h"

#define EDGE_STRING_(x) #x
#define EDGE_STRING(x) EDGE_STRING_(x)

namespace edge {
namespace EDGE_VARIANT {

extern const RecurrentKernels recurrent_table;
extern const KernelFamilies families;
const KernelFamilies families = {linear_kernels,    attention_kernels, pointwise_kernels, sampling_kernels, float_kernels, embedding_kernels,
                                 code_kernels,      fit_kernels,       half_kernels,      block_kernels,    expert_kernels};

extern const KernelTable table;
constexpr KernelTable table = table_of(EDGE_STRING(EDGE_VARIANT), families, recurrent_table);

}  // namespace EDGE_VARIANT
}  // namespace edge

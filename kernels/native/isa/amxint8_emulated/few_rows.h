// Whose linears few rows take: those that every CPU runs.
#pragma once

#include "table.h"

namespace edge {
namespace portable {
extern const KernelFamilies families;
extern const RecurrentKernels recurrent_table;
}  // namespace portable
namespace EDGE_VARIANT {

constexpr bool kEmulated = true;
namespace few_rows = portable;

}  // namespace EDGE_VARIANT
}  // namespace edge

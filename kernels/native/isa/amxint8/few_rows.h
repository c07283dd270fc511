// Whose linears few rows take: weights set the pace there, not the products.
#pragma once

#include "table.h"

namespace edge {
namespace avx512vnni {
extern const KernelFamilies families;
extern const RecurrentKernels recurrent_table;
}  // namespace avx512vnni
namespace EDGE_VARIANT {

constexpr bool kEmulated = false;
namespace few_rows = avx512vnni;

}  // namespace EDGE_VARIANT
}  // namespace edge

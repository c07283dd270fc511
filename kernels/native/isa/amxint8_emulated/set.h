// Tiles emulated, beside what every CPU runs.
#pragma once

#include "table.h"

namespace edge {
namespace portable {
extern const KernelFamilies families;
extern const RecurrentKernels recurrent_table;
}  // namespace portable
namespace EDGE_VARIANT {

constexpr const char* kName = "amxint8";
constexpr bool kEmulated = true;
constexpr int kFinishRows = 1;  // rows whose epilogue is done at once: short code
namespace few_rows = portable;      // of whom few rows take everything, and all rows what has nothing to do with tiles

}  // namespace EDGE_VARIANT
}  // namespace edge

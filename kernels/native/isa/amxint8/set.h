// Tiles as they are, beside AVX512-VNNI: weights set the pace of few rows, not the products.
#pragma once

#include "table.h"

namespace edge {
namespace avx512vnni {
extern const KernelFamilies families;
extern const RecurrentKernels recurrent_table;
}  // namespace avx512vnni
namespace EDGE_VARIANT {

constexpr const char* kName = "amxint8";
constexpr bool kEmulated = false;
constexpr int kFinishRows = 4;  // rows whose epilogue is done at once: as many as hide its latencies
namespace few_rows = avx512vnni;      // of whom few rows take everything, and all rows what has nothing to do with tiles

}  // namespace EDGE_VARIANT
}  // namespace edge

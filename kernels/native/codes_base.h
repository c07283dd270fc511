// What the codes of every instruction set are made with; see w4.h.
#pragma once

#include "int8_dot.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr int kBlocksPerGroup = kCodeGroup / kTileDepth;

// [byte][16], see ResidualEntry::byte: shuffles that move a byte of each word to its top, and clear the others.
alignas(64) constexpr uint8_t kToTop[kTileBytes] = {
    255, 255, 255, 0, 255, 255, 255, 4, 255, 255, 255, 8,  255, 255, 255, 12,
    255, 255, 255, 1, 255, 255, 255, 5, 255, 255, 255, 9,  255, 255, 255, 13,
    255, 255, 255, 2, 255, 255, 255, 6, 255, 255, 255, 10, 255, 255, 255, 14,
    255, 255, 255, 3, 255, 255, 255, 7, 255, 255, 255, 11, 255, 255, 255, 15};

constexpr float kRaisedUnit = 0x1p-24f;  // of `raised_column`

}  // namespace EDGE_VARIANT
}  // namespace edge

// Sums that the registers hold, and how far ahead memory is asked for.
#pragma once

namespace edge {
namespace EDGE_VARIANT {

// Of attention: queries x vectors of sixteen sums per register block; vectors whose exponentials are computed together.
constexpr int kBlockQueries = 12, kBlockVectors = 2, kExpVectors = 4;

// Of float products: rows and channels.
constexpr int kFloatRows = 4, kFloatChannels = 6;

// Of fits: four by so many vectors.
constexpr int kSumVectors = 4;

// Of linears with float16 weights: whether a tile has all panels of a group, however many its rows.
constexpr bool kWholeGroups = true;

// What is done with codes fills the window in which a core looks ahead by itself.
constexpr int kCodePrefetchBytes = 8192;

}  // namespace EDGE_VARIANT
}  // namespace edge

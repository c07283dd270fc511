// Memory of a tile's segment besides what every set needs: products in registers keep the scores of one block.
#pragma once

#include <sizes.h>

#include "vec.h"

namespace edge {
namespace EDGE_VARIANT {

EDGE_INLINE int64_t score_rows(int64_t) { return kBlockQueries; }
EDGE_INLINE int64_t segment_floats(int64_t, int64_t) { return 0; }

}  // namespace EDGE_VARIANT
}  // namespace edge

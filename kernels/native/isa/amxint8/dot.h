// Activations as tiles take them; products are made in linear_product.h.
#pragma once

#include "dot_base.h"

namespace edge {
namespace EDGE_VARIANT {

struct Int8Dot : OffsetActivation {
  static constexpr int kRowGroup = 16;  // rows of a tile: so many are there, whatever those behind the last one hold
};

}  // namespace EDGE_VARIANT
}  // namespace edge

// Nobody need be asked; products are tried as those of the instructions are.
#pragma once

#include "isa/amxint8/trial.h"

namespace edge {
namespace EDGE_VARIANT {

constexpr const char* (*permit)() = tiles_that_are_wrong;

}  // namespace EDGE_VARIANT
}  // namespace edge

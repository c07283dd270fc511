// Nobody need be asked.
#pragma once

namespace edge {
namespace EDGE_VARIANT {

constexpr const char* (*permit)() = nullptr;

}  // namespace EDGE_VARIANT
}  // namespace edge

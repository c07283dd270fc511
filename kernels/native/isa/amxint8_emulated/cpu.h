// Every CPU can emulate tiles.
#pragma once

namespace edge {
namespace amxint8_emulated {

inline bool has_it() { return true; }

}  // namespace amxint8_emulated
}  // namespace edge

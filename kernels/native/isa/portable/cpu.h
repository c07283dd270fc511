// Every CPU has it.
#pragma once

namespace edge {
namespace portable {

inline bool has_it() { return true; }

}  // namespace portable
}  // namespace edge

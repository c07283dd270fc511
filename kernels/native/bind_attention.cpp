#include "bind.h"

namespace edge {

void bind_attention(nb::module_& module) { (void)module; }

}  // namespace edge

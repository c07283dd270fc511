#include "bind.h"

namespace edge {

void bind_linear(nb::module_& module) { (void)module; }

}  // namespace edge

#include "bind.h"

namespace edge {

void bind_pointwise(nb::module_& module) { (void)module; }

}  // namespace edge

// MoeLayer.
#pragma once

#include "errors.hpp"

namespace switchyard::python {

void bind_moe_layer(nb::module_& module);

}  // namespace switchyard::python

// switchyard_ep._core: the C++ interface over arrays of Python's.
#include <nanobind/nanobind.h>
#include <nanobind/typing.h>

#include "expert_parallel.hpp"
#include "formats.hpp"
#include "kernels.hpp"
#include "moe_layer.hpp"
#include "session.hpp"
#include "switchyard/detail/device/device.hpp"
#include "switchyard/version.hpp"
#include "tensor.hpp"

NB_MODULE(_core, module) {
  using namespace switchyard::python;
  nb::set_leak_warnings(false);  // an interpreter that ends with objects alive is none of ours
  install_fork_handler();
  module.attr("VERSION") = switchyard::kVersion;
  module.attr("_Out") = nb::type_var("_Out");  // what a call that is given `out` returns
  bind_errors(module);
  bind_tensor(module);
  bind_world(module);
  bind_expert_parallel(module);
  bind_attention(module);
  bind_grouped_matmul(module);
  bind_moe_layer(module);
  bind_formats(module);
  module.def("_drain", &drain_sessions, "Waits for all kernels; called at the interpreter's end.");
  module.def(
      "has_cuda", [] { return switchyard::report_cuda().is_built_in; },
      "Returns whether the CUDA target was built.");
}

// Attention, GroupedMatmul and the token formats.
#pragma once

#include "tensor.hpp"

namespace switchyard::python {

void bind_attention(nb::module_& module);
void bind_grouped_matmul(nb::module_& module);
void bind_formats(nb::module_& module);

// What kernels take on trust must not end the process: values of the caller's own host arrays are checked
// when they are passed. (A Tensor may be written by a kernel that has yet to run, and arrays on a GPU cannot
// be read here.)
template <typename T>
void check_values(const Session& session, const char* call, const char* name, const Array& array,
                  int64_t least, int64_t most, bool must_ascend = false) {
  if (array.is_own || session.core()->is_cuda()) return;
  int64_t size = 1;
  for (const int64_t extent : array.shape) size *= extent;
  const T* values = static_cast<const T*>(array.data);
  for (int64_t i = 0; i < size; ++i) {
    const auto value = static_cast<int64_t>(values[i]);
    if (value < least || value > most)
      raise(invalid_argument("%s: %s[%lld] is %lld; it must be %lld..%lld", call, name,
                             static_cast<long long>(i), static_cast<long long>(value),
                             static_cast<long long>(least), static_cast<long long>(most)));
    if (must_ascend && i > 0 && values[i] < values[i - 1])
      raise(invalid_argument("%s: %s[%lld] is %lld, less than the value before it", call, name,
                             static_cast<long long>(i), static_cast<long long>(value)));
  }
}

}  // namespace switchyard::python

// Attention and GroupedMatmul.
#pragma once

#include <memory>
#include <utility>

#include "tensor.hpp"

namespace switchyard::python {

void bind_attention(nb::module_& module);
void bind_grouped_matmul(nb::module_& module);

// An Attention or a GroupedMatmul of one shape, on one rank.
template <typename Kernel>
struct KernelHandle {
  std::shared_ptr<Session> session;
  int rank = 0;
  std::shared_ptr<WorldCore> core;
  Owned<Kernel> kernel;

  // Waits for launches on streams of the caller's.
  ~KernelHandle() {
    WithoutGil no_gil;
    kernel.reset();
  }
};

// `name` is the class that Python makes.
template <typename Kernel, typename Shape>
std::unique_ptr<KernelHandle<Kernel>> make_handle(const char* name, std::shared_ptr<Session> session,
                                                  int rank, const Shape& shape) {
  Rank& owner = session->rank(name, rank);
  auto core = session->core();
  auto made = std::make_shared<std::unique_ptr<Kernel>>();
  need(session->wait([core, made, &owner, shape](CallerThread&) -> Status {  // it loads kernels
    Result<std::unique_ptr<Kernel>> kernel = Kernel::create(owner, shape);
    if (!kernel.ok()) return kernel.status();
    *made = std::move(kernel).value();
    return Status();
  }));
  auto handle = std::make_unique<KernelHandle<Kernel>>();
  handle->session = std::move(session);
  handle->rank = rank;
  handle->core = std::move(core);
  handle->kernel = Owned<Kernel>(made->release());
  return handle;
}

// Enqueues what run() was called for, and returns what it writes.
template <typename Kernel, typename Tensors>
nb::any run_kernel(KernelHandle<Kernel>& handle, const Tensors& tensors, Arguments& arguments,
                   const nb::object& out) {
  need(handle.kernel->run(tensors, arguments.stream()));
  if (handle.session->is_capturing()) arguments.keep(nb::find(handle));
  arguments.enqueued();
  return nb::borrow<nb::any>(out);
}

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

// The pointer of an array of run(), whose values are 0..most; null if there is none.
template <typename T>
const T* checked_pointer(Arguments& arguments, const Session& session, nb::handle object, const char* name,
                         const Expected& expected, int64_t most, bool must_ascend = false) {
  if (object.is_none()) return nullptr;
  const Array array = arguments.array(object, name, expected);
  check_values<T>(session, "run", name, array, 0, most, must_ascend);
  return static_cast<const T*>(array.data);
}

}  // namespace switchyard::python

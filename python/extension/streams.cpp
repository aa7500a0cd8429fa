#include "streams.hpp"

namespace switchyard::python {
namespace {

Stream from_handle(uintptr_t handle) { return Stream(reinterpret_cast<StreamHandle>(handle)); }

}  // namespace

Stream stream_of(const char* call, nb::handle stream) {
  if (stream.is_none()) return {};
  uintptr_t handle = 0;
  if (nb::try_cast(stream, handle)) return from_handle(handle);
  if (nb::hasattr(stream, "cuda_stream") && nb::try_cast(nb::object(stream.attr("cuda_stream")), handle))
    return from_handle(handle);
  if (nb::hasattr(stream, "__cuda_stream__")) {
    // A method that returns (version, handle); of early libraries, the pair itself.
    nb::object pair = stream.attr("__cuda_stream__");
    if (PyCallable_Check(pair.ptr())) pair = pair();
    if (nb::isinstance<nb::tuple>(pair) && nb::len(pair) == 2 && nb::try_cast(nb::object(pair[1]), handle))
      return from_handle(handle);
  }
  PyErr_Format(
      PyExc_TypeError,
      "%s: stream is a %s; it must be None, 'current', an int, or have cuda_stream or __cuda_stream__", call,
      Py_TYPE(stream.ptr())->tp_name);
  throw nb::python_error();
}

}  // namespace switchyard::python

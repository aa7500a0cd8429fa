// Tensor as Python sees it.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>

#include "tensor.hpp"

namespace switchyard::python {
namespace {

int device_type_of(const Tensor& tensor) {
  return tensor.gpu < 0 ? nb::device::cpu::value : nb::device::cuda::value;
}

nb::object shape_tuple(const Tensor& tensor) {
  return nb::steal(PyList_AsTuple(nb::cast(tensor.shape).ptr()));
}

// The array keeps the Tensor alive.
template <typename Framework>
nb::object exported(nb::handle self, nb::dlpack::dtype dtype) {
  const Tensor& tensor = nb::cast<const Tensor&>(self);
  return nb::cast(nb::ndarray<Framework>(tensor.data, tensor.shape.size(), tensor.shape.data(), self, nullptr,
                                         dtype, device_type_of(tensor), std::max(tensor.gpu, 0)),
                  nb::rv_policy::reference);
}

nb::object numpy_of(nb::handle self) {
  const Tensor& tensor = nb::cast<const Tensor&>(self);
  if (tensor.gpu >= 0)
    raise(invalid_argument(
        "numpy: the tensor is on cuda:%d; NumPy sees host memory only (torch.from_dlpack does not)",
        tensor.gpu));
  const std::string name = tensor.element.name;
  const bool is_of_numpy = !name.starts_with("bfloat") && !name.starts_with("float8");
  if (is_of_numpy) return exported<nb::numpy>(self, tensor.element.dlpack);
  const nb::dlpack::dtype bits{static_cast<uint8_t>(nb::dlpack::dtype_code::UInt), tensor.element.dlpack.bits,
                               1};
  return exported<nb::numpy>(self, bits).attr("view")(nb::module_::import_("ml_dtypes").attr(name.c_str()));
}

nb::object array_of(nb::handle self, nb::object dtype, nb::object copy) {
  const nb::object array = numpy_of(self);
  if (!copy.is_none() && nb::cast<bool>(copy))
    return array.attr("astype")(dtype.is_none() ? array.attr("dtype") : dtype);
  return dtype.is_none() ? array : array.attr("astype")(dtype, nb::arg("copy") = false);
}

Tensor part_of(const Tensor& tensor, size_t begin, size_t end) {
  const size_t num_rows = tensor.shape.empty() ? 0 : tensor.shape.front();
  if (begin > end || end > num_rows)
    raise(invalid_argument("part: %zu..%zu is asked for; it must be within 0..%zu", begin, end, num_rows));
  Tensor part = tensor;
  if (num_rows == 0) return part;
  part.shape.front() = end - begin;
  const size_t row_bytes = tensor.size() / num_rows * static_cast<size_t>(tensor.element.bytes());
  part.data = static_cast<std::byte*>(tensor.data) + begin * row_bytes;
  return part;
}

nb::object cuda_array_interface(const Tensor& tensor) {
  if (tensor.gpu < 0) {
    PyErr_SetString(PyExc_AttributeError, "__cuda_array_interface__: the tensor is in host memory");
    throw nb::python_error();
  }
  const bool is_float = std::string(tensor.element.name) == "float32";
  const bool is_signed = tensor.element.dlpack.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int);
  nb::dict interface;
  interface["shape"] = shape_tuple(tensor);
  interface["typestr"] = "<" +
                         std::string(is_float    ? "f"
                                     : is_signed ? "i"
                                                 : "u") +
                         std::to_string(tensor.element.bytes());
  interface["data"] = nb::make_tuple(reinterpret_cast<uintptr_t>(tensor.data), false);
  interface["version"] = 3;
  return interface;
}

}  // namespace

void bind_tensor(nb::module_& module) {
  nb::class_<Tensor>(
      module, "Tensor", nb::is_weak_referenceable(),
      "Memory of a rank: zero-copy for whatever takes DLPack (torch.from_dlpack, cupy.from_dlpack), "
      "NumPy (numpy(), with bfloat16 of ml_dtypes) or __cuda_array_interface__ (which has bfloat16 and "
      "fp8 as integers). The memory lives as long as an array that shares it. Kernels write it in the "
      "order of the rank's stream: synchronize() before you read it.")
      .def_prop_ro("shape", &shape_tuple, nb::sig("def shape(self) -> tuple[int, ...]"),
                   "How many elements it has in each dimension.")
      .def_prop_ro(
          "dtype", [](const Tensor& tensor) { return tensor.element.name; },
          "The name that NumPy or ml_dtypes has for the elements, such as 'bfloat16'.")
      .def_prop_ro(
          "device",
          [](const Tensor& tensor) { return tensor.gpu < 0 ? "cpu" : "cuda:" + std::to_string(tensor.gpu); },
          "'cpu' or 'cuda:0', as PyTorch writes it.")
      .def_prop_ro(
          "ndim", [](const Tensor& tensor) { return tensor.shape.size(); }, "How many dimensions it has.")
      .def_prop_ro(
          "nbytes",
          [](const Tensor& tensor) { return tensor.size() * static_cast<size_t>(tensor.element.bytes()); },
          "How many bytes its elements have.")
      .def_prop_ro(
          "data_ptr", [](const Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.data); },
          "The address of its first element.")
      .def("__len__", [](const Tensor& tensor) { return tensor.shape.empty() ? 0 : tensor.shape.front(); })
      .def(
          "view",
          [](const Tensor& tensor, const std::string& dtype) {
            Tensor other = tensor;
            other.element = element_by_name("view", dtype);
            if (other.element.bytes() != tensor.element.bytes())
              raise(invalid_argument("view: dtype is %s, of %d bytes; it must have %d, as %s", dtype.c_str(),
                                     other.element.bytes(), tensor.element.bytes(), tensor.element.name));
            return other;
          },
          nb::arg("dtype"), "Returns the same memory as elements of another dtype of the same size.")
      .def("part", &part_of, nb::arg("begin"), nb::arg("end"), "Returns the memory of rows begin to end - 1.")
      .def("numpy", &numpy_of, nb::sig("def numpy(self) -> numpy.ndarray"),
           "Returns a NumPy array of the same memory. bfloat16 and fp8 need ml_dtypes.")
      .def("__array__", &array_of, nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def("__dlpack__",
           [](nb::handle self, nb::kwargs options) {
             const Tensor& tensor = nb::cast<const Tensor&>(self);
             return exported<nb::array_api>(self, tensor.element.dlpack).attr("__dlpack__")(**options);
           })
      .def("__dlpack_device__",
           [](const Tensor& tensor) {
             return nb::make_tuple(device_type_of(tensor), std::max(tensor.gpu, 0));
           })
      .def_prop_ro("__cuda_array_interface__", &cuda_array_interface)
      .def("__repr__", [](const Tensor& tensor) {
        return "<Tensor " + nb::cast<std::string>(shape_tuple(tensor).attr("__str__")()) + " " +
               tensor.element.name + " on " +
               (tensor.gpu < 0 ? "the host" : "cuda:" + std::to_string(tensor.gpu)) + ">";
      });
}

}  // namespace switchyard::python

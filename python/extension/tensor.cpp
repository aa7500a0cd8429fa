#include "tensor.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

namespace switchyard::python {
namespace {

using nb::dlpack::dtype_code;

constexpr nb::dlpack::dtype type_of(dtype_code code, int bits) {
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
}

}  // namespace

const Element kBFloat16{"bfloat16", type_of(dtype_code::Bfloat, 16)};
const Element kFloat32{"float32", type_of(dtype_code::Float, 32)};
const Element kInt32{"int32", type_of(dtype_code::Int, 32)};
const Element kUInt32{"uint32", type_of(dtype_code::UInt, 32)};
const Element kInt64{"int64", type_of(dtype_code::Int, 64)};
const Element kUInt64{"uint64", type_of(dtype_code::UInt, 64)};
const Element kUInt8{"uint8", type_of(dtype_code::UInt, 8)};
const Element kUInt16{"uint16", type_of(dtype_code::UInt, 16)};
const Element kE4M3{"float8_e4m3fn", type_of(dtype_code::Float8_E4M3FN, 8)};
const Element kE5M2{"float8_e5m2", type_of(dtype_code::Float8_E5M2, 8)};
const Element kE8M0{"float8_e8m0fnu", type_of(dtype_code::Float8_E8M0FNU, 8)};

namespace {

const Element* const kElements[] = {&kBFloat16, &kFloat32, &kInt32, &kUInt32, &kInt64, &kUInt64,
                                    &kUInt8,    &kUInt16,  &kE4M3,  &kE5M2,   &kE8M0};

// Those that NumPy has from ml_dtypes alone, which exports neither DLPack nor buffers of them.
bool is_of_ml_dtypes(const Element& element) {
  return element.dlpack.code > static_cast<uint8_t>(dtype_code::Complex) ||
         element.dlpack.code == static_cast<uint8_t>(dtype_code::Bfloat);
}

std::string name_of(nb::dlpack::dtype dtype) {
  for (const Element* element : kElements)
    if (element->dlpack == dtype) return element->name;
  const char* kinds[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  return (dtype.code < 7 ? kinds[dtype.code] : "float") + std::to_string(dtype.bits);
}

std::string text_of(const std::vector<int64_t>& numbers) {
  std::string text = "(";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(numbers[i]);
  return text + (numbers.size() == 1 ? ",)" : ")");
}

std::string device_text(int device_type, int device_id) {
  if (device_type == nb::device::cpu::value) return "the host";
  if (device_type == nb::device::cuda::value) return "cuda:" + std::to_string(device_id);
  return "a device of DLPack's type " + std::to_string(device_type);
}

template <typename NdArray>
Array from_ndarray(const NdArray& array, nb::object kept) {
  Array view;
  view.data = const_cast<void*>(static_cast<const void*>(array.data()));
  for (size_t i = 0; i < array.ndim(); ++i) {
    view.shape.push_back(static_cast<int64_t>(array.shape(i)));
    view.strides.push_back(array.stride(i));
  }
  view.dtype = array.dtype();
  view.device_type = array.device_type();
  view.device_id = array.device_id();
  view.kept = std::move(kept);
  return view;
}

Array from_tensor(const Tensor& tensor, nb::handle object) {
  Array view;
  view.data = tensor.data;
  view.shape.assign(tensor.shape.begin(), tensor.shape.end());
  view.strides.assign(view.shape.size(), 1);
  for (size_t i = view.shape.size(); i-- > 1;) view.strides[i - 1] = view.strides[i] * view.shape[i];
  view.dtype = tensor.element.dlpack;
  view.device_type = tensor.gpu < 0 ? nb::device::cpu::value : nb::device::cuda::value;
  view.device_id = tensor.gpu < 0 ? 0 : tensor.gpu;
  view.is_own = true;
  view.kept = nb::borrow(object);
  return view;
}

bool import_ndarray(nb::handle object, Access access, Array& view) {
  if (access == Access::kWrite) {
    nb::ndarray<> array;
    if (!nb::try_cast(object, array, false)) return false;
    view = from_ndarray(array, nb::borrow(object));
  } else {
    nb::ndarray<nb::ro> array;
    if (!nb::try_cast(object, array, false)) return false;
    view = from_ndarray(array, nb::borrow(object));
  }
  return true;
}

// NumPy's arrays of bfloat16 and fp8: the same memory as integers.
bool import_ml_dtypes(nb::handle object, Access access, Array& view) {
  if (!nb::hasattr(object, "dtype") || !nb::hasattr(object, "view")) return false;
  const nb::object dtype = object.attr("dtype");
  constexpr int kFirstOfUsers = 256;  // NumPy's numbers of types that others have registered
  if (!nb::hasattr(dtype, "num") || nb::cast<int>(dtype.attr("num")) < kFirstOfUsers) return false;
  const std::string name = nb::cast<std::string>(dtype.attr("name"));
  for (const Element* element : kElements) {
    if (!is_of_ml_dtypes(*element) || name != element->name) continue;
    if (!import_ndarray(object.attr("view")(element->bytes() == 2 ? "uint16" : "uint8"), access, view))
      return false;
    view.dtype = element->dlpack;
    view.kept = nb::borrow(object);
    return true;
  }
  return false;
}

nb::dlpack::dtype type_of_typestr(const std::string& typestr) {
  if (typestr.size() < 3) return {};
  const int bits = std::atoi(typestr.c_str() + 2) * 8;
  switch (typestr[1]) {
    case 'i':
      return type_of(dtype_code::Int, bits);
    case 'u':
      return type_of(dtype_code::UInt, bits);
    case 'f':
      return type_of(dtype_code::Float, bits);
    case 'V':  // as bfloat16 is written
      return bits == 16 ? kBFloat16.dlpack : kUInt8.dlpack;
    default:
      return {};
  }
}

bool read_cuda_array(nb::handle object, Access access, int gpu, Array& view) {
  const nb::dict interface = nb::cast<nb::dict>(object.attr("__cuda_array_interface__"));
  const nb::tuple data = nb::cast<nb::tuple>(interface["data"]);
  if (access == Access::kWrite && nb::cast<bool>(data[1])) return false;
  view = Array();
  view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(data[0]));
  view.shape = nb::cast<std::vector<int64_t>>(interface["shape"]);
  view.dtype = type_of_typestr(nb::cast<std::string>(interface["typestr"]));
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    view.strides = nb::cast<std::vector<int64_t>>(interface["strides"]);
    for (int64_t& stride : view.strides) stride /= std::max<int>(1, view.dtype.bits / 8);
  } else {
    view.strides.assign(view.shape.size(), 1);
    for (size_t i = view.shape.size(); i-- > 1;) view.strides[i - 1] = view.strides[i] * view.shape[i];
  }
  view.device_type = nb::device::cuda::value;
  view.device_id = gpu < 0 ? 0 : gpu;
  view.kept = nb::borrow(object);
  return true;
}

// __cuda_array_interface__, of objects that have no DLPack. It does not name the GPU; the caller vouches for
// it.
bool import_cuda_array(const char* call, const char* name, nb::handle object, Access access, int gpu,
                       Array& view) {
  if (!nb::hasattr(object, "__cuda_array_interface__")) return false;
  try {
    return read_cuda_array(object, access, gpu, view);
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_TypeError, "%s: %s has a __cuda_array_interface__ that cannot be read: %s", call, name,
                 error.what());
  }
  throw nb::python_error();
}

// DLPack's table of C functions, which a type has as a capsule (__dlpack_c_exchange_api__, DLPack 1.3): the
// description of an array without a call of Python. Functions that are not called here stand as void*.
struct DescribedArray {
  void* data;
  int32_t device_type, device_id;
  int32_t ndim;
  nb::dlpack::dtype dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
};
struct ExchangeFunctions {
  uint32_t major, minor;
  void* previous;
  void* allocate;
  void* to_managed;
  void* from_managed;
  int (*describe)(void* object, DescribedArray* described);
  int (*current_stream)(int device_type, int32_t device_id, void** stream);
};
constexpr uint32_t kExchangeMajor = 1;

// Tensors of PyTorch, whose DLPack takes microseconds: the same by its exchange functions, or, before 2.10,
// by their attributes. Its dtypes are objects of which there is one each.
class TorchTensors {
 public:
  // Null: PyTorch has not been imported. Guarded by the GIL, and never freed.
  static const TorchTensors* find() {
    static const TorchTensors* found = nullptr;
    if (found == nullptr) {
      const nb::object modules = nb::module_::import_("sys").attr("modules");
      const nb::object torch = modules.attr("get")("torch");
      if (torch.is_none() || !nb::hasattr(torch, "Tensor") || !nb::hasattr(torch, "uint32")) return nullptr;
      found = new TorchTensors(torch);
    }
    return found;
  }

  bool import(nb::handle object, Array& view) const {
    if (!Py_IS_TYPE(object.ptr(), reinterpret_cast<PyTypeObject*>(type_.ptr()))) return false;
    view = Array();
    if (!describe(object, view) && !read_attributes(object, view)) return false;
    view.kept = nb::borrow(object);
    return true;
  }

  // PyTorch's current stream of the GPU.
  uintptr_t current_stream(int gpu) const {
    void* stream = nullptr;
    if (functions_ != nullptr) {
      if (functions_->current_stream(nb::device::cuda::value, gpu, &stream) != 0) throw nb::python_error();
      return reinterpret_cast<uintptr_t>(stream);
    }
    return nb::cast<uintptr_t>(cuda_.attr("current_stream")(gpu).attr("cuda_stream"));
  }

 private:
  explicit TorchTensors(nb::handle torch)
      : type_(torch.attr("Tensor")), strided_(torch.attr("strided")), cuda_(torch.attr("cuda")) {
    for (const Element* element : kElements)
      if (nb::hasattr(torch, element->name)) elements_.emplace_back(torch.attr(element->name), element);
    const nb::object capsule = nb::getattr(type_, "__dlpack_c_exchange_api__", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), kCapsuleName)) return;
    const auto* functions =
        static_cast<const ExchangeFunctions*>(PyCapsule_GetPointer(capsule.ptr(), kCapsuleName));
    if (functions->major == kExchangeMajor && functions->describe != nullptr) functions_ = functions;
  }

  bool describe(nb::handle object, Array& view) const {
    DescribedArray tensor{};
    if (functions_ == nullptr) return false;
    if (functions_->describe(object.ptr(), &tensor) != 0) {
      PyErr_Clear();
      return false;
    }
    view.data = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
    view.shape.assign(tensor.shape, tensor.shape + tensor.ndim);
    view.strides.assign(tensor.strides, tensor.strides + tensor.ndim);
    view.dtype = tensor.dtype;
    view.device_type = tensor.device_type;
    view.device_id = tensor.device_id;
    return true;
  }

  bool read_attributes(nb::handle object, Array& view) const {
    const nb::object dtype = object.attr(dtype_name_);
    const Element* element = nullptr;
    for (const auto& [torch_dtype, known] : elements_)
      if (dtype.is(torch_dtype)) element = known;
    if (element == nullptr || !object.attr(layout_name_).is(strided_)) return false;
    view.dtype = element->dlpack;
    view.shape = numbers_of(object.attr(shape_name_));
    view.strides = numbers_of(object.attr(stride_name_)());
    const bool is_cuda = object.attr(is_cuda_name_).is(nb::handle(Py_True));
    if (!is_cuda && !object.attr(is_cpu_name_).is(nb::handle(Py_True))) return false;
    view.device_type = is_cuda ? nb::device::cuda::value : nb::device::cpu::value;
    view.device_id = is_cuda ? nb::cast<int>(object.attr(get_device_name_)()) : 0;
    view.data = reinterpret_cast<void*>(nb::cast<uintptr_t>(object.attr(data_ptr_name_)()));
    return true;
  }

  static std::vector<int64_t> numbers_of(const nb::object& tuple) {
    std::vector<int64_t> numbers(static_cast<size_t>(PyTuple_Size(tuple.ptr())));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple.ptr(), static_cast<Py_ssize_t>(i)));
    return numbers;
  }
  static nb::object name(const char* text) { return nb::steal(PyUnicode_InternFromString(text)); }

  static constexpr char kCapsuleName[] = "dlpack_exchange_api";
  nb::object type_, strided_, cuda_;
  const ExchangeFunctions* functions_ = nullptr;
  std::vector<std::pair<nb::object, const Element*>> elements_;
  nb::object dtype_name_ = name("dtype"), layout_name_ = name("layout"), shape_name_ = name("shape"),
             stride_name_ = name("stride"), is_cuda_name_ = name("is_cuda"), is_cpu_name_ = name("is_cpu"),
             get_device_name_ = name("get_device"), data_ptr_name_ = name("data_ptr");
};

[[noreturn]] void refuse(const char* call, const char* name, nb::handle object, Access access) {
  Array view;
  const char* type = Py_TYPE(object.ptr())->tp_name;
  if (access == Access::kWrite &&
      (import_ndarray(object, Access::kRead, view) || import_ml_dtypes(object, Access::kRead, view)))
    raise(invalid_argument("%s: %s is read-only; the call writes to it", call, name));
  PyErr_Format(
      PyExc_TypeError,
      "%s: %s is a %s; it must be an array of NumPy, PyTorch, CuPy or switchyard_ep, or have __dlpack__ or "
      "__cuda_array_interface__",
      call, name, type);
  throw nb::python_error();
}

Array import(const char* call, const char* name, nb::handle object, Access access, int gpu) {
  const Tensor* tensor = nullptr;
  if (nb::try_cast(object, tensor, false) && tensor != nullptr) return from_tensor(*tensor, object);
  Array view;
  if (const TorchTensors* torch = TorchTensors::find(); torch != nullptr && torch->import(object, view))
    return view;
  // DLPack of such an array would fail, and slowly.
  const bool is_numpy = std::strcmp(Py_TYPE(object.ptr())->tp_name, "numpy.ndarray") == 0;
  if ((is_numpy && import_ml_dtypes(object, access, view)) || import_ndarray(object, access, view) ||
      import_cuda_array(call, name, object, access, gpu, view) ||
      (!is_numpy && import_ml_dtypes(object, access, view)))
    return view;
  refuse(call, name, object, access);
}

// NumPy gives such an array any strides.
bool is_empty(const Array& array) {
  return std::find(array.shape.begin(), array.shape.end(), 0) != array.shape.end();
}

bool has_bits_of(nb::dlpack::dtype given, const Element* expected_or_none) {
  if (expected_or_none == nullptr) return false;
  const Element& expected = *expected_or_none;
  if (given == expected.dlpack) return true;
  // Plain integers serve as the bits of a type that the other library does not have.
  const bool is_unsigned = given.code == static_cast<uint8_t>(dtype_code::UInt);
  return is_unsigned && given.bits == expected.dlpack.bits && is_of_ml_dtypes(expected);
}

void check_shape(const char* call, const char* name, const Array& array, const Expected& expected) {
  bool fits = array.shape.size() == expected.shape.size();
  for (size_t i = 0; fits && i < array.shape.size(); ++i)
    fits = expected.shape[i] < 0 || array.shape[i] == expected.shape[i];
  if (!fits) {
    std::string wanted = text_of(expected.shape);
    for (size_t at; (at = wanted.find("-1")) != std::string::npos;) wanted.replace(at, 2, "any");
    raise(invalid_argument("%s: %s has shape %s; it must be %s = %s", call, name,
                           text_of(array.shape).c_str(), expected.shape_name, wanted.c_str()));
  }
  int64_t stride = 1;
  for (size_t i = array.shape.size(); i-- > 0 && !is_empty(array); stride *= array.shape[i]) {
    if (array.shape[i] <= 1 || array.strides[i] == stride) continue;
    const bool is_row = i == 0 && expected.takes_strided_rows;
    if (is_row && array.strides[i] > stride && array.strides[i] * array.element_bytes() % 16 == 0) continue;
    raise(invalid_argument("%s: %s has strides %s for shape %s; %s", call, name,
                           text_of(array.strides).c_str(), text_of(array.shape).c_str(),
                           expected.takes_strided_rows
                               ? "its rows must be contiguous (C order), and a multiple of 16 bytes apart "
                                 "that is no less than a row"
                               : "it must be contiguous (C order)"));
  }
}

}  // namespace

const Element& element_by_name(const char* call, const std::string& name) {
  std::string names;
  for (const Element* element : kElements) {
    if (name == element->name) return *element;
    names += (names.empty() ? "" : ", ") + std::string(element->name);
  }
  raise(invalid_argument("%s: dtype is %s; it must be one of %s", call, name.c_str(), names.c_str()));
}

size_t Tensor::size() const {
  return std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>());
}

Tensor allocate(const Session& session, const char* call, int world_rank, std::vector<size_t> shape,
                const Element& element) {
  // The buffer goes first.
  struct Memory {
    std::shared_ptr<WorldCore> core;
    Owned<Buffer<std::byte>> buffer;
  };
  const Rank& rank = session.rank(call, world_rank);
  Tensor tensor{nullptr, std::move(shape), element, session.core()->gpu_of(world_rank), nullptr};
  const size_t bytes = tensor.size() * static_cast<size_t>(element.bytes());
  auto memory = std::make_shared<Memory>();
  memory->core = session.core();
  memory->buffer = Owned<Buffer<std::byte>>(new Buffer<std::byte>(need(rank.allocate<std::byte>(bytes))));
  tensor.data = memory->buffer->data();
  tensor.owner = std::move(memory);
  return tensor;
}

uint64_t Array::row_stride_bytes() const {
  if (shape.size() < 2 || shape[0] < 2 || is_empty(*this)) return 0;
  int64_t row = 1;
  for (size_t i = 1; i < shape.size(); ++i) row *= shape[i];
  return strides[0] == row ? 0 : static_cast<uint64_t>(strides[0] * element_bytes());
}

Stream Arguments::stream_from(nb::handle stream) const {
  if (!PyUnicode_Check(stream.ptr()) || PyUnicode_CompareWithASCIIString(stream.ptr(), "current") != 0)
    return stream_of(call_, stream);
  const int gpu = session_.core()->gpu_of(world_rank_);
  if (gpu < 0) return {};
  const TorchTensors* torch = TorchTensors::find();
  if (torch == nullptr)
    raise(invalid_argument("%s: stream is 'current', which is PyTorch's; it has not been imported", call_));
  return Stream(reinterpret_cast<StreamHandle>(torch->current_stream(gpu)));
}

// The memory is zeroed on the rank's stream, which nothing orders with the caller's.
void Arguments::make_output(nb::object& out, const char* name, std::vector<int64_t> shape,
                            const Element& element) const {
  if (!out.is_none()) return;
  if (stream_.is_callers() && session_.core()->is_cuda())
    raise(invalid_argument(
        "%s: %s is None; a call that is given a stream must be given what it writes to, too", call_, name));
  out = nb::cast(
      allocate(session_, call_, world_rank_, std::vector<size_t>(shape.begin(), shape.end()), element));
}

Array Arguments::array(nb::handle object, const char* name, const Expected& expected) {
  const WorldCore& core = *session_.core();
  const int gpu = core.gpu_of(world_rank_);
  Array array = import(call_, name, object, expected.access, gpu);
  if (!has_bits_of(array.dtype, &expected.element) && !has_bits_of(array.dtype, expected.other_element))
    raise(invalid_argument("%s: %s has dtype %s; it must be %s%s%s", call_, name,
                           name_of(array.dtype).c_str(), expected.element.name,
                           expected.other_element != nullptr ? " or " : "",
                           expected.other_element != nullptr ? expected.other_element->name : ""));
  check_shape(call_, name, array, expected);
  const bool is_here =
      core.is_cuda()
          ? (array.device_type == nb::device::cuda::value && array.device_id == gpu) ||
                array.device_type == nb::device::cuda_managed::value
          : array.device_type == nb::device::cpu::value || array.device_type == nb::device::cuda_host::value;
  if (!is_here)
    raise(invalid_argument("%s: %s is on %s; rank %d is on %s", call_, name,
                           device_text(array.device_type, array.device_id).c_str(), world_rank_,
                           core.is_cuda() ? ("cuda:" + std::to_string(gpu)).c_str() : "the host"));
  if (!is_empty(array) && reinterpret_cast<uintptr_t>(array.data) % 16 != 0)
    raise(
        invalid_argument("%s: %s is at address %p; it must be aligned to 16 bytes", call_, name, array.data));
  kept_.push_back(array.kept);
  return array;
}

}  // namespace switchyard::python

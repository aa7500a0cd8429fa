// Arrays: those that Python passes (NumPy, PyTorch, CuPy, anything with DLPack or __cuda_array_interface__),
// which are used where they are, and Tensor, memory of a rank that Python sees through the same protocols.
#pragma once

#include <nanobind/ndarray.h>

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "session.hpp"
#include "streams.hpp"

namespace switchyard::python {

// An element type, by the names that NumPy and ml_dtypes have for it.
struct Element {
  const char* name;
  nb::dlpack::dtype dlpack;

  int bytes() const { return dlpack.bits / 8; }
};
extern const Element kBFloat16, kFloat32, kInt32, kUInt32, kInt64, kUInt64, kUInt8, kUInt16, kE4M3, kE5M2,
    kE8M0;
const Element& element_by_name(const char* call, const std::string& name);

// Memory of a rank. Copies share it.
struct Tensor {
  void* data = nullptr;
  std::vector<size_t> shape;
  Element element;
  int gpu = -1;                 // -1: host memory
  std::shared_ptr<void> owner;  // what the memory belongs to; it destroys nothing that needs the GIL

  size_t size() const;
};
// Allocates zeroed memory of a rank, freed behind what is on its stream once the last Tensor is gone.
Tensor allocate(const Session& session, const char* call, int world_rank, std::vector<size_t> shape,
                const Element& element);

// An array as it was passed.
struct Array {
  void* data = nullptr;
  std::vector<int64_t> shape, strides;  // strides in elements
  nb::dlpack::dtype dtype;
  int device_type = 0;
  int device_id = 0;
  bool is_own = false;  // a Tensor

  int64_t element_bytes() const { return dtype.bits / 8; }
  // From a row to the next; 0: they are contiguous.
  uint64_t row_stride_bytes() const;
  nb::object kept;  // keeps the memory alive
};

enum class Access { kRead, kWrite };

// What an argument must be. A dimension of -1 may have any size.
struct Expected {
  const Element& element;
  std::vector<int64_t> shape;
  const char* shape_name;  // "(num_tokens, hidden)"
  Access access = Access::kRead;
  const Element* other_element = nullptr;  // which will do, too
  bool takes_strided_rows = false;         // rows are contiguous, and a multiple of 16 bytes apart
};

// The arguments of one call: each is checked by name, and kept for the session. What is enqueued on a CUDA
// stream of the caller's is not kept: who has streams has memory that is freed in their order.
class Arguments {
 public:
  Arguments(const char* call, Session& session, int world_rank, nb::handle stream = nb::none())
      : call_(call), session_(session), world_rank_(world_rank), stream_(stream_from(stream)) {}

  const char* call() const { return call_; }
  // What the call enqueues on.
  Stream stream() const { return stream_; }

  // Imports and checks an array; None is no array, and null.
  Array array(nb::handle object, const char* name, const Expected& expected);
  template <typename T>
  T* pointer(nb::handle object, const char* name, const Expected& expected) {
    return object.is_none() ? nullptr : static_cast<T*>(array(object, name, expected).data);
  }
  void keep(nb::object object) { kept_.push_back(std::move(object)); }
  // The call has been enqueued: what was passed is kept until the stream has been waited for.
  void enqueued() {
    if (!stream_.is_callers() || !session_.core()->is_cuda()) session_.keep(world_rank_, std::move(kept_));
  }
  // Makes what the call writes to, unless it is given.
  void make_output(nb::object& out, const char* name, std::vector<int64_t> shape,
                   const Element& element) const;

 private:
  // "current" is PyTorch's current stream of the rank's GPU; on the host, the rank's own.
  Stream stream_from(nb::handle stream) const;

  const char* call_;
  Session& session_;
  int world_rank_;
  Stream stream_;
  std::vector<nb::object> kept_;
};

void bind_tensor(nb::module_& module);

}  // namespace switchyard::python

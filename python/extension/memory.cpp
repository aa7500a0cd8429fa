#include "memory.hpp"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace switchyard::python {
namespace {

// The caller's allocator. A thread of the library that gives memory back must not wait for the GIL, which
// whoever waits for that thread may hold: the memory goes back later, with the next allocation, a wait of the
// session's, or the world.
class PythonMemory : public ReturnedMemory {
 public:
  PythonMemory(nb::object allocate, nb::object deallocate)
      : allocate_(std::move(allocate)), deallocate_(std::move(deallocate)) {}

  uintptr_t allocate(uint64_t bytes, int gpu, uintptr_t stream) {
    give_back();
    return address_from(allocate_(bytes, gpu, stream));
  }
  void take_back(uintptr_t address, uint64_t bytes, int gpu, uintptr_t stream) {
    std::lock_guard lock(mutex_);
    returned_.push_back({address, bytes, gpu, stream});
  }
  void give_back() override {
    std::vector<Piece> pieces;
    {
      std::lock_guard lock(mutex_);
      pieces.swap(returned_);
    }
    for (const Piece& piece : pieces) try {
        deallocate_(piece.address, piece.bytes, piece.gpu, piece.stream);
      } catch (nb::python_error& error) {
        error.discard_as_unraisable("deallocate of the world's memory");
      }
  }

 private:
  struct Piece {
    uintptr_t address;
    uint64_t bytes;
    int gpu;
    uintptr_t stream;
  };

  static uintptr_t address_from(const nb::object& returned) {
    uintptr_t address = 0;
    if (nb::try_cast(returned, address)) return address;
    throw std::runtime_error("it returned " + std::string(nb::repr(returned).c_str()) +
                             "; it must return an address, an int of at least 0");
  }

  nb::object allocate_, deallocate_;
  std::mutex mutex_;
  std::vector<Piece> returned_;
};

}  // namespace

// What the interpreter's end finds is leaked.
std::shared_ptr<ReturnedMemory> python_memory(nb::handle given) {
  if (given.is_none()) return nullptr;
  nb::tuple pair;
  if (!nb::try_cast(given, pair) || nb::len(pair) != 2 || !PyCallable_Check(nb::handle(pair[0]).ptr()) ||
      !PyCallable_Check(nb::handle(pair[1]).ptr())) {
    PyErr_SetString(PyExc_TypeError, "memory must be two functions, (allocate, deallocate)");
    throw nb::python_error();
  }
  return std::shared_ptr<PythonMemory>(new PythonMemory(pair[0], pair[1]), [](PythonMemory* memory) {
    if (!nb::is_alive()) return;
    nb::gil_scoped_acquire gil;
    memory->give_back();
    delete memory;
  });
}

MemoryFunctions allocator_of(const std::shared_ptr<ReturnedMemory>& given) {
  const auto memory = std::static_pointer_cast<PythonMemory>(given);
  if (memory == nullptr) return {};
  const auto number_of = [](StreamHandle stream) { return reinterpret_cast<uintptr_t>(stream); };
  return {[memory, number_of](uint64_t bytes, int gpu, StreamHandle stream) -> void* {
            nb::gil_scoped_acquire gil;
            try {
              return reinterpret_cast<void*>(memory->allocate(bytes, gpu, number_of(stream)));
            } catch (nb::python_error& error) {
              // The text of an exception needs the GIL, which whoever catches it does not have.
              throw std::runtime_error(error.what());
            }
          },
          [memory, number_of](void* address, uint64_t bytes, int gpu, StreamHandle stream) {
            memory->take_back(reinterpret_cast<uintptr_t>(address), bytes, gpu, number_of(stream));
          }};
}

}  // namespace switchyard::python

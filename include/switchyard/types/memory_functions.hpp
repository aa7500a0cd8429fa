// The caller's allocator, which World::create() and World::join() take. Plain values; they own nothing but
// what their functions hold.
#pragma once

#include <cstdint>
#include <functional>

#include "switchyard/types/target.hpp"

namespace switchyard {

// Where the memory of a device comes from, if the caller has an allocator. Both functions may be called from
// any thread; an exception that allocate() throws is an error of the call that wanted the memory.
struct MemoryFunctions {
  // Returns memory that is aligned to 256 bytes and free for use behind what is on `stream`, which is one of
  // the library's; null: there is none. `gpu` is the CUDA device, 0 on the host.
  std::function<void*(uint64_t bytes, int gpu, StreamHandle stream)> allocate;
  // Takes it back, and must not throw. What is on `stream` may still use it; null: nothing does.
  std::function<void(void* memory, uint64_t bytes, int gpu, StreamHandle stream)> deallocate;
};

}  // namespace switchyard

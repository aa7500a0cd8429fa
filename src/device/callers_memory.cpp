#include "switchyard/detail/device/callers_memory.hpp"

#include <algorithm>
#include <exception>

namespace switchyard {

Result<void*> CallersMemory::allocate(uint64_t bytes, int gpu, StreamHandle stream) {
  constexpr uintptr_t kAlignment = 256;
  const uint64_t asked = std::max<uint64_t>(bytes, 1);
  void* memory = nullptr;
  try {
    memory = functions_.allocate(asked, gpu, stream);
  } catch (const std::exception& error) {
    return resource_exhausted("%llu bytes: the caller's allocate() threw: %s",
                              static_cast<unsigned long long>(asked), error.what());
  } catch (...) {
    return resource_exhausted("%llu bytes: the caller's allocate() threw",
                              static_cast<unsigned long long>(asked));
  }
  if (memory == nullptr)
    return resource_exhausted("%llu bytes: the caller's allocate() returned null",
                              static_cast<unsigned long long>(asked));
  if (reinterpret_cast<uintptr_t>(memory) % kAlignment != 0) {
    functions_.deallocate(memory, asked, gpu, nullptr);
    return invalid_argument("the caller's allocate() returned %p; it must be aligned to %zu bytes", memory,
                            static_cast<size_t>(kAlignment));
  }
  std::lock_guard lock(mutex_);
  pieces_[memory] = {asked, gpu};
  return memory;
}

CallersMemory::~CallersMemory() {
  for (const auto& [memory, piece] : pieces_) functions_.deallocate(memory, piece.bytes, piece.gpu, nullptr);
}

bool CallersMemory::deallocate(void* memory, int gpu, StreamHandle stream) {
  uint64_t bytes = 0;
  {
    std::lock_guard lock(mutex_);
    const auto found = pieces_.find(memory);
    if (found == pieces_.end()) return false;
    bytes = found->second.bytes;
    pieces_.erase(found);
  }
  functions_.deallocate(memory, bytes, gpu, stream);
  return true;
}

}  // namespace switchyard

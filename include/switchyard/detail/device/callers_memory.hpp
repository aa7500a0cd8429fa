// The caller's allocator, as a device uses it.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>

#include "switchyard/status.hpp"
#include "switchyard/types/memory_functions.hpp"

namespace switchyard {

// Knows how many bytes each piece of memory has. Threads: any.
class CallersMemory {
 public:
  CallersMemory() = default;
  // Gives back what is left: launches that ended with their device never freed it.
  ~CallersMemory();
  CallersMemory(const CallersMemory&) = delete;
  CallersMemory& operator=(const CallersMemory&) = delete;

  void use(const MemoryFunctions& functions) { functions_ = functions; }
  bool is_used() const { return static_cast<bool>(functions_.allocate); }

  // The memory is not zeroed.
  Result<void*> allocate(uint64_t bytes, int gpu, StreamHandle stream);
  bool has(void* memory) {
    std::lock_guard lock(mutex_);
    return pieces_.contains(memory);
  }
  // Returns false if the memory did not come from here.
  bool deallocate(void* memory, int gpu, StreamHandle stream);

 private:
  MemoryFunctions functions_;
  std::mutex mutex_;
  struct Piece {
    uint64_t bytes;
    int gpu;
  };
  std::unordered_map<void*, Piece> pieces_;
};

}  // namespace switchyard

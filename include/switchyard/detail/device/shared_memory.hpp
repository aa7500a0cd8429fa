// Memory that several processes have mapped: one makes it and hands a file descriptor of it to the others.
#pragma once

#include <cstdint>
#include <memory>

#include "switchyard/detail/device/file_descriptor.hpp"
#include "switchyard/status.hpp"

namespace switchyard {

// One process's mapping, undone with the object. The memory lives until the last mapping of it, of whatever
// process, and the last file descriptor are gone.
class SharedMapping {
 public:
  virtual ~SharedMapping() = default;
  virtual void* data() const = 0;  // aligned to 256 bytes
};

// What the process that made the memory has of it.
struct SharedMemory {
  std::unique_ptr<SharedMapping> mapping;
  FileDescriptor file;
};

// Host memory in a file without a name, whose size cannot change, so that no mapping of it can break.
Result<SharedMemory> create_memory_file(uint64_t bytes);
// Maps such a file that another process made, if it has `bytes` and keeps them.
Result<std::unique_ptr<SharedMapping>> map_memory_file(const FileDescriptor& file, uint64_t bytes);

}  // namespace switchyard

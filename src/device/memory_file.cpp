#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "switchyard/detail/device/shared_memory.hpp"

namespace switchyard {
namespace {

constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

class MappedFile : public SharedMapping {
 public:
  MappedFile(void* data, uint64_t bytes) : data_(data), bytes_(bytes) {}
  ~MappedFile() override { munmap(data_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  void* data() const override { return data_; }

 private:
  void* const data_;
  const uint64_t bytes_;
};

// A mapping has at least one byte.
uint64_t mapped_bytes(uint64_t bytes) { return std::max<uint64_t>(bytes, 1); }

Status system_error(const char* call, uint64_t bytes) {
  return resource_exhausted("%s of %llu bytes of shared memory: %s", call,
                            static_cast<unsigned long long>(bytes), std::strerror(errno));
}

Result<std::unique_ptr<SharedMapping>> map_file(const FileDescriptor& file, uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file.number(), 0);
  if (data == MAP_FAILED) return system_error("mmap", bytes);
  return std::unique_ptr<SharedMapping>(std::make_unique<MappedFile>(data, bytes));
}

}  // namespace

Result<SharedMemory> create_memory_file(uint64_t bytes) {
  const uint64_t size = mapped_bytes(bytes);
  FileDescriptor file(memfd_create("switchyard", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) return no_file_descriptor("shared memory: memfd_create", errno);
  if (ftruncate(file.number(), static_cast<off_t>(size)) != 0) return system_error("ftruncate", size);
  if (fcntl(file.number(), F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0)
    return system_error("F_ADD_SEALS", size);
  Result<std::unique_ptr<SharedMapping>> mapping = map_file(file, size);
  if (!mapping.ok()) return mapping.status();
  return SharedMemory{std::move(mapping).value(), std::move(file)};
}

Result<std::unique_ptr<SharedMapping>> map_memory_file(const FileDescriptor& file, uint64_t bytes) {
  const uint64_t size = mapped_bytes(bytes);
  struct stat found {};
  if (fstat(file.number(), &found) != 0) return system_error("fstat", size);
  const int seals = fcntl(file.number(), F_GET_SEALS);
  if (static_cast<uint64_t>(found.st_size) != size || seals < 0 || (seals & kSizeSeals) != kSizeSeals)
    return invalid_argument("a memory file has %lld bytes and seals %d; it must have %llu bytes, sealed",
                            static_cast<long long>(found.st_size), seals,
                            static_cast<unsigned long long>(size));
  return map_file(file, size);
}

}  // namespace switchyard

// Memory of every rank of a world in several processes, mapped into this one.
#pragma once

#include <map>
#include <memory>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/transport/transport.hpp"

namespace switchyard {

class ProcessMemory : public SymmetricMemory {
 public:
  // Makes the memory of a local rank, and keeps its files until close_files().
  Status create(Device& device, int rank, uint64_t bytes, uint64_t host_visible_bytes);
  // Maps the memory of a rank of another process by the files that it sent.
  Status map(Device& device, int rank, uint64_t bytes, uint64_t host_visible_bytes,
             const std::vector<FileDescriptor>& files);
  // What another process needs for map().
  std::vector<int> files_of(int rank) const;
  // Once all processes have mapped everything, nobody needs the files any more.
  void close_files();

  std::byte* of_rank(int rank) const override;
  std::byte* host_visible_of_rank(int rank) const override;

 private:
  struct OfRank {
    std::unique_ptr<SharedMapping> memory, host_visible;
    FileDescriptor memory_file, host_visible_file;
  };

  std::map<int, OfRank> memory_of_;
};

}  // namespace switchyard

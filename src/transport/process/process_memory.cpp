#include "process_memory.hpp"

namespace switchyard {

Status ProcessMemory::create(Device& device, int rank, uint64_t bytes, uint64_t host_visible_bytes) {
  Result<SharedMemory> memory = device.allocate_shared(bytes);
  if (!memory.ok()) return memory.status();
  Result<SharedMemory> host_visible = device.allocate_shared_host_visible(host_visible_bytes);
  if (!host_visible.ok()) return host_visible.status();
  memory_of_[rank] = {std::move(memory.value().mapping), std::move(host_visible.value().mapping),
                      std::move(memory.value().file), std::move(host_visible.value().file)};
  return Status();
}

Status ProcessMemory::map(Device& device, int rank, uint64_t bytes, uint64_t host_visible_bytes,
                          const std::vector<FileDescriptor>& files) {
  if (files.size() != 2)
    return internal_error("rank %d sent %zu files of its memory; it must be 2", rank, files.size());
  Result<std::unique_ptr<SharedMapping>> memory = device.map_shared(files[0], bytes);
  if (!memory.ok()) return memory.status();
  Result<std::unique_ptr<SharedMapping>> host_visible =
      device.map_shared_host_visible(files[1], host_visible_bytes);
  if (!host_visible.ok()) return host_visible.status();
  OfRank& of_rank = memory_of_[rank];
  of_rank.memory = std::move(memory).value();
  of_rank.host_visible = std::move(host_visible).value();
  return Status();
}

std::vector<int> ProcessMemory::files_of(int rank) const {
  const OfRank& of_rank = memory_of_.at(rank);
  return {of_rank.memory_file.number(), of_rank.host_visible_file.number()};
}

void ProcessMemory::close_files() {
  for (auto& [rank, of_rank] : memory_of_) {
    of_rank.memory_file.close();
    of_rank.host_visible_file.close();
  }
}

std::byte* ProcessMemory::of_rank(int rank) const {
  const auto found = memory_of_.find(rank);
  return found == memory_of_.end() ? nullptr : static_cast<std::byte*>(found->second.memory->data());
}

std::byte* ProcessMemory::host_visible_of_rank(int rank) const {
  const auto found = memory_of_.find(rank);
  return found == memory_of_.end() ? nullptr : static_cast<std::byte*>(found->second.host_visible->data());
}

}  // namespace switchyard

#include "local_transport.hpp"

#include <algorithm>
#include <map>

#include "check_members.hpp"

namespace switchyard {
namespace {

class LocalMemory : public SymmetricMemory {
 public:
  struct OfRank {
    DeviceMemory memory;
    DeviceMemory host_visible;
  };

  explicit LocalMemory(std::map<int, OfRank> memory_of) : memory_of_(std::move(memory_of)) {}

  std::byte* of_rank(int rank) const override {
    const auto found = memory_of_.find(rank);
    return found == memory_of_.end() ? nullptr : found->second.memory.as<std::byte>();
  }
  std::byte* host_visible_of_rank(int rank) const override {
    const auto found = memory_of_.find(rank);
    return found == memory_of_.end() ? nullptr : found->second.host_visible.as<std::byte>();
  }

 private:
  const std::map<int, OfRank> memory_of_;
};

class LocalTransport : public Transport {
 public:
  explicit LocalTransport(std::vector<Device*> device_of_rank) : device_of_rank_(std::move(device_of_rank)) {}

  const char* name() const override { return "local"; }
  int n_ranks() const override { return static_cast<int>(device_of_rank_.size()); }
  int first_local_rank() const override { return 0; }
  int num_local_ranks() const override { return n_ranks(); }
  int num_ranks_on_device_of(int rank) const override {
    return static_cast<int>(std::count(device_of_rank_.begin(), device_of_rank_.end(), &device_of(rank)));
  }

  Result<std::vector<Bytes>> all_gather(std::span<const int> members, const Bytes& mine) override {
    SWITCHYARD_RETURN_IF_ERROR(check_members(members, *this));
    return std::vector<Bytes>(members.size(), mine);
  }
  Status barrier(std::span<const int> members) override { return check_members(members, *this); }
  Result<std::unique_ptr<SymmetricMemory>> allocate(std::span<const int> members, uint64_t bytes,
                                                    uint64_t host_visible_bytes) override {
    SWITCHYARD_RETURN_IF_ERROR(check_members(members, *this));
    std::map<int, LocalMemory::OfRank> memory_of;
    for (const int rank : members) {
      Result<DeviceMemory> memory = DeviceMemory::allocate(device_of(rank), bytes);
      if (!memory.ok()) return memory.status();
      Result<DeviceMemory> host_visible =
          DeviceMemory::allocate_host_visible(device_of(rank), std::max<uint64_t>(host_visible_bytes, 1));
      if (!host_visible.ok()) return host_visible.status();
      memory_of[rank] = {std::move(memory).value(), std::move(host_visible).value()};
    }
    return std::unique_ptr<SymmetricMemory>(std::make_unique<LocalMemory>(std::move(memory_of)));
  }

  // A rank of this process cannot end without the others.
  std::vector<int> dead_ranks() const override { return {}; }
  std::shared_ptr<void> watch(std::function<void(int rank)>) override { return nullptr; }

 private:
  Device& device_of(int rank) const { return *device_of_rank_[static_cast<size_t>(rank)]; }

  const std::vector<Device*> device_of_rank_;
};

}  // namespace

std::unique_ptr<Transport> create_local_transport(std::vector<Device*> device_of_rank) {
  return std::make_unique<LocalTransport>(std::move(device_of_rank));
}

}  // namespace switchyard

#include "switchyard/world.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "runtime/world_impl.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/detail/target/launch_turn.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "transport/local_transport.hpp"

namespace switchyard {

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
World::~World() = default;

Result<std::unique_ptr<World>> World::create(const WorldOptions& options) {
  if (options.n_ranks < 1 || options.n_ranks > kMaxWorldRanks)
    return invalid_argument("n_ranks is %d; it must be 1..%d", options.n_ranks, kMaxWorldRanks);
  const bool use_cuda = options.target == TargetChoice::kCuda ||
                        (options.target == TargetChoice::kAuto && num_cuda_devices() > 0);
  auto impl = std::make_unique<Impl>();
  if (use_cuda) {
    const int num_gpus =
        options.num_gpus != 0 ? options.num_gpus : std::clamp(num_cuda_devices(), 1, options.n_ranks);
    if (num_gpus < 0 || num_gpus > options.n_ranks)
      return invalid_argument("num_gpus is %d; it must be 1..n_ranks (%d)", num_gpus, options.n_ranks);
    auto devices = create_cuda_devices(num_gpus);
    if (!devices.ok()) return devices.status();
    impl->devices = std::move(devices).value();
  } else {
    impl->devices.push_back(create_host_device(options.host));
  }
  SWITCHYARD_RETURN_IF_ERROR(impl->use(options.memory));
  std::vector<Device*> device_of_rank;
  for (size_t rank = 0; rank < static_cast<size_t>(options.n_ranks); ++rank)
    device_of_rank.push_back(
        impl->devices[rank * impl->devices.size() / static_cast<size_t>(options.n_ranks)].get());
  impl->carrier = create_local_transport(device_of_rank);
  SWITCHYARD_RETURN_IF_ERROR(impl->make_ranks(options.host, device_of_rank));
  return std::unique_ptr<World>(new World(std::move(impl)));
}

Status World::Impl::use(const MemoryFunctions& memory) const {
  if (static_cast<bool>(memory.allocate) != static_cast<bool>(memory.deallocate))
    return invalid_argument("memory has %s only; it must have both functions or none",
                            memory.allocate ? "allocate" : "deallocate");
  if (memory.allocate)
    for (const auto& device : devices) device->use(memory);
  return Status();
}

Status World::Impl::make_ranks(const HostDeviceOptions& host, const std::vector<Device*>& device_of_rank) {
  if (host.hooks != nullptr) make_memory_opener = host.hooks->make_memory_opener;  // they may be gone later
  const bool has_own_kernels = host.hooks != nullptr && host.hooks->kernels != nullptr;
  const KernelTable& kernels =
      has_own_kernels ? *host.hooks->kernels : kernel_table(devices.front()->target());
  for (const auto& device : devices) {
    const DeviceScope active = device->activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    SWITCHYARD_RETURN_IF_ERROR(kernels.load());
  }
  if (device_of_rank.size() > devices.size()) LaunchTurn::require();
  for (Device* device : device_of_rank) {
    Result<StreamHandle> stream = device->create_stream();
    if (!stream.ok()) return stream.status();
    const int index = carrier->first_local_rank() + static_cast<int>(ranks.size());
    ranks.push_back(std::make_unique<Rank>(index, *device, stream.value(), kernels));
  }
  return Status();
}

Target World::target() const { return impl_->devices.front()->target(); }
int World::n_ranks() const { return impl_->transport().n_ranks(); }
bool World::is_local(int rank) const { return impl_->transport().is_local(rank); }
const char* World::transport_name() const { return impl_->transport().name(); }

std::vector<int> World::local_ranks() const {
  std::vector<int> ranks;
  for (const auto& rank : impl_->ranks) ranks.push_back(rank->index());
  return ranks;
}

Rank& World::rank(int index) const {
  if (index < 0 || index >= n_ranks())
    throw std::out_of_range("World::rank: index is " + std::to_string(index) + "; it must be 0.." +
                            std::to_string(n_ranks() - 1));
  const int first = impl_->transport().first_local_rank();
  if (!is_local(index))
    throw std::out_of_range("World::rank: rank " + std::to_string(index) +
                            " is not local: this process has " + std::to_string(first) + ".." +
                            std::to_string(first + impl_->transport().num_local_ranks() - 1));
  return *impl_->ranks[static_cast<size_t>(index - first)];
}

Transport& Internals::transport(const World& world) { return world.impl_->transport(); }
Status Internals::check_process(const World& world, const char* call) {
  return world.impl_->process.check(call);
}
std::unique_ptr<MemoryOpener> Internals::make_memory_opener(const World& world, const Rank& rank) {
  const auto make = world.impl_->make_memory_opener;
  return make != nullptr ? make() : create_memory_opener(rank.device_);
}

int World::num_ranks_on_device_of(int index) const {
  return impl_->transport().num_ranks_on_device_of(rank(index).index());
}

Result<std::vector<std::vector<std::byte>>> World::all_gather(const std::vector<std::byte>& mine) const {
  SWITCHYARD_RETURN_IF_ERROR(impl_->process.check("all_gather"));
  std::vector<int> all(static_cast<size_t>(n_ranks()));
  std::iota(all.begin(), all.end(), 0);
  return impl_->transport().all_gather(all, mine);
}

Status World::synchronize() const {
  SWITCHYARD_RETURN_IF_ERROR(impl_->process.check("synchronize"));
  Status first_error;
  for (const auto& rank : impl_->ranks)
    if (Status status = rank->synchronize(); !status.ok() && first_error.ok()) first_error = status;
  return first_error;
}

}  // namespace switchyard

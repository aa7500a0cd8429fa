#include "switchyard/world.hpp"

#include <algorithm>
#include <stdexcept>

#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"

namespace switchyard {

Result<std::unique_ptr<World>> World::create(const WorldOptions& options) {
  if (options.n_ranks < 1 || options.n_ranks > kMaxRanks)
    return invalid_argument("n_ranks is %d; it must be 1..%d", options.n_ranks, kMaxRanks);
  const bool use_cuda = options.target == TargetChoice::kCuda ||
                        (options.target == TargetChoice::kAuto && num_cuda_devices() > 0);
  auto world = std::unique_ptr<World>(new World());
  if (use_cuda) {
    const int num_gpus =
        options.num_gpus != 0 ? options.num_gpus : std::clamp(num_cuda_devices(), 1, options.n_ranks);
    if (num_gpus < 0 || num_gpus > options.n_ranks)
      return invalid_argument("num_gpus is %d; it must be 1..n_ranks (%d)", num_gpus, options.n_ranks);
    auto devices = create_cuda_devices(num_gpus);
    if (!devices.ok()) return devices.status();
    world->devices_ = std::move(devices).value();
  } else {
    world->devices_.push_back(create_host_device(options.host));
  }
  const KernelTable& kernels =
      options.host.hooks.kernels != nullptr ? *options.host.hooks.kernels : kernel_table(world->target());
  for (const auto& device : world->devices_) {
    const DeviceScope active = device->activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    SWITCHYARD_RETURN_IF_ERROR(kernels.load());
  }
  const int num_devices = static_cast<int>(world->devices_.size());
  for (int rank = 0; rank < options.n_ranks; ++rank) {
    Device& device = *world->devices_[static_cast<size_t>(rank * num_devices / options.n_ranks)];
    Result<StreamHandle> stream = device.create_stream();
    if (!stream.ok()) return stream.status();
    world->ranks_.push_back(std::make_unique<Rank>(rank, device, stream.value(), kernels));
  }
  return world;
}

Rank& World::rank(int index) const {
  if (index < 0 || index >= n_ranks())
    throw std::out_of_range("World::rank: index is " + std::to_string(index) + "; it must be 0.." +
                            std::to_string(n_ranks() - 1));
  return *ranks_[static_cast<size_t>(index)];
}

int World::num_ranks_on_device_of(int index) const {
  return static_cast<int>(std::count_if(
      ranks_.begin(), ranks_.end(),
      [&](const std::unique_ptr<Rank>& other) { return &other->device() == &rank(index).device(); }));
}

Status World::synchronize() const {
  Status first_error;
  for (const auto& rank : ranks_)
    if (Status status = rank->synchronize(); !status.ok() && first_error.ok()) first_error = status;
  return first_error;
}

}  // namespace switchyard

// World::join(): checks the options, makes the device, and meets the processes of the other ranks.
#include <algorithm>
#include <numeric>

#include "runtime/world_impl.hpp"
#include "switchyard/detail/testing/test_hooks.hpp"
#include "transport/process/process_transport.hpp"
#include "transport/shmem/shmem_plugin.hpp"
#include "transport/shmem/shmem_transport.hpp"

namespace switchyard {
namespace {

Status validate(const JoinOptions& options) {
  const bool is_by_shmem = options.transport == TransportChoice::kShmem;
  if (options.n_ranks < 1 || options.n_ranks > kMaxWorldRanks)
    return invalid_argument("n_ranks is %d; it must be 1..%d", options.n_ranks, kMaxWorldRanks);
  if (options.rank < 0 || options.rank >= options.n_ranks)
    return invalid_argument("rank is %d; it must be 0..%d", options.rank, options.n_ranks - 1);
  if (options.num_local_ranks < 1 || options.num_local_ranks > options.n_ranks - options.rank)
    return invalid_argument("num_local_ranks is %d; from rank %d on it must be 1..%d",
                            options.num_local_ranks, options.rank, options.n_ranks - options.rank);
  if (options.timeout_ns == 0) return invalid_argument("timeout_ns is 0; it must be at least 1");
  if (options.host.mode != EmulatorMode::kFast)
    return invalid_argument("host.mode is simulated; a world that is joined needs the fast mode");
  if (is_by_shmem && !options.rendezvous.empty())
    return invalid_argument(
        "rendezvous is given; SHMEM's launcher or all_gather brings the processes together");
  if (is_by_shmem && !options.all_gather && (options.n_ranks != 1 || options.rank != 0))
    return invalid_argument("rank %d of n_ranks %d is given; SHMEM's launcher numbers the ranks",
                            options.rank, options.n_ranks);
  if (is_by_shmem && options.num_local_ranks != 1)
    return invalid_argument("num_local_ranks is %d; by SHMEM a process has one rank",
                            options.num_local_ranks);
  if (!is_by_shmem && static_cast<bool>(options.all_gather) == !options.rendezvous.empty())
    return invalid_argument("join needs one of all_gather and rendezvous; %s given",
                            options.all_gather ? "both are" : "none is");
  return Status();
}

Result<std::unique_ptr<Device>> make_device(const JoinOptions& options) {
  const int num_gpus = options.target == TargetChoice::kHost ? 0 : num_cuda_devices();
  if (options.target == TargetChoice::kHost || (options.target == TargetChoice::kAuto && num_gpus == 0))
    return create_host_device(options.host);
  return create_cuda_device(options.gpu >= 0 ? options.gpu : options.rank % std::max(num_gpus, 1));
}

}  // namespace

// SHMEM comes before the device: on CUDA it chooses the GPU.
Status World::Impl::join_by_shmem(const JoinOptions& options) {
  const bool is_on_host = options.target == TargetChoice::kHost ||
                          (options.target == TargetChoice::kAuto && num_cuda_devices() == 0);
  const Target target = is_on_host ? Target::kHost : Target::kCuda;
  const TestHooks* hooks = options.host.hooks;
  const Result<const ShmemApi*> api = hooks != nullptr && hooks->shmem != nullptr
                                          ? Result<const ShmemApi*>(hooks->shmem)
                                          : load_shmem_plugin(target);
  if (!api.ok()) return api.status();
  ShmemRequirements requirements{.size = sizeof(ShmemRequirements), .gpu = options.gpu};
  if (options.all_gather) {
    const Result<ShmemId> id =
        agree_on_shmem_id(*api.value(), options.rank, options.n_ranks, options.all_gather);
    if (!id.ok()) return id.status();
    requirements.id = id.value();
    requirements.rank = options.rank;
    requirements.n_ranks = options.n_ranks;
  }
  Result<ShmemProcess> process = start_shmem(*api.value(), requirements, options.timeout_ns);
  if (!process.ok()) return process.status();
  JoinOptions of_pe = options;
  of_pe.gpu = process.value().gpu;
  Result<std::unique_ptr<Device>> device = make_device(of_pe);
  if (!device.ok()) {
    api.value()->abandon();
    return device.status();
  }
  devices.push_back(std::move(device).value());
  Result<std::unique_ptr<Transport>> transport =
      join_shmem(std::move(process).value(), *devices.front(), options.timeout_ns);
  if (!transport.ok()) return transport.status();
  set_carrier(std::move(transport).value());
  if (carrier->n_ranks() > kMaxWorldRanks)
    return invalid_argument("SHMEM has %d PEs; at most %d", carrier->n_ranks(), kMaxWorldRanks);
  return Status();
}

void World::Impl::set_carrier(std::unique_ptr<Transport> joined) {
  carrier = std::move(joined);
  if (carrier->num_local_ranks() == carrier->n_ranks()) return;
  std::vector<int> all(static_cast<size_t>(carrier->n_ranks()));
  std::iota(all.begin(), all.end(), 0);
  witness = make_peer_witness(*carrier, std::move(all));
}

Result<std::unique_ptr<World>> World::join(const JoinOptions& options) {
  SWITCHYARD_RETURN_IF_ERROR(validate(options));
  if (options.transport == TransportChoice::kShmem) {
    auto of_shmem = std::make_unique<Impl>();
    SWITCHYARD_RETURN_IF_ERROR(of_shmem->join_by_shmem(options));
    SWITCHYARD_RETURN_IF_ERROR(of_shmem->use(options.memory));
    SWITCHYARD_RETURN_IF_ERROR(of_shmem->make_ranks(options.host, {of_shmem->devices.front().get()}));
    return std::unique_ptr<World>(new World(std::move(of_shmem)));
  }
  Result<std::unique_ptr<Device>> device = make_device(options);
  if (!device.ok()) return device.status();
  auto impl = std::make_unique<Impl>();
  impl->devices.push_back(std::move(device).value());
  SWITCHYARD_RETURN_IF_ERROR(impl->use(options.memory));
  Device* const shared = impl->devices.front().get();
  Result<std::unique_ptr<Transport>> transport = join_processes({.device = shared,
                                                                 .first_rank = options.rank,
                                                                 .num_local_ranks = options.num_local_ranks,
                                                                 .n_ranks = options.n_ranks,
                                                                 .timeout_ns = options.timeout_ns,
                                                                 .all_gather = options.all_gather,
                                                                 .rendezvous = options.rendezvous,
                                                                 .token = options.token});
  if (!transport.ok()) return transport.status();
  impl->set_carrier(std::move(transport).value());
  const std::vector<Device*> device_of_rank(static_cast<size_t>(options.num_local_ranks), shared);
  SWITCHYARD_RETURN_IF_ERROR(impl->make_ranks(options.host, device_of_rank));
  return std::unique_ptr<World>(new World(std::move(impl)));
}

}  // namespace switchyard

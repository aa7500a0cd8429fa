// What an ExpertParallel chooses when it is made: protocol, wire, delivery, kernels, and a launch whose
// blocks can all be resident at once.
#include <algorithm>
#include <climits>

#include "expert_parallel_impl.hpp"
#include "switchyard/detail/ep/tuning.hpp"

namespace switchyard {

Status ExpertParallel::Impl::choose() {
  SWITCHYARD_RETURN_IF_ERROR(validate(config, n_ranks()));
  placement = placement_of(config, n_ranks());
  ProtocolChoice choice = choose_protocol(config, n_ranks());
  config.protocol = choice.protocol;
  protocol_reason = std::move(choice.reason);
  if (config.row_layout == RowLayout::kMasked)
    config.max_rows_per_expert = static_cast<int>(group_layout(config, n_ranks()).capacity);
  SWITCHYARD_RETURN_IF_ERROR(choose_wire());
  choose_delivery();
  SWITCHYARD_RETURN_IF_ERROR(look_up_kernels());
  return choose_launch();
}

// Ranks that loads and stores reach are near, unless the configuration says otherwise. Groups of equal size
// are noted in the configuration.
Status ExpertParallel::Impl::choose_groups() {
  const Transport& transport = transport_of(world);
  const int n_ranks = world.n_ranks();
  int& group = config.p2p_world_size;
  if (group != 0 && n_ranks % group != 0)
    return invalid_argument("p2p_world_size is %d; it must divide the number of ranks (%d)", group, n_ranks);
  const auto first_gap = [&](int size) -> std::optional<std::pair<int, int>> {
    for (int rank = 0; rank < n_ranks; ++rank)
      for (int peer = rank / size * size; peer < (rank / size + 1) * size; ++peer)
        if (!transport.reaches(rank, peer)) return std::pair(rank, peer);
    return {};
  };
  if (group != 0) {
    const auto gap = first_gap(group);
    if (!gap) return Status();
    return invalid_argument(
        "p2p_world_size is %d, but rank %d does not reach the memory of rank %d by loads and stores", group,
        gap->first, gap->second);
  }
  for (int size = n_ranks; size > 0 && group == 0; --size)
    if (n_ranks % size == 0 && !first_gap(size)) group = size;
  if (group == n_ranks) group = 0;  // one group
  return Status();
}

Status ExpertParallel::Impl::choose_wire() {
  SWITCHYARD_RETURN_IF_ERROR(choose_groups());
  const int group = config.p2p_world_size;
  const bool has_far_ranks = group != 0 && group < world.n_ranks();
  if (config.routing == Routing::kSkipAllToAll && has_far_ranks)
    return invalid_argument(
        "p2p_world_size is %d; it must be 0 or %d where the all-to-all is skipped: all_reduce() has no wire",
        group, world.n_ranks());
  has_wire = needs_wire(config, world.n_ranks());
  const Transport& transport = transport_of(world);
  if (has_wire && transport.wired_kernels() != nullptr &&
      (config.own_format != nullptr || config.own_epilogue != nullptr))
    return invalid_argument(
        "%s must be null where ranks are reached over NVSHMEM: kernels that call it are linked with it, in "
        "its "
        "plugin; p2p_world_size is %d of %d ranks",
        config.own_format != nullptr ? "own_format" : "own_epilogue", group == 0 ? world.n_ranks() : group,
        world.n_ranks());
  return Status();
}

// Between ranks on one device a copy costs the same whoever makes it.
void ExpertParallel::Impl::choose_delivery() {
  const bool is_one_device = world.target() == Target::kHost ||
                             world.num_ranks_on_device_of(world.local_ranks().front()) == world.n_ranks();
  if (!has_equal_siblings(config))
    config.row_delivery = RowDelivery::kSender;
  else if (config.row_delivery == RowDelivery::kAutomatic)
    config.row_delivery = is_one_device && !has_wire ? RowDelivery::kSender : RowDelivery::kReceiver;
}

bool ExpertParallel::Impl::is_near(int rank, int peer) const {
  const int group = config.p2p_world_size;
  if (arena_of(peer) == nullptr) return false;
  return group == 0 ||
         members[static_cast<size_t>(rank)] / group == members[static_cast<size_t>(peer)] / group;
}

Status ExpertParallel::Impl::look_up_kernels() {
  const KernelTable& table = kernel_table(world.rank(world.local_ranks().front()));
  const KernelTable* of_wire = transport_of(world).wired_kernels();
  const ProtocolKernels tables = has_wire    ? (of_wire != nullptr ? *of_wire : table).wired
                                 : is_traced ? table.traced_kernels()
                                             : ProtocolKernels{table.slotted, table.direct};
  const EpKernels& of_protocol = is_direct() ? tables.direct : tables.slotted;
  if (of_protocol.dispatch == nullptr) return invalid_argument("this table of kernels has none with a wire");
  const auto dispatch = links_rows(config) ? of_protocol.linked_dispatch : of_protocol.dispatch;
  const auto combine = config.reduce_at_owner ? of_protocol.linked_combine : of_protocol.combine;
  if (dispatch == nullptr || combine == nullptr)
    return invalid_argument(
        "row_delivery is %s and reduce_at_owner %d; this table of kernels has none that link rows",
        to_string(config.row_delivery), config.reduce_at_owner);
  Kernels found{.dispatch = dispatch(config.dispatch_format),
                .combine = combine(config.combine_format),
                .all_reduce = of_protocol.all_reduce};
  if (starts_with_experts()) {
    found.early_combine = of_protocol.early_combine;
    if (found.early_combine.launch == nullptr)
      return invalid_argument("combine_start is with-experts; %s",
                              has_wire ? "all ranks must reach each other's memory, without a wire"
                                       : "this table of kernels has none of it");
  }
  SWITCHYARD_RETURN_IF_ERROR(look_up_own_kernels(found));
  if (found.dispatch == nullptr)
    return invalid_argument("dispatch_format is %s; this table of kernels has none of it",
                            to_string(config.dispatch_format));
  if (found.combine == nullptr)
    return invalid_argument("combine_format is %s; this table of kernels has none of it",
                            to_string(config.combine_format));
  kernels = found;
  return Status();
}

Status ExpertParallel::Impl::look_up_own_kernels(Kernels& found) const {
  const auto check_target = [&](const char* name, Target target) {
    if (target == world.target()) return Status();
    return invalid_argument("%s is compiled for %s; the world is on %s", name, to_string(target),
                            to_string(world.target()));
  };
  if (const OwnFormat* format = config.own_format; format != nullptr) {
    SWITCHYARD_RETURN_IF_ERROR(check_target("own_format", format->target));
    const OwnFormat::Kernels& own = has_wire ? format->wired : format->near;
    found.dispatch = links_rows(config) ? own.linked : is_direct() ? own.direct : own.slotted;
  }
  if (const OwnEpilogue* epilogue = config.own_epilogue; epilogue != nullptr) {
    SWITCHYARD_RETURN_IF_ERROR(check_target("own_epilogue", epilogue->target));
    const OwnEpilogue::OfProtocol& of_protocol = has_wire ? epilogue->wired : epilogue->near;
    const OwnEpilogue::Kernels& own = config.reduce_at_owner ? of_protocol.linked
                                      : is_direct()          ? of_protocol.direct
                                                             : of_protocol.slotted;
    found.own_combine = config.combine_format == CombineFormat::kBF16 ? &own.bf16 : &own.fp8;
  }
  return Status();
}

// Chooses the blocks and threads that the caller left open; all blocks must be resident at once.
Status ExpertParallel::Impl::choose_launch() {
  const EpTuning& tuning = world.target() == Target::kHost ? kHostEpTuning : kCudaEpTuning;
  const bool chooses_threads = config.num_threads == 0;
  if (chooses_threads) config.num_threads = tuning.num_threads;
  for (const int world_rank : world.local_ranks()) {
    Device& device = device_of(world.rank(world_rank));
    const int num_sharing = world.num_ranks_on_device_of(world_rank);
    const DeviceScope active = device.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    const int num_launches = (config.dependent_launch ? 2 : 1) * config.steps_in_flight;
    if (config.n_sms == 0)
      config.n_sms = tuning.num_blocks > 0
                         ? tuning.num_blocks
                         : std::max(1, device.num_multiprocessors() / num_sharing / config.steps_in_flight);
    // Slotted: at its owner a row has a warp of its own, so that few tokens are work for all threads.
    if (chooses_threads && is_direct() && config.max_tokens_per_rank <= tuning.few_tokens * config.n_sms)
      config.num_threads = tuning.num_fewer_threads;
    const int num_blocks = config.n_sms * num_sharing * num_launches;
    Result<int> resident = max_resident_blocks();
    if (resident.ok() && num_blocks > resident.value() && chooses_threads) {
      config.num_threads = tuning.num_fewer_threads;
      resident = max_resident_blocks();
    }
    if (!resident.ok()) return resident.status();
    // Where a combine waits, the experts of other ranks still need a multiprocessor for each of their blocks.
    if (starts_with_experts() && world.target() == Target::kCuda && num_blocks > device.num_multiprocessors())
      return invalid_argument(
          "n_sms is %d; with combine_start with-experts the blocks of %d launch(es) of each of %d rank(s) "
          "must be at most %d, the multiprocessors of %s",
          config.n_sms, num_launches, num_sharing, device.num_multiprocessors(), device.name().c_str());
    if (num_blocks > resident.value())
      return invalid_argument(
          "n_sms is %d; %d rank(s) on %s can have %d blocks of %d threads each resident at once%s%s",
          config.n_sms, num_sharing, device.name().c_str(), resident.value() / num_sharing,
          config.num_threads, config.dependent_launch ? ", and dependent_launch needs twice n_sms" : "",
          config.steps_in_flight > 1 ? ", for each of steps_in_flight" : "");
  }
  return Status();
}

// Covers dispatch, combine and, if there is one, the all-reduce; also loads them.
Result<int> ExpertParallel::Impl::max_resident_blocks() const {
  const EpShape shape = exchange_shape(config, n_ranks());
  const LaunchShape launch = launch_shape();
  int fewest = INT_MAX;
  const auto count = [&](const Result<int>& resident) {
    if (resident.ok()) fewest = std::min(fewest, resident.value());
    return resident.status();
  };
  SWITCHYARD_RETURN_IF_ERROR(count(kernels.dispatch->max_resident_blocks(shape, launch)));
  SWITCHYARD_RETURN_IF_ERROR(count(kernels.combine->max_resident_blocks(shape, launch)));
  if (starts_with_experts())
    SWITCHYARD_RETURN_IF_ERROR(count(kernels.early_combine.max_resident_blocks(launch)));
  if (kernels.own_combine != nullptr)
    SWITCHYARD_RETURN_IF_ERROR(count(kernels.own_combine->max_resident_blocks(shape, launch)));
  if (config.routing == Routing::kSkipAllToAll && num_reducing_ranks(config, n_ranks()) > 1)
    SWITCHYARD_RETURN_IF_ERROR(count(kernels.all_reduce.max_resident_blocks(launch)));
  return fewest;
}

LaunchShape ExpertParallel::Impl::launch_shape() const {
  return {.num_blocks = static_cast<uint32_t>(config.n_sms),
          .num_threads = static_cast<uint32_t>(config.num_threads),
          .max_shared_bytes = device_of(world.rank(world.local_ranks().front())).max_shared_bytes(),
          .programmatic_dependent = config.dependent_launch};
}

int ExpertParallel::Impl::max_early_blocks(int rank) const {
  if (world.target() == Target::kHost) return INT_MAX;
  const int num_sharing = world.num_ranks_on_device_of(members[static_cast<size_t>(rank)]);
  return early_block_limit(config, device_of(member(rank)).num_multiprocessors() / num_sharing);
}

int ExpertParallel::max_early_blocks(int rank) const { return impl_->max_early_blocks(rank); }

Status ExpertParallel::Impl::check_early_blocks(int rank, int num_blocks) const {
  const Device& device = device_of(member(rank));
  const int num_sharing = world.num_ranks_on_device_of(members[static_cast<size_t>(rank)]);
  const int limit = max_early_blocks(rank);
  if (num_blocks >= 1 && num_blocks <= limit) return Status();
  const std::string allowed = limit > 0 ? "it must be 1.." + std::to_string(limit)
                                        : "there is no room for one, and a smaller n_sms leaves some,";
  return invalid_argument(
      "row_readiness: num_blocks is %d; with n_sms %d %s where %d rank(s) share the %d multiprocessors of "
      "%s%s%s: "
      "a kernel that waits for peers must leave them room",
      num_blocks, config.n_sms, allowed.c_str(), num_sharing, device.num_multiprocessors(),
      device.name().c_str(), config.steps_in_flight > 1 ? ", which steps_in_flight divides" : "",
      config.dependent_launch ? ", and dependent_launch takes n_sms more" : "");
}

}  // namespace switchyard

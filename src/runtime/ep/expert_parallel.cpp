// Making an ExpertParallel, and what it owns.
#include <algorithm>
#include <climits>
#include <cstdio>
#include <numeric>

#include "agreement.hpp"
#include "expert_parallel_impl.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/ep/tuning.hpp"

namespace switchyard {

ExpertParallel::Impl::Impl(World& world_in, const ExpertParallelConfig& config_in)
    : world(world_in), config(config_in) {
  for (int rank = 0; rank < world.n_ranks(); ++rank) members.push_back(rank);
}

ExpertParallel::ExpertParallel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExpertParallel::~ExpertParallel() {
  // Kernels of any rank may still use the buffers.
  const World& world = impl_->world;
  for (const int rank : world.local_ranks()) world.rank(rank).device().drain(world.rank(rank).stream());
  for (const auto& state : impl_->ranks)
    if (state != nullptr && state->uses_callers_streams)
      for (const int rank : world.local_ranks()) world.rank(rank).device().drain_all();
}

Result<std::unique_ptr<ExpertParallel>> ExpertParallel::create(World& world,
                                                               const ExpertParallelConfig& config) {
  auto ep = std::unique_ptr<ExpertParallel>(new ExpertParallel(std::make_unique<Impl>(world, config)));
  Impl& impl = *ep->impl_;
  Transport& transport = world.impl().transport();
  // All sides learn what differs before any of them finds it wrong.
  SWITCHYARD_RETURN_IF_ERROR(agree_on(transport, impl.members, config));
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport, impl.members, impl.choose()));
  SWITCHYARD_RETURN_IF_ERROR(impl.allocate());
  impl.make_flights();
  SWITCHYARD_RETURN_IF_ERROR(impl.clear_buffers());
  return ep;
}

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

Result<std::unique_ptr<ExpertParallel>> ExpertParallel::create(
    World& world, const std::vector<ExpertParallelConfig>& config_of_rank) {
  Status status;
  if (static_cast<int>(config_of_rank.size()) != world.n_ranks())
    status = invalid_argument("config_of_rank has %zu entries; the world has %d ranks", config_of_rank.size(),
                              world.n_ranks());
  for (size_t rank = 1; rank < config_of_rank.size() && status.ok(); ++rank)
    status = check_same(config_of_rank[0], 0, config_of_rank[rank], static_cast<int>(rank));
  // The other processes would wait for this one in vain.
  std::vector<int> members(static_cast<size_t>(world.n_ranks()));
  std::iota(members.begin(), members.end(), 0);
  SWITCHYARD_RETURN_IF_ERROR(agree_that(world.impl().transport(), members, status));
  return create(world, config_of_rank.front());
}

// Ranks that loads and stores reach are near, unless the configuration says otherwise. Groups of equal size
// are noted in the configuration.
Status ExpertParallel::Impl::choose_groups() {
  const Transport& transport = world.impl().transport();
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
  const Transport& transport = world.impl().transport();
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
  const KernelTable& table = world.rank(world.local_ranks().front()).kernels();
  const KernelTable* of_wire = world.impl().transport().wired_kernels();
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
    Device& device = world.rank(world_rank).device();
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
  if (kernels.own_combine != nullptr)
    SWITCHYARD_RETURN_IF_ERROR(count(kernels.own_combine->max_resident_blocks(shape, launch)));
  if (config.routing == Routing::kSkipAllToAll && num_reducing_ranks(config, n_ranks()) > 1)
    SWITCHYARD_RETURN_IF_ERROR(count(kernels.all_reduce.max_resident_blocks(launch)));
  return fewest;
}

LaunchShape ExpertParallel::Impl::launch_shape() const {
  return {.num_blocks = static_cast<uint32_t>(config.n_sms),
          .num_threads = static_cast<uint32_t>(config.num_threads),
          .max_shared_bytes = world.rank(world.local_ranks().front()).device().max_shared_bytes(),
          .programmatic_dependent = config.dependent_launch};
}

Status ExpertParallel::Impl::allocate() {
  const Result<ExchangeLayout> needed = ExchangeLayout::of(config, n_ranks(), has_wire);
  if (!needed.ok()) return needed.status();
  layout = needed.value();
  SWITCHYARD_RETURN_IF_ERROR(allocate_arenas());
  for (int rank = 0; rank < n_ranks(); ++rank) {
    const bool is_local = world.is_local(members[static_cast<size_t>(rank)]);
    ranks.push_back(is_local ? std::make_unique<RankState>() : nullptr);
    if (is_local) use_arena(rank);
  }
  return Status();
}

Status ExpertParallel::Impl::allocate_arenas() {
  arenas.reset();
  for (const auto& own : ranks)
    if (own != nullptr) own->lender.reset();
  for (const auto& flight : later_flights) flight->impl_->arenas.reset();
  if (!arena_bytes().ok())
    return invalid_argument("the exchange buffers of %d steps_in_flight exceed 64 bits",
                            config.steps_in_flight);
  Result<std::unique_ptr<SymmetricMemory>> allocated =
      world.impl().transport().allocate(members, arena_bytes().value(), kHostVisibleBytes);
  if (!allocated.ok()) {
    char text[128];
    std::snprintf(text, sizeof(text),
                  "exchange buffers (max_tokens_per_rank %d, capacity_factor %g) need %.2f GB per rank",
                  config.max_tokens_per_rank, config.capacity_factor,
                  static_cast<double>(arena_bytes().value()) * 1e-9);
    const std::string advice = memory_advice(config, n_ranks());
    return Status(allocated.status().code(), std::string(text) + (advice.empty() ? "" : " (" + advice + ")") +
                                                 ": " + allocated.status().message());
  }
  arenas = std::move(allocated).value();
  arena_members = members;
  arena_capacity = arena_bytes().value();
  return Status();
}

void ExpertParallel::Impl::use_arena(int rank) {
  const int world_rank = members[static_cast<size_t>(rank)];
  state(rank).memory = {.layout = &layout,
                        .protocol = config.protocol,
                        .arena = exchange_of(rank),
                        .faults = reinterpret_cast<FaultRecord*>(arenas->host_visible_of_rank(world_rank)),
                        .row_memory = {},
                        .src_info = {}};
  if (first == nullptr && state(rank).lender == nullptr) state(rank).lender = make_lender(rank);
}

void ExpertParallel::Impl::make_flights() {
  for (int idx = 1; idx < config.steps_in_flight; ++idx) {
    auto flight = std::unique_ptr<ExpertParallel>(new ExpertParallel(std::make_unique<Impl>(world, config)));
    flight->impl_->first = this;
    flight->impl_->flight_idx = idx;
    later_flights.push_back(std::move(flight));
  }
  update_flights();
}

void ExpertParallel::Impl::update_flights() {
  for (const auto& flight : later_flights) {
    Impl& later = *flight->impl_;
    later.config = config;
    later.protocol_reason = protocol_reason;
    later.kernels = kernels;
    later.placement = placement;
    later.layout = layout;
    later.members = members;
    later.arenas = arenas;
    later.has_wire = has_wire;
    later.ranks.clear();
    for (int rank = 0; rank < n_ranks(); ++rank) {
      const bool is_local = ranks[static_cast<size_t>(rank)] != nullptr;
      later.ranks.push_back(is_local ? std::make_unique<RankState>() : nullptr);
      if (!is_local) continue;
      later.use_arena(rank);
      later.state(rank).has_begun = state(rank).has_begun;
    }
  }
}

Result<ExpertParallel*> ExpertParallel::flight(int flight_idx) {
  Impl& whole = impl_->whole();
  const int num_flights = whole.config.steps_in_flight;
  if (flight_idx < 0 || flight_idx >= num_flights)
    return invalid_argument("flight: flight_idx is %d; it must be 0..%d (steps_in_flight)", flight_idx,
                            num_flights - 1);
  if (flight_idx == impl_->flight_idx) return this;
  if (flight_idx == 0)
    return failed_precondition("flight: flight 0 is the object that create() returned; ask that one");
  return whole.later_flights[static_cast<size_t>(flight_idx - 1)].get();
}

Result<RowBuffers> ExpertParallel::row_buffers(int rank) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("row_buffers", rank));
  ExchangeMemory& memory = impl_->state(rank).memory;
  SWITCHYARD_RETURN_IF_ERROR(memory.allocate_rows(impl_->member(rank).device()));
  return memory.row_buffers();
}

Result<RowReadiness> ExpertParallel::row_readiness(int rank, int num_blocks) const {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("row_readiness", rank));
  if (!impl_->is_direct())
    return failed_precondition(
        "row_readiness: rows of the slotted protocol are there after dispatch_wait only");
  if (impl_->is_per_rank())
    return failed_precondition("row_readiness: where row_layout is per-rank no rows are those of one expert");
  if (format_layout(impl_->config).interleaves_rows)
    return failed_precondition("row_readiness: scales of format %s are there after dispatch_wait only",
                               format_layout(impl_->config).name);
  if (impl_->config.row_delivery == RowDelivery::kReceiver)
    return failed_precondition(
        "row_readiness: row_delivery is receiver, so rows are complete behind dispatch_wait only");
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_early_blocks(rank, num_blocks));
  const ExchangeMemory& memory = impl_->state(rank).memory;
  const DirectCounters counters{memory.ep_counters(impl_->shape_of_rank(rank))};
  WaitContext wait_context = impl_->state(rank).dispatch_call.step.wait_context;
  wait_context.first_expert = rank * impl_->n_local_experts();  // which the host turns into an expert
  return RowReadiness{memory.at<uint64_t>(impl_->layout.dispatch_counts),
                      counters.num_steps(),
                      counters.row_offset(impl_->num_groups() - impl_->n_local_experts()),
                      num_exchanging_ranks(impl_->config, impl_->n_ranks()),
                      impl_->n_local_experts(),
                      wait_context};
}

// A kernel that starts early holds its multiprocessors while it waits for the dispatch of ranks that may not
// have begun. With one multiprocessor for each block that can be resident at once, those ranks' blocks can
// always become resident, whatever else each kernel needs.
int ExpertParallel::Impl::max_early_blocks(int rank) const {
  if (world.target() == Target::kHost) return INT_MAX;
  const int num_sharing = world.num_ranks_on_device_of(members[static_cast<size_t>(rank)]);
  // Beside it are the launch in front of it, and those of other flights.
  const int num_beside = (config.dependent_launch ? 1 : 0) + config.steps_in_flight - 1;
  const int limit = member(rank).device().num_multiprocessors() / num_sharing - config.n_sms * num_beside;
  return config.n_sms <= limit ? limit : 0;
}

int ExpertParallel::max_early_blocks(int rank) const { return impl_->max_early_blocks(rank); }

Status ExpertParallel::Impl::check_early_blocks(int rank, int num_blocks) const {
  const Device& device = member(rank).device();
  const int num_sharing = world.num_ranks_on_device_of(members[static_cast<size_t>(rank)]);
  const int limit = max_early_blocks(rank);
  if (num_blocks >= 1 && num_blocks <= limit) return Status();
  return invalid_argument(
      "row_readiness: num_blocks is %d; with n_sms %d it must be %s%d where %d rank(s) share the %d "
      "multiprocessors of %s: a kernel that waits for peers must leave them room%s",
      num_blocks, config.n_sms, limit > 0 ? "1.." : "", limit, num_sharing, device.num_multiprocessors(),
      device.name().c_str(), limit > 0 ? "" : ". A smaller n_sms leaves some");
}

// Every buffer of every rank is ready before any rank may send: nothing can arrive in between, and what a
// broken step has left in flight arrives first.
Status ExpertParallel::Impl::clear_buffers() {
  if (has_wire)
    for (const int rank : local_ranks()) member(rank).device().complete_wire();
  make_local_wire();
  SWITCHYARD_RETURN_IF_ERROR(agree_that(world.impl().transport(), members, clear_local_buffers()));
  watch_peers();
  return Status();
}

// Where all arenas are in reach, a wire is copies.
void ExpertParallel::Impl::make_local_wire() {
  if (!has_wire || world.target() != Target::kHost || arenas->wire_engine() != nullptr) return;
  if (local_wire != nullptr && local_wire->n_ranks() == n_ranks()) return;
  std::vector<emulator::WireArena> arena_of_rank;
  for (int rank = 0; rank < n_ranks(); ++rank)
    arena_of_rank.push_back({arena_of(rank), arena_bytes().value()});
  local_wire = std::make_unique<emulator::LocalWire>(std::move(arena_of_rank));
}

emulator::WireEngine* ExpertParallel::Impl::wire_engine() const {
  return arenas->wire_engine() != nullptr ? arenas->wire_engine() : whole().local_wire.get();
}

Status ExpertParallel::Impl::clear_local_buffers() {
  for (const int rank : local_ranks()) {
    SWITCHYARD_RETURN_IF_ERROR(state(rank).memory.clear(member(rank)));
    SWITCHYARD_RETURN_IF_ERROR(prepare_calls(rank));
    SWITCHYARD_RETURN_IF_ERROR(upload_seats(rank));
    state(rank).step = Step::kIdle;
    state(rank).has_dispatched = false;
    state(rank).kept_copy = 0;
    state(rank).failure = Status();
  }
  for (const auto& flight : later_flights) SWITCHYARD_RETURN_IF_ERROR(flight->impl_->clear_local_buffers());
  return world.synchronize();
}

void ExpertParallel::Impl::watch_peers() {
  if (!is_one_of_many()) return;
  std::vector<WatchedRank> watched;
  for (const int rank : local_ranks())
    watched.push_back({rank, &member(rank).device(), state(rank).memory.faults,
                       state(rank).memory.at<uint64_t>(layout.poison)});
  deaths.reset();  // no longer with the numbers of before
  deaths = std::make_unique<PeerDeaths>(world.impl().transport(), members, std::move(watched));
}

Status ExpertParallel::enable_trace(uint32_t events_per_block) {
  if (impl_->is_traced) return failed_precondition("enable_trace: the trace is on already");
  if (impl_->config.steps_in_flight > 1)
    return failed_precondition("enable_trace: steps_in_flight is %d; only single steps can be traced",
                               impl_->config.steps_in_flight);
  const ExpertParallelConfig& config = impl_->config;
  const bool is_plain = config.dispatch_format == TokenFormatKind::kBF16 &&
                        config.combine_format == CombineFormat::kBF16 && config.own_format == nullptr &&
                        config.own_epilogue == nullptr;
  if (impl_->world.target() == Target::kCuda && (!is_plain || impl_->has_wire))
    return invalid_argument("enable_trace: on a GPU only steps in bf16 and without a wire can be traced");
  std::vector<TraceRecorder> recorders;  // all ranks or none
  for (const int rank : impl_->local_ranks()) {
    Result<TraceRecorder> recorder =
        TraceRecorder::create(impl_->member(rank), impl_->config.n_sms, events_per_block);
    if (!recorder.ok())
      return Status(recorder.status().code(), "enable_trace: " + recorder.status().message());
    recorders.push_back(std::move(recorder).value());
  }
  const Impl::Kernels untraced = impl_->kernels;
  impl_->is_traced = true;
  impl_->trace_events_per_block = events_per_block;
  Status status = impl_->look_up_kernels();
  if (status.ok()) status = impl_->choose_launch();  // loads the kernels
  if (!status.ok()) {
    impl_->is_traced = false;
    impl_->kernels = untraced;
    return status;
  }
  const std::vector<int> local_ranks = impl_->local_ranks();
  for (size_t i = 0; i < local_ranks.size(); ++i) {
    impl_->state(local_ranks[i]).trace = std::move(recorders[i]);
    SWITCHYARD_RETURN_IF_ERROR(impl_->prepare_calls(local_ranks[i]));
  }
  return Status();
}

Result<std::vector<RankTrace>> ExpertParallel::take_trace() {
  if (!impl_->is_traced) return failed_precondition("take_trace: call enable_trace() first");
  SWITCHYARD_RETURN_IF_ERROR(impl_->wait_for_all_calls());
  std::vector<RankTrace> traces;
  for (const int rank : impl_->local_ranks()) {
    Result<RankTrace> trace = impl_->state(rank).trace->take();
    if (!trace.ok()) return trace.status();
    for (BlockTrace& block : trace.value().blocks)
      for (TraceEvent& event : block.events) event.expert = impl_->named_expert(event.expert);
    traces.push_back(std::move(trace).value());
  }
  return traces;
}

const std::string& ExpertParallel::protocol_reason() const { return impl_->protocol_reason; }
const ExpertParallelConfig& ExpertParallel::config() const { return impl_->config; }
int ExpertParallel::n_ranks() const { return impl_->n_ranks(); }
int ExpertParallel::n_local_experts() const { return impl_->n_local_experts(); }
int ExpertParallel::num_groups() const { return impl_->num_groups(); }
int ExpertParallel::n_sms() const { return impl_->config.n_sms; }
SharedExpertTokens ExpertParallel::shared_expert_tokens(int rank, int num_tokens) const {
  return impl_->shared_expert_tokens(rank, num_tokens);
}

Result<MemoryNeeded> ExpertParallel::memory_needed(const ExpertParallelConfig& config, int n_ranks) {
  SWITCHYARD_RETURN_IF_ERROR(validate(config, n_ranks));
  ExpertParallelConfig chosen = config;
  chosen.protocol = choose_protocol(config, n_ranks).protocol;
  const Result<ExchangeLayout> layout = ExchangeLayout::of(chosen, n_ranks, needs_wire(chosen, n_ranks));
  if (!layout.ok()) return layout.status();
  const CheckedSize num_flights(config.steps_in_flight),
      exchange = CheckedSize(layout.value().arena_bytes) * num_flights;
  const CheckedSize rows =
      (CheckedSize(layout.value().row_memory_bytes) + CheckedSize(layout.value().src_info_bytes)) *
      num_flights;
  if (!(exchange + rows).ok())
    return invalid_argument("the exchange buffers of %d steps_in_flight exceed 64 bits",
                            config.steps_in_flight);
  return MemoryNeeded{exchange.value(), chosen.protocol == Protocol::kDirect ? 0 : rows.value()};
}

uint64_t ExpertParallel::max_recv_rows() const { return worst_case_rows(impl_->config, n_ranks()); }
uint64_t ExpertParallel::rows_per_set() const { return impl_->rows_per_set(); }

uint32_t ExpertParallel::combine_message_bytes() const { return combine_bytes(impl_->config); }
uint32_t ExpertParallel::dispatch_message_bytes() const {
  return impl_->is_direct() ? encoded_bytes(impl_->config) : message_bytes(impl_->config);
}

uint64_t ExpertParallel::bytes_per_rank() const {
  const Impl& whole = impl_->whole();
  const int rank = whole.local_ranks().front();
  uint64_t bytes = whole.state(rank).memory.bytes();
  for (const auto& flight : whole.later_flights) bytes += flight->impl_->state(rank).memory.bytes();
  return bytes;
}

}  // namespace switchyard

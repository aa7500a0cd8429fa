// Making an ExpertParallel, and what it owns.
#include <cstdio>
#include <numeric>

#include "agreement.hpp"
#include "expert_parallel_impl.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"

namespace switchyard {

ExpertParallel::Impl::Impl(World& world_in, const ExpertParallelConfig& config_in)
    : world(world_in), config(config_in) {
  for (int rank = 0; rank < world.n_ranks(); ++rank) members.push_back(rank);
}

ExpertParallel::ExpertParallel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExpertParallel::~ExpertParallel() {
  // Kernels of any rank may still use the buffers.
  const World& world = impl_->world;
  for (const int rank : world.local_ranks()) device_of(world.rank(rank)).drain(world.rank(rank).stream());
  for (const auto& state : impl_->ranks)
    if (state != nullptr && state->uses_callers_streams)
      for (const int rank : world.local_ranks()) device_of(world.rank(rank)).drain_all();
}

Result<std::unique_ptr<ExpertParallel>> ExpertParallel::create(World& world,
                                                               const ExpertParallelConfig& config) {
  SWITCHYARD_RETURN_IF_ERROR(check_process(world, "create"));
  auto ep = std::unique_ptr<ExpertParallel>(new ExpertParallel(std::make_unique<Impl>(world, config)));
  Impl& impl = *ep->impl_;
  Transport& transport = transport_of(world);
  // All sides learn what differs before any of them finds it wrong.
  SWITCHYARD_RETURN_IF_ERROR(agree_on(transport, impl.members, config));
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport, impl.members, impl.choose()));
  SWITCHYARD_RETURN_IF_ERROR(impl.allocate());
  impl.make_flights();
  SWITCHYARD_RETURN_IF_ERROR(impl.clear_buffers());
  return ep;
}

Result<std::unique_ptr<ExpertParallel>> ExpertParallel::create(
    World& world, const std::vector<ExpertParallelConfig>& config_of_rank) {
  SWITCHYARD_RETURN_IF_ERROR(check_process(world, "create"));
  Status status;
  if (static_cast<int>(config_of_rank.size()) != world.n_ranks())
    status = invalid_argument("config_of_rank has %zu entries; the world has %d ranks", config_of_rank.size(),
                              world.n_ranks());
  for (size_t rank = 1; rank < config_of_rank.size() && status.ok(); ++rank)
    status = check_same(config_of_rank[0], 0, config_of_rank[rank], static_cast<int>(rank));
  // The other processes would wait for this one in vain.
  std::vector<int> members(static_cast<size_t>(world.n_ranks()));
  std::iota(members.begin(), members.end(), 0);
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport_of(world), members, status));
  return create(world, config_of_rank.front());
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
      transport_of(world).allocate(members, arena_bytes().value(), kHostVisibleBytes);
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
  SWITCHYARD_RETURN_IF_ERROR(memory.allocate_rows(device_of(impl_->member(rank))));
  RowBuffers rows = memory.row_buffers();
  // Without an all-to-all a table has the rank's own seats only.
  const bool has_own_seats = impl_->has_table() && impl_->config.routing == Routing::kSkipAllToAll;
  if (const ArenaPart& scales = impl_->layout.expert_scales; scales.bytes > 0)
    rows.expert_tensor_scales =
        memory.at<float>(scales) + (has_own_seats ? 0 : rank * impl_->n_local_experts());
  return rows;
}

Result<RowReadiness> ExpertParallel::row_readiness(int rank, int num_blocks) const {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("row_readiness", rank));
  if (!impl_->is_direct())
    return failed_precondition(
        "row_readiness: rows of the slotted protocol are there after dispatch_wait only");
  if (impl_->is_per_rank())
    return failed_precondition("row_readiness: where row_layout is per-rank no rows are those of one expert");
  if (format_layout(impl_->config).interleaves_rows)
    return failed_precondition("row_readiness: scales of format %s may be there after dispatch_wait only",
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

Result<RowCompletion> ExpertParallel::row_completion(int rank) const {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("row_completion", rank));
  if (!impl_->starts_with_experts())
    return failed_precondition("row_completion: combine_start is behind-experts; combine waits for all rows");
  const ExchangeMemory& memory = impl_->state(rank).memory;
  const CombineStep& step = impl_->state(rank).combine_call.step;
  return RowCompletion{.cells = step.recv_counts,
                       .num_steps = DirectCounters{step.ep_counters}.num_steps(),
                       .num_parts_done = memory.at<uint32_t>(impl_->layout.parts_done),
                       .my_rank = step.my_rank,
                       .n_ranks = step.shape.n_ranks,
                       .n_experts = step.shape.n_experts,
                       .n_local_experts = impl_->n_local_experts(),
                       .num_groups = impl_->num_groups(),
                       .signal_scope = step.signal_scope};
}

// Every buffer of every rank is ready before any rank may send: nothing can arrive in between, and what a
// broken step has left in flight arrives first.
Status ExpertParallel::Impl::clear_buffers() {
  if (has_wire)
    for (const int rank : local_ranks()) device_of(member(rank)).complete_wire();
  make_local_wire();
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport_of(world), members, clear_local_buffers()));
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
    state(rank).failure = Status();
    keep_skip(rank, {});
  }
  for (const auto& flight : later_flights) SWITCHYARD_RETURN_IF_ERROR(flight->impl_->clear_local_buffers());
  return world.synchronize();
}

void ExpertParallel::Impl::watch_peers() {
  if (!is_one_of_many()) return;
  std::vector<WatchedRank> watched;
  for (const int rank : local_ranks())
    watched.push_back({rank, &device_of(member(rank)), state(rank).memory.faults,
                       state(rank).memory.at<uint64_t>(layout.poison)});
  deaths.reset();  // no longer with the numbers of before
  deaths = std::make_unique<PeerDeaths>(transport_of(world), members, std::move(watched));
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

Result<int> ExpertParallel::num_groups(const ExpertParallelConfig& config, int n_ranks) {
  SWITCHYARD_RETURN_IF_ERROR(validate(config, n_ranks));
  return static_cast<int>(switchyard::num_groups(config, n_ranks));
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

// Making an ExpertParallel, what it owns, and what becomes of it when a step has failed.
#include <algorithm>
#include <climits>
#include <cstring>

#include "expert_parallel_state.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard {
namespace {

constexpr int kHostSms = 4;
constexpr int kHostThreads = 64;
constexpr int kCudaThreads[] = {1024, 512};  // the first that fits

}  // namespace

ExpertParallel::ExpertParallel(World& world, const ExpertParallelConfig& config)
    : world_(world), config_(config) {
  for (int rank = 0; rank < world.n_ranks(); ++rank) members_.push_back(rank);
}
ExpertParallel::~ExpertParallel() {
  // Kernels of any rank may still use the buffers.
  for (int rank = 0; rank < world_.n_ranks(); ++rank)
    world_.rank(rank).device().drain(world_.rank(rank).stream());
}

Result<std::unique_ptr<ExpertParallel>> ExpertParallel::create(World& world,
                                                               const ExpertParallelConfig& config) {
  SWITCHYARD_RETURN_IF_ERROR(validate(config, world.n_ranks()));
  auto ep = std::unique_ptr<ExpertParallel>(new ExpertParallel(world, config));
  ProtocolChoice choice = choose_protocol(config, world.n_ranks());
  ep->config_.protocol = choice.protocol;
  ep->protocol_reason_ = std::move(choice.reason);
  SWITCHYARD_RETURN_IF_ERROR(ep->choose_launch());
  SWITCHYARD_RETURN_IF_ERROR(ep->allocate());
  SWITCHYARD_RETURN_IF_ERROR(ep->clear_buffers());
  return ep;
}

Result<std::unique_ptr<ExpertParallel>> ExpertParallel::create(
    World& world, const std::vector<ExpertParallelConfig>& config_of_rank) {
  if (static_cast<int>(config_of_rank.size()) != world.n_ranks())
    return invalid_argument("config_of_rank has %zu entries; the world has %d ranks", config_of_rank.size(),
                            world.n_ranks());
  for (size_t rank = 1; rank < config_of_rank.size(); ++rank)
    SWITCHYARD_RETURN_IF_ERROR(check_same(config_of_rank[0], config_of_rank[rank], static_cast<int>(rank)));
  return create(world, config_of_rank.front());
}

EpKernels ExpertParallel::kernels() const {
  const KernelTable& table = member(0).kernels();
  const TracedKernels kernels =
      is_traced_ ? table.traced_kernels() : TracedKernels{table.slotted, table.direct};
  return config_.protocol == Protocol::kDirect ? kernels.direct : kernels.slotted;
}

// Blocks and threads: what the caller left open, and whether all of them fit at once.
Status ExpertParallel::choose_launch() {
  const bool is_host = world_.target() == Target::kHost;
  const bool chooses_threads = config_.num_threads == 0;
  if (chooses_threads) config_.num_threads = is_host ? kHostThreads : kCudaThreads[0];
  for (int rank = 0; rank < n_ranks(); ++rank) {
    Device& device = member(rank).device();
    const int num_sharing = world_.num_ranks_on_device_of(members_[static_cast<size_t>(rank)]);
    const DeviceScope active = device.activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    if (config_.n_sms == 0)
      config_.n_sms = is_host ? kHostSms : std::max(1, device.num_multiprocessors() / num_sharing);
    const int num_blocks = config_.n_sms * num_sharing * (config_.dependent_launch ? 2 : 1);
    Result<int> resident = max_resident_blocks();
    if (resident.ok() && num_blocks > resident.value() && chooses_threads && !is_host) {
      config_.num_threads = kCudaThreads[1];
      resident = max_resident_blocks();
    }
    if (!resident.ok()) return resident.status();
    if (num_blocks > resident.value())
      return invalid_argument(
          "n_sms is %d; %d rank(s) on %s can have %d blocks of %d threads each resident at once%s",
          config_.n_sms, num_sharing, device.name().c_str(), resident.value() / num_sharing,
          config_.num_threads, config_.dependent_launch ? ", and dependent_launch needs twice n_sms" : "");
  }
  return Status();
}

// Of dispatch, of combine and of the all-reduce where there is one; also loads them.
Result<int> ExpertParallel::max_resident_blocks() const {
  const EpKernels kernels = this->kernels();
  const DispatchKernels* dispatch = kernels.dispatch(config_.dispatch_format);
  if (dispatch == nullptr)
    return invalid_argument("dispatch_format is %s; this table of kernels has none of it",
                            to_string(config_.dispatch_format));
  const EpShape shape = shape_of(config_, n_ranks());
  const Result<int> for_dispatch = dispatch->max_resident_blocks(shape, launch_shape());
  const CombineKernels* combine = kernels.combine(config_.combine_format);
  if (combine == nullptr)
    return invalid_argument("combine_format is %s; this table of kernels has none of it",
                            to_string(config_.combine_format));
  const Result<int> for_combine = combine->max_resident_blocks(shape, launch_shape());
  if (!for_dispatch.ok() || !for_combine.ok()) return for_dispatch.ok() ? for_combine : for_dispatch;
  const int for_step = std::min(for_dispatch.value(), for_combine.value());
  if (config_.routing == Routing::kAllToAll) return for_step;
  const Result<int> for_all_reduce = kernels.all_reduce.max_resident_blocks(launch_shape());
  return for_all_reduce.ok() ? std::min(for_step, for_all_reduce.value()) : for_all_reduce;
}

const DispatchKernels& ExpertParallel::dispatch_kernels() const {
  return *kernels().dispatch(config_.dispatch_format);
}
const CombineKernels& ExpertParallel::combine_kernels() const {
  return *kernels().combine(config_.combine_format);
}

LaunchShape ExpertParallel::launch_shape() const {
  return {.num_blocks = static_cast<uint32_t>(config_.n_sms),
          .num_threads = static_cast<uint32_t>(config_.num_threads),
          .programmatic_dependent = config_.dependent_launch};
}

uint64_t ExpertParallel::max_recv_rows() const { return worst_case_rows(config_, n_ranks()); }

uint32_t ExpertParallel::combine_message_bytes() const { return ExchangeSizes::combine_bytes(config_); }
uint32_t ExpertParallel::dispatch_message_bytes() const {
  return config_.protocol == Protocol::kDirect ? ExchangeSizes::encoded_bytes(config_)
                                               : ExchangeSizes::message_bytes(config_);
}

uint64_t ExpertParallel::bytes_per_rank() const { return ranks_.front()->memory.bytes(); }

Status ExpertParallel::allocate() {
  Result<ExchangeSizes> sizes = ExchangeSizes::of(config_, n_ranks());
  if (!sizes.ok()) return sizes.status();
  sizes_ = std::make_unique<ExchangeSizes>(sizes.value());
  for (int rank = 0; rank < n_ranks(); ++rank) {
    Result<ExchangeMemory> memory =
        ExchangeMemory::allocate(member(rank).device(), *sizes_, config_.protocol);
    if (!memory.ok())
      return resource_exhausted(
          "exchange buffers of rank %d (max_tokens_per_rank %d, capacity_factor %g): %s", rank,
          config_.max_tokens_per_rank, config_.capacity_factor, memory.status().message().c_str());
    ranks_.push_back(std::make_unique<RankState>());
    ranks_.back()->memory = std::move(memory).value();
    if (sizes_->expert_scales == 0) continue;
    SWITCHYARD_RETURN_IF_ERROR(member(rank).device().copy(ranks_.back()->memory.expert_scales.as<void>(),
                                                          config_.expert_input_scales.data(),
                                                          sizes_->expert_scales, member(rank).stream()));
  }
  return Status();
}

Result<RowBuffers> ExpertParallel::row_buffers(int rank) {
  if (rank < 0 || rank >= n_ranks())
    return invalid_argument("row_buffers: rank is %d; it must be 0..%d", rank, n_ranks() - 1);
  ExchangeMemory& memory = ranks_[static_cast<size_t>(rank)]->memory;
  SWITCHYARD_RETURN_IF_ERROR(memory.allocate_rows(member(rank).device(), *sizes_));
  return memory.row_buffers(*sizes_);
}

Result<RowReadiness> ExpertParallel::row_readiness(int rank, int num_blocks) const {
  if (rank < 0 || rank >= n_ranks())
    return invalid_argument("row_readiness: rank is %d; it must be 0..%d", rank, n_ranks() - 1);
  if (config_.protocol != Protocol::kDirect)
    return failed_precondition(
        "row_readiness: rows of the slotted protocol are there after dispatch_wait only");
  if (info_of(config_.dispatch_format).interleaves_rows())
    return failed_precondition("row_readiness: scales of format %s are there after dispatch_wait only",
                               to_string(config_.dispatch_format));
  SWITCHYARD_RETURN_IF_ERROR(check_early_blocks(rank, num_blocks));
  const ExchangeMemory& memory = ranks_[static_cast<size_t>(rank)]->memory;
  const DirectCounters counters{memory.ep_counters(shape_of_rank(rank))};
  WaitContext fault = step_wait_context(rank);
  fault.first_expert = rank * n_local_experts();
  return RowReadiness{memory.dispatch_counts.as<uint64_t>(), counters.num_steps(),
                      counters.row_offset(num_groups() - n_local_experts()),
                      num_exchanging_ranks(config_, n_ranks()), fault};
}

// A kernel that starts early holds its multiprocessors while it waits for the dispatch of ranks that may not
// have begun. With one multiprocessor for each block that can be resident at once there is always room for
// them, whatever else each kernel needs.
Status ExpertParallel::check_early_blocks(int rank, int num_blocks) const {
  const Device& device = member(rank).device();
  const int num_sharing = world_.num_ranks_on_device_of(members_[static_cast<size_t>(rank)]);
  const int num_before = config_.dependent_launch ? config_.n_sms : 0;  // of the launch in front of it
  const int limit =
      world_.target() == Target::kHost ? INT_MAX : device.num_multiprocessors() / num_sharing - num_before;
  if (num_blocks >= 1 && num_blocks <= limit && config_.n_sms <= limit) return Status();
  return invalid_argument(
      "row_readiness: num_blocks is %d and n_sms %d; they must be 1..%d where %d rank(s) share the %d "
      "multiprocessors of %s: a kernel that waits for peers must leave them room",
      num_blocks, config_.n_sms, std::max(limit, 0), num_sharing, device.num_multiprocessors(),
      device.name().c_str());
}

// Every buffer of every rank is ready before any rank may send: nothing can arrive in between.
Status ExpertParallel::clear_buffers() {
  for (int rank = 0; rank < n_ranks(); ++rank) {
    RankState& state = *ranks_[static_cast<size_t>(rank)];
    SWITCHYARD_RETURN_IF_ERROR(state.memory.clear(member(rank)));
    state.step = Step::kIdle;
    state.failure = Status();
  }
  return world_.synchronize();
}

Status ExpertParallel::reset() {
  SWITCHYARD_RETURN_IF_ERROR(world_.synchronize());
  return clear_buffers();
}

Status ExpertParallel::reset(const std::vector<int>& survivors) {
  if (survivors.empty()) return invalid_argument("survivors is empty; at least one rank must go on");
  if (config_.routing == Routing::kSkipAllToAll)
    return failed_precondition(
        "reset: ranks that skip the all-to-all have room for their own experts only; create anew");
  std::vector<int> members;
  for (size_t i = 0; i < survivors.size(); ++i) {
    if (survivors[i] < 0 || survivors[i] >= n_ranks() || (i > 0 && survivors[i] <= survivors[i - 1]))
      return invalid_argument("survivors[%zu] is %d; they must ascend within 0..%d", i, survivors[i],
                              n_ranks() - 1);
    members.push_back(members_[static_cast<size_t>(survivors[i])]);
  }
  SWITCHYARD_RETURN_IF_ERROR(validate(config_, static_cast<int>(members.size())));
  // A rank with more experts has more rows that only fill them up to the format's alignment.
  const uint64_t num_rows_needed = row_capacity(config_, static_cast<int>(members.size()));
  if (info_of(config_.dispatch_format).row_alignment > 1 && num_rows_needed > sizes_->row_capacity)
    return failed_precondition(
        "reset: %zu ranks need room for %llu rows each in %s; there is room for %llu; create anew",
        members.size(), static_cast<unsigned long long>(num_rows_needed), to_string(config_.dispatch_format),
        static_cast<unsigned long long>(sizes_->row_capacity));
  SWITCHYARD_RETURN_IF_ERROR(world_.synchronize());
  // Other buffers have a place for every expert of the model, whoever owns it.
  std::vector<std::unique_ptr<RankState>> states;
  for (const int survivor : survivors) states.push_back(std::move(ranks_[static_cast<size_t>(survivor)]));
  ranks_ = std::move(states);
  members_ = std::move(members);
  return clear_buffers();
}

Status ExpertParallel::poison_receive_buffers(uint8_t value) {
  for (int rank = 0; rank < n_ranks(); ++rank)
    SWITCHYARD_RETURN_IF_ERROR(ranks_[static_cast<size_t>(rank)]->memory.overwrite(member(rank), value));
  return Status();
}

Status ExpertParallel::enable_trace(uint32_t events_per_block) {
  if (is_traced_) return failed_precondition("enable_trace: the trace is on already");
  if (world_.target() == Target::kCuda &&
      (config_.dispatch_format != TokenFormatKind::kBF16 || config_.combine_format != CombineFormat::kBF16))
    return invalid_argument("enable_trace: on a GPU only steps whose formats are bf16 can be traced");
  std::vector<TraceRecorder> recorders;  // all ranks or none
  for (int rank = 0; rank < n_ranks(); ++rank) {
    Result<TraceRecorder> recorder = TraceRecorder::create(member(rank), config_.n_sms, events_per_block);
    if (!recorder.ok())
      return Status(recorder.status().code(), "enable_trace: " + recorder.status().message());
    recorders.push_back(std::move(recorder).value());
  }
  is_traced_ = true;
  if (Status status = choose_launch(); !status.ok()) {  // loads the kernels
    is_traced_ = false;
    return status;
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank]->trace = std::move(recorders[rank]);
  return Status();
}

Result<std::vector<RankTrace>> ExpertParallel::take_trace() {
  if (!is_traced_) return failed_precondition("take_trace: call enable_trace() first");
  SWITCHYARD_RETURN_IF_ERROR(world_.synchronize());
  std::vector<RankTrace> traces;
  for (const auto& state : ranks_) {
    Result<RankTrace> trace = state->trace->take();
    if (!trace.ok()) return trace.status();
    traces.push_back(std::move(trace).value());
  }
  return traces;
}

namespace {

std::optional<FaultRecord> read_record(FaultRecord& record) {
  // acquire MM-07: the record; pairs with the release in record_fault()
  if (target::ld_acquire_system(&record.state) != FaultRecord::kWritten) return {};
  return record;
}

}  // namespace

std::optional<FaultRecord> ExpertParallel::fault(int rank) const {
  if (rank < 0 || rank >= n_ranks()) return {};
  return read_record(*ranks_[static_cast<size_t>(rank)]->memory.fault.as<FaultRecord>());
}

Status ExpertParallel::check_fault(int rank) {
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  uint32_t poison = 0;
  const Rank& owner = member(rank);
  SWITCHYARD_RETURN_IF_ERROR(
      owner.device().copy(&poison, state.memory.poison.as<void>(), sizeof(poison), owner.stream()));
  if (poison == 0) return take_skipped_step(rank);
  // A rank that found a fault itself says so; one that was poisoned says what its poisoner found.
  for (const int reporter : {rank, static_cast<int>(poison) - 1}) {
    const std::optional<FaultRecord> record = fault(reporter);
    if (!record) continue;
    const StatusCode code = record->kind == FaultKind::kTimeout       ? StatusCode::kDeadlineExceeded
                            : record->kind == FaultKind::kTooManyRows ? StatusCode::kResourceExhausted
                                                                      : StatusCode::kInvalidArgument;
    // The rank that the others waited for may never have come: it was not stopped.
    const bool is_culprit = record->kind == FaultKind::kTimeout && record->late_rank == rank;
    const std::string prefix =
        reporter == rank || is_culprit ? "" : "rank " + std::to_string(rank) + " was stopped: ";
    state.failure = Status(code, prefix + describe(*record));
    return state.failure;
  }
  state.failure = internal_error("rank %d was stopped by rank %d, which left no record", rank,
                                 static_cast<int>(poison) - 1);
  return state.failure;
}

// A step that some rank has no room for has been skipped by all of them: an error, said once, but the next
// step may come. If it is the rank's last one, and dispatched, it is over: combine would do nothing.
Status ExpertParallel::take_skipped_step(int rank) {
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  FaultRecord& record = state.memory.fault.as<FaultRecord>()[1];
  const std::optional<FaultRecord> skipped = read_record(record);
  if (!skipped) return Status();
  std::memset(&record, 0, sizeof(record));
  int32_t last_is_skipped = 0;
  const Rank& owner = member(rank);
  const DirectCounters counters{state.memory.ep_counters(shape_of_rank(rank))};
  SWITCHYARD_RETURN_IF_ERROR(
      owner.device().copy(&last_is_skipped, counters.is_skipped(), sizeof(last_is_skipped), owner.stream()));
  if (last_is_skipped != 0 && (state.step == Step::kDispatched || state.step == Step::kCombineSent))
    state.step = Step::kIdle;
  return Status(StatusCode::kResourceExhausted, describe(*skipped));
}

Status ExpertParallel::synchronize(int rank) {
  if (rank < 0 || rank >= n_ranks())
    return invalid_argument("synchronize: rank is %d; it must be 0..%d", rank, n_ranks() - 1);
  SWITCHYARD_RETURN_IF_ERROR(member(rank).synchronize());
  return check_fault(rank);
}

Status ExpertParallel::synchronize() {
  Status first_error = world_.synchronize();
  if (!first_error.ok()) return first_error;
  // Every rank is looked at, so that none takes another call after a broken step.
  for (int rank = 0; rank < n_ranks(); ++rank)
    if (Status status = check_fault(rank); !status.ok() && first_error.ok()) first_error = status;
  return first_error;
}

}  // namespace switchyard

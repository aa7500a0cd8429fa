#include "switchyard/runtime/expert_parallel.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <tuple>

namespace switchyard {
namespace {

constexpr uint64_t kMaxTimeoutNs = 86'400'000'000'000;
constexpr int kHostSms = 4;
constexpr int kHostThreads = 64;
constexpr int kCudaThreads[] = {1024, 512};  // the first that fits

Status check_range(const char* name, int value, int low, int high) {
  if (value >= low && value <= high) return Status();
  return invalid_argument("%s is %d; it must be %d..%d", name, value, low, high);
}

Status check_pointer(const char* call, const char* name, const void* pointer) {
  if (pointer == nullptr) return invalid_argument("%s: %s is null", call, name);
  if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
    return invalid_argument("%s: %s is %p; it must be aligned to 16 bytes", call, name, pointer);
  return Status();
}

Status validate(const ExpertParallelConfig& config, int n_ranks) {
  SWITCHYARD_RETURN_IF_ERROR(check_range("n_experts", config.n_experts, 1, kMaxExperts));
  SWITCHYARD_RETURN_IF_ERROR(check_range("top_k", config.top_k, 1, kMaxTopK));
  SWITCHYARD_RETURN_IF_ERROR(check_range("hidden", config.hidden, kHiddenMultiple, kMaxHidden));
  SWITCHYARD_RETURN_IF_ERROR(
      check_range("max_tokens_per_rank", config.max_tokens_per_rank, 0, kMaxTokensPerRank));
  SWITCHYARD_RETURN_IF_ERROR(check_range("n_sms", config.n_sms, 0, 65535));
  SWITCHYARD_RETURN_IF_ERROR(check_range("num_threads", config.num_threads, 0, 1024));
  if (config.n_experts % n_ranks != 0)
    return invalid_argument("n_experts is %d; it must be a multiple of the number of ranks (%d)",
                            config.n_experts, n_ranks);
  if (config.hidden % kHiddenMultiple != 0)
    return invalid_argument("hidden is %d; it must be a multiple of %d", config.hidden, kHiddenMultiple);
  if (config.num_threads % kWarpSize != 0)
    return invalid_argument("num_threads is %d; it must be a multiple of %d", config.num_threads, kWarpSize);
  if (config.timeout_ns == 0 || config.timeout_ns > kMaxTimeoutNs)
    return invalid_argument("timeout_ns is %llu; it must be 1..%llu (a day)",
                            static_cast<unsigned long long>(config.timeout_ns),
                            static_cast<unsigned long long>(kMaxTimeoutNs));
  return Status();
}

// One configuration serves all ranks, so all of it must be the same.
Status check_same(const ExpertParallelConfig& first, const ExpertParallelConfig& other, int rank) {
  const std::tuple<const char*, int64_t, int64_t> fields[] = {
      {"n_experts", first.n_experts, other.n_experts},
      {"top_k", first.top_k, other.top_k},
      {"hidden", first.hidden, other.hidden},
      {"max_tokens_per_rank", first.max_tokens_per_rank, other.max_tokens_per_rank},
      {"n_sms", first.n_sms, other.n_sms},
      {"num_threads", first.num_threads, other.num_threads},
      {"timeout_ns", static_cast<int64_t>(first.timeout_ns), static_cast<int64_t>(other.timeout_ns)},
      {"dependent_launch", first.dependent_launch, other.dependent_launch}};
  for (const auto& [name, expected, seen] : fields)
    if (expected != seen)
      return invalid_argument("rank %d has another configuration than rank 0: %s is %lld there and %lld here",
                              rank, name, static_cast<long long>(seen), static_cast<long long>(expected));
  return Status();
}

EpShape shape_of(const ExpertParallelConfig& config, int n_ranks) {
  return {.n_ranks = n_ranks,
          .n_experts = config.n_experts,
          .top_k = config.top_k,
          .hidden = config.hidden,
          .max_tokens_per_rank = config.max_tokens_per_rank,
          .p2p_world_size = n_ranks};
}

}  // namespace

struct ExpertParallel::RankState {
  DeviceMemory dispatch_recv, dispatch_counts, combine_recv, combine_counts, counters, poison, fault;
  std::optional<TraceRecorder> trace;
  Step step = Step::kIdle;
  int num_tokens = 0;  // of the step under way
  Status failure;
};

ExpertParallel::ExpertParallel(World& world, const ExpertParallelConfig& config)
    : world_(world), config_(config) {
  for (int rank = 0; rank < world.n_ranks(); ++rank) members_.push_back(rank);
}
ExpertParallel::~ExpertParallel() {
  // Kernels may still use the buffers; an error here has no one left to hear it.
  (void)world_.synchronize();
}

Result<std::unique_ptr<ExpertParallel>> ExpertParallel::create(World& world,
                                                               const ExpertParallelConfig& config) {
  SWITCHYARD_RETURN_IF_ERROR(validate(config, world.n_ranks()));
  auto ep = std::unique_ptr<ExpertParallel>(new ExpertParallel(world, config));
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

// Blocks and threads: what the caller left open, and whether all of them fit at once.
Status ExpertParallel::choose_launch() {
  const bool is_host = world_.target() == Target::kHost;
  const bool chooses_threads = config_.num_threads == 0;
  if (chooses_threads) config_.num_threads = is_host ? kHostThreads : kCudaThreads[0];
  for (int rank = 0; rank < n_ranks(); ++rank) {
    Device& device = member(rank).device();
    const int num_sharing = world_.num_ranks_on_device_of(members_[static_cast<size_t>(rank)]);
    SWITCHYARD_RETURN_IF_ERROR(device.activate());
    if (config_.n_sms == 0)
      config_.n_sms = is_host ? kHostSms : std::max(1, device.num_multiprocessors() / num_sharing);
    const int num_blocks = config_.n_sms * num_sharing * (config_.dependent_launch ? 2 : 1);
    Result<int> resident =
        device.kernels().max_resident_blocks(shape_of(config_, n_ranks()), config_.num_threads);
    if (resident.ok() && num_blocks > resident.value() && chooses_threads && !is_host) {
      config_.num_threads = kCudaThreads[1];
      resident = device.kernels().max_resident_blocks(shape_of(config_, n_ranks()), config_.num_threads);
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

LaunchShape ExpertParallel::launch_shape() const {
  return {.num_blocks = static_cast<uint32_t>(config_.n_sms),
          .num_threads = static_cast<uint32_t>(config_.num_threads),
          .programmatic_dependent = config_.dependent_launch};
}

uint64_t ExpertParallel::max_recv_rows() const {
  return static_cast<uint64_t>(n_ranks()) * static_cast<uint64_t>(config_.max_tokens_per_rank) *
         static_cast<uint64_t>(config_.top_k);
}

uint32_t ExpertParallel::combine_message_bytes() const {
  return static_cast<uint32_t>(config_.hidden) * static_cast<uint32_t>(sizeof(bf16));
}

uint32_t ExpertParallel::dispatch_message_bytes() const {
  return MessageLayout{static_cast<uint32_t>(config_.hidden) * static_cast<uint32_t>(sizeof(bf16)),
                       config_.top_k}
      .bytes();
}

uint64_t ExpertParallel::bytes_per_rank() const {
  const RankState& state = *ranks_.front();
  return state.dispatch_recv.bytes() + state.dispatch_counts.bytes() + state.combine_recv.bytes() +
         state.combine_counts.bytes() + state.counters.bytes();
}

Status ExpertParallel::allocate() {
  const int tokens = config_.max_tokens_per_rank;
  const CheckedSize recv =
      DispatchRecvLayout{n_local_experts(), n_ranks(), tokens, dispatch_message_bytes()}.bytes();
  const CheckedSize combine = CombineRecvLayout{tokens, config_.top_k, combine_message_bytes()}.bytes();
  if (!(recv + combine).ok())
    return invalid_argument("the exchange buffers of %d tokens x %d experts x %u bytes exceed 64 bits",
                            tokens, config_.n_experts, dispatch_message_bytes());
  const CheckedSize cells = CombineCountLayout{config_.n_experts}.bytes();
  const CheckedSize counters(static_cast<uint64_t>(SyncCounterLayout{config_.n_experts}.total_size()) *
                             sizeof(int32_t));
  for (int rank = 0; rank < n_ranks(); ++rank) {
    Device& device = member(rank).device();
    auto state = std::make_unique<RankState>();
    const std::pair<DeviceMemory*, CheckedSize> buffers[] = {
        {&state->dispatch_recv, recv},   {&state->dispatch_counts, cells}, {&state->combine_recv, combine},
        {&state->combine_counts, cells}, {&state->counters, counters},     {&state->poison, CheckedSize(64)}};
    for (const auto& [memory, size] : buffers) {
      Result<DeviceMemory> allocated = DeviceMemory::allocate(device, size.value());
      if (!allocated.ok())
        return resource_exhausted(
            "exchange buffers of rank %d, %llu bytes per rank in all (max_tokens_per_rank %d): %s", rank,
            static_cast<unsigned long long>((recv + combine).value()), tokens,
            allocated.status().message().c_str());
      *memory = std::move(allocated).value();
    }
    Result<DeviceMemory> fault = DeviceMemory::allocate_host_visible(device, sizeof(FaultRecord));
    if (!fault.ok()) return fault.status();
    state->fault = std::move(fault).value();
    ranks_.push_back(std::move(state));
  }
  return Status();
}

// Every buffer of every rank is ready before any rank may send: nothing can arrive in between.
Status ExpertParallel::clear_buffers() {
  for (int rank = 0; rank < n_ranks(); ++rank) {
    RankState& state = *ranks_[static_cast<size_t>(rank)];
    const Rank& owner = member(rank);
    const auto fill = [&](const DeviceMemory& memory, uint8_t value) {
      return owner.device().fill(memory.as<void>(), value, memory.bytes(), owner.stream());
    };
    SWITCHYARD_RETURN_IF_ERROR(fill(state.dispatch_counts, 0xff));  // kNothingArrived
    SWITCHYARD_RETURN_IF_ERROR(fill(state.combine_counts, 0xff));
    SWITCHYARD_RETURN_IF_ERROR(fill(state.counters, 0));
    SWITCHYARD_RETURN_IF_ERROR(fill(state.poison, 0));
    std::memset(state.fault.as<void>(), 0, sizeof(FaultRecord));
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
  std::vector<int> members;
  for (size_t i = 0; i < survivors.size(); ++i) {
    if (survivors[i] < 0 || survivors[i] >= n_ranks() || (i > 0 && survivors[i] <= survivors[i - 1]))
      return invalid_argument("survivors[%zu] is %d; they must ascend within 0..%d", i, survivors[i],
                              n_ranks() - 1);
    members.push_back(members_[static_cast<size_t>(survivors[i])]);
  }
  SWITCHYARD_RETURN_IF_ERROR(validate(config_, static_cast<int>(members.size())));
  SWITCHYARD_RETURN_IF_ERROR(world_.synchronize());
  // Buffers have a place for every expert of the model, whoever owns it: the survivors' are as they must be.
  std::vector<std::unique_ptr<RankState>> states;
  for (const int survivor : survivors) states.push_back(std::move(ranks_[static_cast<size_t>(survivor)]));
  ranks_ = std::move(states);
  members_ = std::move(members);
  return clear_buffers();
}

Status ExpertParallel::poison_receive_buffers(uint8_t value) {
  for (int rank = 0; rank < n_ranks(); ++rank) {
    const RankState& state = *ranks_[static_cast<size_t>(rank)];
    for (const DeviceMemory* buffer : {&state.dispatch_recv, &state.combine_recv})
      SWITCHYARD_RETURN_IF_ERROR(
          member(rank).device().fill(buffer->as<void>(), value, buffer->bytes(), member(rank).stream()));
  }
  return Status();
}

Status ExpertParallel::enable_trace(uint32_t events_per_block) {
  if (ranks_.front()->trace) return failed_precondition("enable_trace: the trace is on already");
  std::vector<TraceRecorder> recorders;  // all ranks or none
  for (int rank = 0; rank < n_ranks(); ++rank) {
    Result<TraceRecorder> recorder = TraceRecorder::create(member(rank), config_.n_sms, events_per_block);
    if (!recorder.ok())
      return Status(recorder.status().code(), "enable_trace: " + recorder.status().message());
    recorders.push_back(std::move(recorder).value());
  }
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank]->trace = std::move(recorders[rank]);
  return Status();
}

Result<std::vector<RankTrace>> ExpertParallel::take_trace() {
  if (!ranks_.front()->trace) return failed_precondition("take_trace: call enable_trace() first");
  SWITCHYARD_RETURN_IF_ERROR(world_.synchronize());
  std::vector<RankTrace> traces;
  for (const auto& state : ranks_) {
    Result<RankTrace> trace = state->trace->take();
    if (!trace.ok()) return trace.status();
    traces.push_back(std::move(trace).value());
  }
  return traces;
}

std::optional<FaultRecord> ExpertParallel::fault(int rank) const {
  FaultRecord* record = ranks_[static_cast<size_t>(rank)]->fault.as<FaultRecord>();
  // acquire: the record; pairs with the release in raise_fault()
  if (std::atomic_ref<uint32_t>(record->state).load(std::memory_order_acquire) != FaultRecord::kWritten)
    return {};
  return *record;
}

FaultChannel ExpertParallel::fault_channel(int rank) const {
  FaultChannel channel{};
  channel.record = ranks_[static_cast<size_t>(rank)]->fault.as<FaultRecord>();
  for (size_t peer = 0; peer < ranks_.size(); ++peer)
    channel.poison[peer] = ranks_[peer]->poison.as<uint32_t>();
  channel.my_rank = rank;
  channel.n_ranks = n_ranks();
  channel.timeout_ns = config_.timeout_ns;
  if (const auto& trace = ranks_[static_cast<size_t>(rank)]->trace) channel.trace = trace->buffer();
  return channel;
}

DispatchArguments ExpertParallel::dispatch_arguments(int rank) const {
  DispatchArguments arguments{};
  arguments.shape = shape_of(config_, n_ranks());
  arguments.my_rank = rank;
  for (size_t peer = 0; peer < ranks_.size(); ++peer) {
    arguments.recv_bufs.of_rank[peer] = ranks_[peer]->dispatch_recv.as<std::byte>();
    arguments.recv_counts.of_rank[peer] = ranks_[peer]->dispatch_counts.as<uint64_t>();
  }
  arguments.counters = ranks_[static_cast<size_t>(rank)]->counters.as<int32_t>();
  arguments.fault = fault_channel(rank);
  return arguments;
}

CombineArguments ExpertParallel::combine_arguments(int rank) const {
  CombineArguments arguments{};
  arguments.shape = shape_of(config_, n_ranks());
  arguments.my_rank = rank;
  for (size_t peer = 0; peer < ranks_.size(); ++peer) {
    arguments.recv_bufs.of_rank[peer] = ranks_[peer]->combine_recv.as<std::byte>();
    arguments.recv_counts.of_rank[peer] = ranks_[peer]->combine_counts.as<uint64_t>();
  }
  arguments.counters = ranks_[static_cast<size_t>(rank)]->counters.as<int32_t>();
  arguments.fault = fault_channel(rank);
  return arguments;
}

Status ExpertParallel::check_call(int rank, const char* call, Step required) const {
  if (rank < 0 || rank >= n_ranks())
    return invalid_argument("%s: rank is %d; it must be 0..%d", call, rank, n_ranks() - 1);
  const RankState& state = *ranks_[static_cast<size_t>(rank)];
  if (!state.failure.ok())
    return failed_precondition("%s: the last step of rank %d failed (%s); call reset() first", call, rank,
                               state.failure.message().c_str());
  if (state.step == required) return Status();
  const char* last = state.step == Step::kIdle           ? "a finished step"
                     : state.step == Step::kDispatchSent ? "dispatch_async"
                     : state.step == Step::kDispatched   ? "dispatch"
                                                         : "combine_async";
  const char* next = state.step == Step::kIdle           ? "dispatch or dispatch_async"
                     : state.step == Step::kDispatchSent ? "dispatch_wait"
                     : state.step == Step::kDispatched   ? "combine or combine_async"
                                                         : "combine_wait";
  return failed_precondition("%s on rank %d after %s; next must come %s", call, rank, last, next);
}

Status ExpertParallel::check_tokens(const char* call, int num_tokens, const void* topk_ids) const {
  if (num_tokens < 0 || num_tokens > config_.max_tokens_per_rank)
    return invalid_argument("%s: num_tokens is %d; it must be 0..%d (max_tokens_per_rank)", call, num_tokens,
                            config_.max_tokens_per_rank);
  return num_tokens == 0 ? Status() : check_pointer(call, "topk_ids", topk_ids);
}

Status ExpertParallel::launch_dispatch(KernelTable::Dispatch launch, int rank, const char* call,
                                       const DispatchInput* input, const DispatchOutput* output) {
  SWITCHYARD_RETURN_IF_ERROR(check_call(rank, call, input != nullptr ? Step::kIdle : Step::kDispatchSent));
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  DispatchArguments arguments = dispatch_arguments(rank);
  bf16* output_rows = nullptr;
  if (input != nullptr) {
    SWITCHYARD_RETURN_IF_ERROR(check_tokens(call, input->num_tokens, input->topk_ids));
    if (input->num_tokens > 0) SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "tokens", input->tokens));
    arguments.num_tokens = input->num_tokens;
    arguments.input_tokens = input->tokens;
    arguments.topk_ids = input->topk_ids;
  }
  if (output != nullptr) {
    if (output->max_rows > 0) {
      SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "rows", output->rows));
      SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "src_info", output->src_info));
    }
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "row_offsets", output->row_offsets));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "expert_ids", output->expert_ids));
    output_rows = output->rows;
    arguments.row_offsets = output->row_offsets;
    arguments.expert_ids = output->expert_ids;
    arguments.src_info = output->src_info;
    arguments.max_rows = output->max_rows;
  }
  const Rank& owner = member(rank);
  SWITCHYARD_RETURN_IF_ERROR(owner.device().activate());
  SWITCHYARD_RETURN_IF_ERROR(launch(launch_shape(), owner.stream(), arguments, output_rows));
  if (input != nullptr) state.num_tokens = input->num_tokens;
  state.step = output != nullptr ? Step::kDispatched : Step::kDispatchSent;
  return Status();
}

Status ExpertParallel::dispatch_async(int rank, const DispatchInput& input) {
  return launch_dispatch(kernels().dispatch_async, rank, "dispatch_async", &input, nullptr);
}
Status ExpertParallel::dispatch_wait(int rank, const DispatchOutput& output) {
  return launch_dispatch(kernels().dispatch_wait, rank, "dispatch_wait", nullptr, &output);
}
Status ExpertParallel::dispatch(int rank, const DispatchInput& input, const DispatchOutput& output) {
  return launch_dispatch(kernels().dispatch, rank, "dispatch", &input, &output);
}

Status ExpertParallel::launch_combine(KernelTable::Combine launch, int rank, const char* call,
                                      const CombineInput* input, const CombineOutput* output) {
  SWITCHYARD_RETURN_IF_ERROR(
      check_call(rank, call, input != nullptr ? Step::kDispatched : Step::kCombineSent));
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  CombineArguments arguments = combine_arguments(rank);
  CombineDestination destination;
  if (input != nullptr) {
    arguments.expert_rows = input->expert_rows;
    arguments.src_info = input->src_info;
    // A rank that received nothing may pass null; that it did is known on the device only.
    if (input->expert_rows != nullptr)
      SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "expert_rows", input->expert_rows));
  }
  if (output != nullptr) {
    SWITCHYARD_RETURN_IF_ERROR(check_tokens(call, output->num_tokens, output->topk_ids));
    if (output->num_tokens != state.num_tokens)
      return invalid_argument("%s: num_tokens is %d; this step dispatched %d", call, output->num_tokens,
                              state.num_tokens);
    if (output->num_tokens > 0) {
      SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "output", output->destination.output));
      if (output->destination.reduction == CombineReduction::kWeighted)
        SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "topk_weights", output->topk_weights));
    }
    arguments.num_tokens = output->num_tokens;
    arguments.topk_ids = output->topk_ids;
    arguments.topk_weights = output->topk_weights;
    destination = output->destination;
  }
  const Rank& owner = member(rank);
  SWITCHYARD_RETURN_IF_ERROR(owner.device().activate());
  SWITCHYARD_RETURN_IF_ERROR(launch(launch_shape(), owner.stream(), arguments, destination));
  state.step = output != nullptr ? Step::kIdle : Step::kCombineSent;
  return Status();
}

Status ExpertParallel::combine_async(int rank, const CombineInput& input) {
  return launch_combine(kernels().combine_async, rank, "combine_async", &input, nullptr);
}
Status ExpertParallel::combine_wait(int rank, const CombineOutput& output) {
  return launch_combine(kernels().combine_wait, rank, "combine_wait", nullptr, &output);
}
Status ExpertParallel::combine(int rank, const CombineInput& input, const CombineOutput& output) {
  return launch_combine(kernels().combine, rank, "combine", &input, &output);
}

Status ExpertParallel::check_fault(int rank) {
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  uint32_t poison = 0;
  const Rank& owner = member(rank);
  SWITCHYARD_RETURN_IF_ERROR(
      owner.device().copy(&poison, state.poison.as<void>(), sizeof(poison), owner.stream()));
  if (poison == 0) return Status();
  // A rank that found a fault itself says so; one that was poisoned says what its poisoner found.
  for (const int reporter : {rank, static_cast<int>(poison) - 1}) {
    const std::optional<FaultRecord> record = fault(reporter);
    if (!record) continue;
    const StatusCode code = record->kind == FaultKind::kTimeout       ? StatusCode::kDeadlineExceeded
                            : record->kind == FaultKind::kTooManyRows ? StatusCode::kResourceExhausted
                                                                      : StatusCode::kInvalidArgument;
    const std::string prefix = reporter == rank ? "" : "rank " + std::to_string(rank) + " gave up: ";
    state.failure = Status(code, prefix + describe(*record));
    return state.failure;
  }
  state.failure = internal_error("rank %d was told to give up by rank %d, which left no record", rank,
                                 static_cast<int>(poison) - 1);
  return state.failure;
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

#include "switchyard/runtime/expert_parallel.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "ep_config.hpp"
#include "exchange_memory.hpp"
#include "switchyard/ep/direct/layout.hpp"

namespace switchyard {
namespace {

constexpr int kHostSms = 4;
constexpr int kHostThreads = 64;
constexpr int kCudaThreads[] = {1024, 512};  // the first that fits

Status check_pointer(const char* call, const char* name, const void* pointer) {
  if (pointer == nullptr) return invalid_argument("%s: %s is null", call, name);
  if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0)
    return invalid_argument("%s: %s is %p; it must be aligned to 16 bytes", call, name, pointer);
  return Status();
}

}  // namespace

struct ExpertParallel::RankState {
  ExchangeMemory memory;
  std::optional<TraceRecorder> trace;
  Step step = Step::kIdle;
  int num_tokens = 0;                 // of the step under way
  const void* expert_rows = nullptr;  // of its combine_async
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

EpKernels ExpertParallel::kernels_of(const Device& device) const {
  const TracedKernels kernels =
      is_traced_ ? device.traced_kernels() : TracedKernels{device.kernels().slotted, device.kernels().direct};
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
    SWITCHYARD_RETURN_IF_ERROR(device.activate());
    if (config_.n_sms == 0)
      config_.n_sms = is_host ? kHostSms : std::max(1, device.num_multiprocessors() / num_sharing);
    const int num_blocks = config_.n_sms * num_sharing * (config_.dependent_launch ? 2 : 1);
    Result<int> resident = max_resident_blocks(device);
    if (resident.ok() && num_blocks > resident.value() && chooses_threads && !is_host) {
      config_.num_threads = kCudaThreads[1];
      resident = max_resident_blocks(device);
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

// Of dispatch and of combine; also loads them.
Result<int> ExpertParallel::max_resident_blocks(const Device& device) const {
  const EpKernels kernels = kernels_of(device);
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
  return std::min(for_dispatch.value(), for_combine.value());
}

const DispatchKernels& ExpertParallel::dispatch_kernels() const {
  return *kernels_of(member(0).device()).dispatch(config_.dispatch_format);
}
const CombineKernels& ExpertParallel::combine_kernels() const {
  return *kernels_of(member(0).device()).combine(config_.combine_format);
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

Result<RowReadiness> ExpertParallel::row_readiness(int rank) const {
  if (rank < 0 || rank >= n_ranks())
    return invalid_argument("row_readiness: rank is %d; it must be 0..%d", rank, n_ranks() - 1);
  if (config_.protocol != Protocol::kDirect)
    return failed_precondition(
        "row_readiness: rows of the slotted protocol are there after dispatch_wait only");
  const ExchangeMemory& memory = ranks_[static_cast<size_t>(rank)]->memory;
  const DirectCounters counters{memory.counters.as<int32_t>()};
  return RowReadiness{memory.dispatch_counts.as<uint64_t>(),
                      counters.num_steps(),
                      counters.row_offset(num_groups() - n_local_experts()),
                      num_exchanging_ranks(config_, n_ranks()),
                      rank * n_local_experts(),
                      fault_channel(rank)};
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
  SWITCHYARD_RETURN_IF_ERROR(world_.synchronize());
  // Buffers have a place for every expert of the model, whoever owns it: the survivors' are as they must be.
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
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank]->trace = std::move(recorders[rank]);
  is_traced_ = true;
  return choose_launch();  // loads the kernels
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
  // acquire: the record; pairs with the release in record_fault()
  if (std::atomic_ref<uint32_t>(record.state).load(std::memory_order_acquire) != FaultRecord::kWritten)
    return {};
  return record;
}

}  // namespace

std::optional<FaultRecord> ExpertParallel::fault(int rank) const {
  if (rank < 0 || rank >= n_ranks()) return {};
  return read_record(*ranks_[static_cast<size_t>(rank)]->memory.fault.as<FaultRecord>());
}

FaultChannel ExpertParallel::fault_channel(int rank) const {
  FaultChannel channel{};
  channel.record = ranks_[static_cast<size_t>(rank)]->memory.fault.as<FaultRecord>();
  channel.skipped = channel.record + 1;
  for (size_t peer = 0; peer < ranks_.size(); ++peer)
    channel.poison[peer] = ranks_[peer]->memory.poison.as<uint32_t>();
  channel.my_rank = rank;
  channel.n_ranks = n_ranks();
  channel.timeout_ns = config_.timeout_ns;
  if (const auto& trace = ranks_[static_cast<size_t>(rank)]->trace) channel.trace = trace->buffer();
  return channel;
}

// The emulator takes every rank for a device of its own.
Scope ExpertParallel::signal_scope() const {
  for (int rank = 0; rank < n_ranks(); ++rank)
    if (world_.target() == Target::kHost || &member(rank).device() != &member(0).device())
      return Scope::kSystem;
  return Scope::kDevice;
}

EpShape ExpertParallel::shape_of_rank(int rank) const {
  EpShape shape = shape_of(config_, n_ranks());
  if (config_.routing == Routing::kSkipAllToAll) shape.first_expert = rank * n_local_experts();
  return shape;
}

std::vector<int> ExpertParallel::peers_of(int rank) const {
  if (config_.routing == Routing::kSkipAllToAll) return {rank};
  std::vector<int> peers(ranks_.size());
  std::iota(peers.begin(), peers.end(), 0);
  return peers;
}

SharedExpertTokens ExpertParallel::shared_expert_tokens(int rank, int num_tokens) const {
  if (config_.shared_expert == SharedExpert::kNone) return {};
  if (config_.routing == Routing::kAllToAll)
    return {.num_groups = 1, .first_token = 0, .num_tokens = num_tokens};
  const auto first_of = [&](int r) {
    return static_cast<int>(static_cast<int64_t>(num_tokens) * r / n_ranks());
  };
  return {.num_groups = 1, .first_token = first_of(rank), .num_tokens = first_of(rank + 1) - first_of(rank)};
}

DispatchArguments ExpertParallel::dispatch_arguments(int rank) const {
  DispatchArguments arguments{};
  arguments.shape = shape_of_rank(rank);
  const std::vector<int> peers = peers_of(rank);
  arguments.my_rank = peers.size() == 1 ? 0 : rank;
  arguments.signal_scope = signal_scope();
  for (size_t i = 0; i < peers.size(); ++i) ranks_[static_cast<size_t>(peers[i])]->memory.show(i, arguments);
  const ExchangeMemory& own = ranks_[static_cast<size_t>(rank)]->memory;
  arguments.counters = own.counters.as<int32_t>();
  arguments.row_of = own.row_of.as<uint32_t>();
  arguments.max_rows = static_cast<uint32_t>(sizes_->row_capacity);
  arguments.scales_offset = sizes_->scales_offset;
  arguments.staged_scales_offset = sizes_->staged_scales_offset;
  arguments.send_buf = own.send.as<std::byte>();
  arguments.fault = fault_channel(rank);
  return arguments;
}

CombineArguments ExpertParallel::combine_arguments(int rank) const {
  CombineArguments arguments{};
  arguments.shape = shape_of_rank(rank);
  const std::vector<int> peers = peers_of(rank);
  arguments.my_rank = peers.size() == 1 ? 0 : rank;
  arguments.signal_scope = signal_scope();
  for (size_t i = 0; i < peers.size(); ++i) ranks_[static_cast<size_t>(peers[i])]->memory.show(i, arguments);
  const ExchangeMemory& own = ranks_[static_cast<size_t>(rank)]->memory;
  arguments.counters = own.counters.as<int32_t>();
  arguments.row_of = own.row_of.as<uint32_t>();
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

Status ExpertParallel::check_tokens(const char* call, int num_tokens, const void* pointer,
                                    const char* name) const {
  if (num_tokens < 0 || num_tokens > config_.max_tokens_per_rank)
    return invalid_argument("%s: num_tokens is %d; it must be 0..%d (max_tokens_per_rank)", call, num_tokens,
                            config_.max_tokens_per_rank);
  return num_tokens == 0 ? Status() : check_pointer(call, name, pointer);
}

// Peers write rows, and read expert output, in memory that all of them know.
Status ExpertParallel::check_rows(int rank, const char* call, const DispatchOutput& output) const {
  const RowBuffers own = ranks_[static_cast<size_t>(rank)]->memory.row_buffers(*sizes_);
  if (output.rows == nullptr && output.src_info == nullptr) return Status();
  if (output.rows != own.encoded_rows || output.src_info != own.src_info || output.max_rows != own.max_rows ||
      output.scales != own.scales)
    return invalid_argument(
        "%s: rows, scales, src_info and max_rows must be those of row_buffers(%d): the direct protocol "
        "writes there",
        call, rank);
  return Status();
}
Status ExpertParallel::check_expert_rows(int rank, const char* call, const void* expert_rows) const {
  const RowBuffers own = ranks_[static_cast<size_t>(rank)]->memory.row_buffers(*sizes_);
  if (expert_rows == nullptr) return Status();
  if (sizes_->has_encoded_outputs) {
    if (expert_rows == own.encoded_outputs) return Status();
    return invalid_argument(
        "%s: expert_rows must be the encoded_outputs of row_buffers(%d): the direct protocol's peers read "
        "fp8 there",
        call, rank);
  }
  if (expert_rows != own.expert_outputs && expert_rows != own.rows)
    return invalid_argument(
        "%s: expert_rows must be the expert_outputs or the rows of row_buffers(%d): the direct protocol's "
        "peers read there",
        call, rank);
  return Status();
}

Status ExpertParallel::launch_dispatch(DispatchKernels::Launch launch, int rank, const char* call,
                                       const DispatchInput* input, const DispatchOutput* output) {
  SWITCHYARD_RETURN_IF_ERROR(check_call(rank, call, input != nullptr ? Step::kIdle : Step::kDispatchSent));
  RankState& state = *ranks_[static_cast<size_t>(rank)];
  DispatchArguments arguments = dispatch_arguments(rank);
  FormatTensors tensors{.max_rows = arguments.max_rows, .tensor_scale = config_.input_scale};
  arguments.num_tokens = state.num_tokens;
  if (input != nullptr) {
    SWITCHYARD_RETURN_IF_ERROR(check_tokens(call, input->num_tokens, input->topk_ids));
    if (input->num_tokens > 0) SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "tokens", input->tokens));
    arguments.num_tokens = input->num_tokens;
    arguments.input_tokens = input->tokens;
    arguments.topk_ids = input->topk_ids;
  }
  if (output != nullptr) {
    if (config_.protocol == Protocol::kDirect) {
      SWITCHYARD_RETURN_IF_ERROR(check_rows(rank, call, *output));
    } else {
      if (output->max_rows > 0) {
        SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "rows", output->rows));
        SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "src_info", output->src_info));
        if (sizes_->has_scales) SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "scales", output->scales));
      }
      arguments.max_rows = output->max_rows;
    }
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "row_offsets", output->row_offsets));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, "expert_ids", output->expert_ids));
    tensors.rows = static_cast<std::byte*>(output->rows);
    tensors.scales = static_cast<std::byte*>(output->scales);
    tensors.max_rows = arguments.max_rows;
    arguments.row_offsets = output->row_offsets;
    arguments.expert_ids = output->expert_ids;
    arguments.src_info = output->src_info;
  }
  arguments.shared_expert = shared_expert_tokens(rank, arguments.num_tokens);
  const Rank& owner = member(rank);
  SWITCHYARD_RETURN_IF_ERROR(owner.device().activate());
  SWITCHYARD_RETURN_IF_ERROR(launch(launch_shape(), owner.stream(), arguments, tensors));
  if (input != nullptr) state.num_tokens = input->num_tokens;
  state.step = output != nullptr ? Step::kDispatched : Step::kDispatchSent;
  return Status();
}

Status ExpertParallel::dispatch_async(int rank, const DispatchInput& input) {
  return launch_dispatch(dispatch_kernels().async, rank, "dispatch_async", &input, nullptr);
}
Status ExpertParallel::dispatch_wait(int rank, const DispatchOutput& output) {
  return launch_dispatch(dispatch_kernels().wait, rank, "dispatch_wait", nullptr, &output);
}
Status ExpertParallel::dispatch(int rank, const DispatchInput& input, const DispatchOutput& output) {
  return launch_dispatch(dispatch_kernels().fused, rank, "dispatch", &input, &output);
}

Status ExpertParallel::launch_combine(CombineKernels::Launch launch, int rank, const char* call,
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
    if (config_.protocol == Protocol::kDirect) {
      SWITCHYARD_RETURN_IF_ERROR(check_expert_rows(rank, call, input->expert_rows));
      if (input->expert_rows == nullptr) {
        const RowBuffers rows = state.memory.row_buffers(*sizes_);
        arguments.expert_rows = sizes_->has_encoded_outputs ? static_cast<const void*>(rows.encoded_outputs)
                                                            : rows.expert_outputs;
      }
    }
  } else {
    arguments.expert_rows = state.expert_rows;  // the shared expert's are among them
  }
  if (output != nullptr) {
    SWITCHYARD_RETURN_IF_ERROR(check_tokens(call, output->num_tokens, output->topk_ids));
    if (output->num_tokens != state.num_tokens)
      return invalid_argument("%s: num_tokens is %d; this step dispatched %d", call, output->num_tokens,
                              state.num_tokens);
    if (config_.shared_expert == SharedExpert::kFused &&
        output->destination.reduction == CombineReduction::kUnreduced)
      return invalid_argument("%s: with a shared expert there is no unreduced output", call);
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
  arguments.shared_expert = shared_expert_tokens(rank, state.num_tokens);
  const Rank& owner = member(rank);
  SWITCHYARD_RETURN_IF_ERROR(owner.device().activate());
  SWITCHYARD_RETURN_IF_ERROR(launch(launch_shape(), owner.stream(), arguments, destination));
  state.expert_rows = arguments.expert_rows;
  state.step = output != nullptr ? Step::kIdle : Step::kCombineSent;
  return Status();
}

Status ExpertParallel::combine_async(int rank, const CombineInput& input) {
  return launch_combine(combine_kernels().async, rank, "combine_async", &input, nullptr);
}
Status ExpertParallel::combine_wait(int rank, const CombineOutput& output) {
  return launch_combine(combine_kernels().wait, rank, "combine_wait", nullptr, &output);
}
Status ExpertParallel::combine(int rank, const CombineInput& input, const CombineOutput& output) {
  return launch_combine(combine_kernels().fused, rank, "combine", &input, &output);
}

Status ExpertParallel::all_reduce(int rank, bf16* values, int num_tokens) {
  SWITCHYARD_RETURN_IF_ERROR(check_call(rank, "all_reduce", Step::kIdle));
  if (config_.routing != Routing::kSkipAllToAll)
    return failed_precondition("all_reduce: outputs are whole unless routing skips the all-to-all");
  SWITCHYARD_RETURN_IF_ERROR(check_tokens("all_reduce", num_tokens, values, "values"));
  AllReduceParams params{.layout = {n_ranks(), config_.max_tokens_per_rank, config_.hidden},
                         .my_rank = rank,
                         .num_tokens = num_tokens,
                         .values = values,
                         .exchanged = {},
                         .cells = {},
                         .fault = fault_channel(rank)};
  for (size_t peer = 0; peer < ranks_.size(); ++peer) {
    params.exchanged.of_rank[peer] = ranks_[peer]->memory.reduce_values.as<bf16>();
    params.cells.of_rank[peer] = ranks_[peer]->memory.reduce_cells.as<uint64_t>();
  }
  const Rank& owner = member(rank);
  SWITCHYARD_RETURN_IF_ERROR(owner.device().activate());
  return owner.device().kernels().all_reduce(launch_shape(), owner.stream(), params);
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
    const std::string prefix = reporter == rank ? "" : "rank " + std::to_string(rank) + " gave up: ";
    state.failure = Status(code, prefix + describe(*record));
    return state.failure;
  }
  state.failure = internal_error("rank %d was told to give up by rank %d, which left no record", rank,
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
  SWITCHYARD_RETURN_IF_ERROR(
      owner.device().copy(&last_is_skipped, DirectCounters{state.memory.counters.as<int32_t>()}.is_skipped(),
                          sizeof(last_is_skipped), owner.stream()));
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

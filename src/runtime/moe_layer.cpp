#include "switchyard/moe_layer.hpp"

#include <algorithm>
#include <atomic>
#include <numeric>

#include "runtime/ep/agreement.hpp"
#include "runtime/ep/rank_call.hpp"
#include "runtime/moe_layer_checks.hpp"
#include "switchyard/detail/launch/kernel_table.hpp"
#include "switchyard/detail/runtime/internals.hpp"
#include "switchyard/row_completion.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {

struct MoeLayer::Impl {
  // What a rank has besides the memory of ExpertParallel.
  struct RankState {
    ExpertWeights weights;
    RowBuffers rows;
    Buffer<uint32_t> row_offsets, row_counts;
    Buffer<int32_t> expert_ids;
    Buffer<int32_t> routed_ids;  // of the router
    Buffer<float> routed_weights;
    Buffer<uint8_t> activated;       // [max_rows][expert_width], what down reads
    Buffer<float> activated_scales;  // fp8
    std::unique_ptr<GroupedMatmul> gate_up, down;
    bool uses_callers_streams = false;
    // Moves with its rank before any call.
    std::unique_ptr<std::atomic<const char*>> call_under_way = std::make_unique<std::atomic<const char*>>();
  };

  World& world;
  MoeLayerConfig config;
  std::vector<MoePart> parts;              // of config
  std::unique_ptr<ExpertParallel> own_ep;  // null: the layer is a later flight of another
  ExpertParallel* ep;
  std::vector<RankState> ranks;
  int num_groups = 0;  // when the memory of the ranks was allocated
  std::vector<std::unique_ptr<MoeLayer>> later_flights;

  Status prepare(const std::vector<ExpertWeights>& weights);
  Status prepare(int rank, const ExpertWeights& weights);
  Status add_flight(int flight_idx, const std::vector<ExpertWeights>& weights);
  Status make_matmuls(int rank);
  Status check_rank(int rank) const;
  Status check_step(MoePart first, int rank, const MoeLayerStep& step) const;
  Status check_rows(int rank) const;
  Status route(int rank, const MoeLayerStep& step, Stream stream);
  PrefetchedMemory first_gate_up_weights(int rank) const;
  Status dispatch(int rank, const MoeLayerStep& step, Stream stream);
  DispatchInput dispatch_input(int rank, const MoeLayerStep& step) const;
  DispatchOutput dispatch_output(int rank) const;
  Status gate_up(int rank, const MoeLayerStep& step, Stream stream);
  Status gate_up_with_rows(int rank, const MoeLayerStep& step, Stream stream);
  GroupedMatmulTensors gate_up_tensors(int rank, const MoeLayerStep& step) const;
  Status down(int rank, Stream stream);
  CombineInput combine_input(int rank, bool follows_down) const;
  CombineOutput combine_output(int rank, const MoeLayerStep& step) const;
  Status run_part(MoePart part, int rank, const MoeLayerStep& step, Stream stream, bool is_whole_step);

  bool is_split() const { return config.launches == StepLaunches::kSplit; }
  bool starts_with_rows() const { return config.gate_up_start == GateUpStart::kWithRows; }
  bool combines_with_experts() const { return config.ep.combine_start == CombineStart::kWithExperts; }
  bool is_fp8() const { return element_of(config) == MatmulElement::kFP8; }
  bool has_weight_scales() const { return is_fp8() || is_coded(config.weights); }
  // Whether down writes rows as they are sent back.
  bool encodes_outputs() const {
    return config.ep.protocol == Protocol::kDirect && config.ep.combine_format != CombineFormat::kBF16;
  }
  void* outputs_of(int rank) const {
    const RowBuffers& rows = of(rank).rows;
    return encodes_outputs() ? static_cast<void*>(rows.encoded_outputs) : rows.expert_outputs;
  }
  bool has_router(const MoeLayerStep& step) const { return step.logits != nullptr; }
  const int32_t* ids_of(int rank, const MoeLayerStep& step) const {
    return has_router(step) ? of(rank).routed_ids.data() : step.topk_ids;
  }
  const float* weights_of(int rank, const MoeLayerStep& step) const {
    return has_router(step) ? of(rank).routed_weights.data() : step.topk_weights;
  }
  RankState& of(int rank) { return ranks[static_cast<size_t>(rank)]; }
  const RankState& of(int rank) const { return ranks[static_cast<size_t>(rank)]; }
};

MoeLayer::MoeLayer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MoeLayer::~MoeLayer() {
  // What is freed now may be in use on streams that the ranks do not know.
  for (const int rank : impl_->world.local_ranks())
    if (static_cast<size_t>(rank) < impl_->ranks.size() && impl_->of(rank).uses_callers_streams)
      device_of(impl_->world.rank(rank)).drain_all();
}

const MoeLayerConfig& MoeLayer::config() const { return impl_->config; }
ExpertParallel& MoeLayer::ep() { return *impl_->ep; }
const GroupedMatmul& MoeLayer::gate_up(int rank) const {
  return *impl_->of(impl_->world.rank(rank).index()).gate_up;
}
const GroupedMatmul& MoeLayer::down(int rank) const {
  return *impl_->of(impl_->world.rank(rank).index()).down;
}
MoeLayerRows MoeLayer::rows(int rank) const {
  const Impl::RankState& state = impl_->of(impl_->world.rank(rank).index());
  return {.routed_ids = state.routed_ids.data(),
          .routed_weights = state.routed_weights.data(),
          .dispatched = impl_->dispatch_output(rank),
          .expert_outputs = state.rows.expert_outputs,
          .encoded_outputs = state.rows.encoded_outputs};
}

Result<MoeLayer*> MoeLayer::flight(int flight_idx) {
  const int num_flights = impl_->config.ep.steps_in_flight;
  if (flight_idx < 0 || flight_idx >= num_flights)
    return invalid_argument("flight: flight_idx is %d; it must be 0..%d (steps_in_flight)", flight_idx,
                            num_flights - 1);
  if (impl_->own_ep == nullptr)
    return failed_precondition("flight: ask the layer that create() returned, which has all flights");
  return flight_idx == 0 ? this : impl_->later_flights[static_cast<size_t>(flight_idx - 1)].get();
}

Result<std::unique_ptr<MoeLayer>> MoeLayer::create(World& world, const MoeLayerConfig& config,
                                                   const std::vector<ExpertWeights>& weights) {
  SWITCHYARD_RETURN_IF_ERROR(check_process(world, "create"));
  // The other processes would wait for one that has found an error in vain.
  std::vector<int> all_ranks(static_cast<size_t>(world.n_ranks()));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  Status checked = check_config(config);
  if (checked.ok()) checked = check_weights(config, weights, world);
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport_of(world), all_ranks, checked));
  ExpertParallelConfig ep_config = config.ep;
  // For these alone a kernel can wait for an expert's rows.
  if (config.gate_up_start == GateUpStart::kWithRows) {
    if (ep_config.protocol == Protocol::kAutomatic) ep_config.protocol = Protocol::kDirect;
    if (ep_config.row_delivery == RowDelivery::kAutomatic) ep_config.row_delivery = RowDelivery::kSender;
  }
  // It encodes the rows of bf16 that matmuls of coded weights write.
  if (is_coded(config.weights) && ep_config.combine_format != CombineFormat::kBF16 &&
      ep_config.protocol == Protocol::kAutomatic)
    ep_config.protocol = Protocol::kSlotted;
  Result<std::unique_ptr<ExpertParallel>> ep = ExpertParallel::create(world, ep_config);
  if (!ep.ok()) return ep.status();
  MoeLayerConfig chosen = config;
  chosen.ep = ep.value()->config();
  ExpertParallel* const first = ep.value().get();
  std::unique_ptr<MoeLayer> layer(new MoeLayer(std::unique_ptr<Impl>(
      new Impl{world, chosen, parts_of(chosen), std::move(ep).value(), first, {}, 0, {}})));
  Status prepared = layer->impl_->prepare(weights);
  for (int flight_idx = 1; prepared.ok() && flight_idx < chosen.ep.steps_in_flight; ++flight_idx)
    prepared = layer->impl_->add_flight(flight_idx, weights);
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport_of(world), all_ranks, prepared));
  return layer;
}

Status MoeLayer::Impl::add_flight(int flight_idx, const std::vector<ExpertWeights>& weights) {
  const Result<ExpertParallel*> flight = ep->flight(flight_idx);
  if (!flight.ok()) return flight.status();
  later_flights.emplace_back(new MoeLayer(
      std::unique_ptr<Impl>(new Impl{world, config, parts, nullptr, flight.value(), {}, 0, {}})));
  return later_flights.back()->impl_->prepare(weights);
}

Status MoeLayer::Impl::prepare(const std::vector<ExpertWeights>& weights) {
  if (encodes_outputs() && is_coded(config.weights))
    return invalid_argument(
        "combine_format: %s; the protocol must be slotted: matmuls with weights %s write bf16",
        to_string(config.ep.combine_format), to_string(config.weights));
  ranks.resize(weights.size());
  num_groups = ep->num_groups();
  for (const int rank : world.local_ranks())
    SWITCHYARD_RETURN_IF_ERROR(prepare(rank, weights[static_cast<size_t>(rank)]));
  return Status();
}

Status MoeLayer::Impl::prepare(int r, const ExpertWeights& weights) {
  RankState& state = of(r);
  state.weights = weights;
  const Result<RowBuffers> rows = ep->row_buffers(r);
  if (!rows.ok()) return rows.status();
  state.rows = rows.value();
  const Rank& rank = world.rank(r);
  const auto allocate = [&](auto& buffer, uint64_t size) {
    using Element = std::remove_pointer_t<decltype(buffer.data())>;
    Result<Buffer<Element>> allocated = rank.allocate<Element>(size);
    if (!allocated.ok()) return allocated.status();
    buffer = std::move(allocated).value();
    return Status();
  };
  const uint64_t num_groups = static_cast<uint64_t>(ep->num_groups()), max_rows = state.rows.max_rows,
                 width = static_cast<uint64_t>(config.expert_width);
  const uint64_t num_ids =
      static_cast<uint64_t>(config.ep.max_tokens_per_rank) * static_cast<uint64_t>(config.ep.top_k);
  SWITCHYARD_RETURN_IF_ERROR(allocate(state.row_offsets, num_groups + 1));
  SWITCHYARD_RETURN_IF_ERROR(allocate(state.row_counts, num_groups));
  SWITCHYARD_RETURN_IF_ERROR(allocate(state.expert_ids, num_groups));
  SWITCHYARD_RETURN_IF_ERROR(allocate(state.routed_ids, num_ids));
  SWITCHYARD_RETURN_IF_ERROR(allocate(state.routed_weights, num_ids));
  const uint64_t element_bytes = static_cast<uint64_t>(bytes_of(element_of(config)));
  SWITCHYARD_RETURN_IF_ERROR(allocate(state.activated, max_rows * width * element_bytes));
  if (is_fp8()) {
    const TransposedScaleLayout layout{ceil_div(config.expert_width, kMatmulScaleGroup), state.rows.max_rows};
    SWITCHYARD_RETURN_IF_ERROR(allocate(state.activated_scales, layout.bytes().value() / sizeof(float)));
  }
  return make_matmuls(r);
}

Status MoeLayer::Impl::make_matmuls(int r) {
  RankState& state = of(r);
  const int64_t num_tokens =
      config.expected_tokens_per_rank > 0 ? config.expected_tokens_per_rank : config.ep.max_tokens_per_rank;
  // Without an all-to-all every rank has the same tokens.
  const int64_t num_sources = config.ep.routing == Routing::kAllToAll ? ep->n_ranks() : 1;
  const int64_t expected_rows =
      ceil_div<int64_t>(num_tokens * num_sources * config.ep.top_k, config.ep.n_experts);
  GroupedMatmulShape shape{.num_groups = ep->num_groups(),
                           .element = element_of(config),
                           .row_scales = rows_of(config).row_scales,
                           .weights = config.weights,
                           .row_format = rows_of(config).row_format,
                           .inner = config.ep.hidden,
                           .columns = 2 * config.expert_width,
                           .activation = config.activation,
                           .gate_layout = config.gate_layout,
                           .output = is_fp8() ? MatmulOutput::kFP8 : MatmulOutput::kBF16,
                           .max_rows = state.rows.max_rows,
                           .expected_rows_per_group = std::max<int64_t>(1, expected_rows),
                           .prefetch_bytes = config.prefetch_bytes};
  // Matmuls wait for no peer, so those of ranks that share a device need not fit on it together; unless
  // gate_up waits for rows.
  shape.num_blocks = config.num_matmul_blocks;
  if (starts_with_rows() && ep->max_early_blocks(r) < 1)
    return invalid_argument(
        "gate_up_start: with the rows; a kernel that waits for peers needs room beside dispatch, and n_sms "
        "(%d), steps_in_flight (%d) and the ranks that share the device leave none",
        config.ep.n_sms, config.ep.steps_in_flight);
  if (starts_with_rows() && shape.num_blocks == 0)
    shape.num_blocks = std::min(device_of(world.rank(r)).num_multiprocessors(), ep->max_early_blocks(r));
  Result<std::unique_ptr<GroupedMatmul>> gate_up = GroupedMatmul::create(world.rank(r), shape);
  if (!gate_up.ok()) return gate_up.status();
  if (starts_with_rows())
    SWITCHYARD_RETURN_IF_ERROR(
        ep->row_readiness(r, static_cast<int>(gate_up.value()->num_blocks())).status());
  shape.num_blocks = config.num_matmul_blocks;
  shape.row_scales = MatmulRowScales::kFloat;  // of what gate_up writes
  shape.row_format = TokenFormatKind::kBF16;
  shape.inner = config.expert_width;
  shape.columns = config.ep.hidden;
  shape.activation = Activation::kNone;
  shape.output = encodes_outputs() ? MatmulOutput::kFP8Rows : MatmulOutput::kBF16;
  Result<std::unique_ptr<GroupedMatmul>> down = GroupedMatmul::create(world.rank(r), shape);
  if (!down.ok()) return down.status();
  state.gate_up = std::move(gate_up).value();
  state.down = std::move(down).value();
  return Status();
}

Status MoeLayer::Impl::check_rank(int rank) const {
  if (rank < 0 || rank >= static_cast<int>(ranks.size()))
    return invalid_argument("rank: %d must be 0..%zu", rank, ranks.size() - 1);
  if (of(rank).gate_up == nullptr) return invalid_argument("rank: %d lives in another process", rank);
  return Status();
}

// What the router writes, a step that is under way still reads.
Status MoeLayer::Impl::check_step(MoePart first, int rank, const MoeLayerStep& step) const {
  SWITCHYARD_RETURN_IF_ERROR(check_rows(rank));
  SWITCHYARD_RETURN_IF_ERROR(switchyard::check_step(config, step));
  return first == MoePart::kRoute ? ep->check_may_dispatch(rank) : Status();
}

// ep() can be reset with other ranks, and then has other rows.
Status MoeLayer::Impl::check_rows(int rank) const {
  Result<RowBuffers> rows = RowBuffers{};
  if (ep->n_ranks() == static_cast<int>(ranks.size()) && ep->num_groups() == num_groups)
    rows = ep->row_buffers(rank);
  if (!rows.ok()) return rows.status();
  const RowBuffers& own = of(rank).rows;
  if (rows.value().encoded_rows == own.encoded_rows && rows.value().expert_outputs == own.expert_outputs &&
      rows.value().encoded_outputs == own.encoded_outputs && rows.value().max_rows == own.max_rows &&
      rows.value().src_info == own.src_info && rows.value().expert_tensor_scales == own.expert_tensor_scales)
    return Status();
  return failed_precondition("run: ep() has been reset with other ranks; create the layer anew");
}

Status MoeLayer::Impl::route(int r, const MoeLayerStep& step, Stream stream) {
  if (!has_router(step) || step.num_tokens == 0) return Status();
  // A warp routes a token.
  constexpr uint32_t kNumThreads = 128, kWarps = kNumThreads / kWarpSize;
  const Rank& rank = world.rank(r);
  const uint32_t most_blocks = static_cast<uint32_t>(std::max(1, device_of(rank).num_multiprocessors()));
  const PrefetchedMemory prefetched = first_gate_up_weights(r);
  const uint32_t num_blocks =
      prefetched.bytes > 0 ? most_blocks
                           : std::min(ceil_div(static_cast<uint32_t>(step.num_tokens), kWarps), most_blocks);
  return rank.launch_on(stream, kernel_table(rank).topk_softmax,
                        {.num_blocks = num_blocks, .num_threads = kNumThreads},
                        {step.num_tokens, config.ep.n_experts, config.ep.top_k, step.logits,
                         of(r).routed_ids.data(), of(r).routed_weights.data(), prefetched});
}

PrefetchedMemory MoeLayer::Impl::first_gate_up_weights(int r) const {
  const int num_bits =
      is_coded(config.weights) ? code_bits_of(config.weights) : 8 * bytes_of(element_of(config));
  const int64_t num_weights = int64_t{2} * config.expert_width * config.ep.hidden * num_groups;
  return first_of(of(r).weights.gate_up, static_cast<uint64_t>(num_weights * num_bits / 8),
                  static_cast<uint64_t>(config.prefetch_bytes));
}

Status MoeLayer::Impl::dispatch(int rank, const MoeLayerStep& step, Stream stream) {
  const DispatchInput input = dispatch_input(rank, step);
  return starts_with_rows() ? ep->dispatch_async(rank, input, stream)
                            : ep->dispatch(rank, input, dispatch_output(rank), stream);
}

DispatchInput MoeLayer::Impl::dispatch_input(int rank, const MoeLayerStep& step) const {
  return {.tokens = step.tokens,
          .topk_ids = ids_of(rank, step),
          .num_tokens = step.num_tokens,
          .topk_weights = weights_of(rank, step),
          .topk_ids_64 = step.topk_ids_64,
          .token_stride_bytes = step.token_stride_bytes,
          .format = step.format,
          .scales = step.scales,
          .scales_stride_bytes = step.scales_stride_bytes,
          .input_scale = step.input_scale};
}

DispatchOutput MoeLayer::Impl::dispatch_output(int rank) const {
  const RankState& state = of(rank);
  return {.rows = state.rows.encoded_rows,
          .src_info = state.rows.src_info,
          .max_rows = state.rows.max_rows,
          .row_offsets = state.row_offsets.data(),
          .expert_ids = state.expert_ids.data(),
          .scales = state.rows.scales,
          .row_counts = state.row_counts.data()};
}

GroupedMatmulTensors MoeLayer::Impl::gate_up_tensors(int rank, const MoeLayerStep& step) const {
  const RankState& state = of(rank);
  const bool has_tensor_scale = info_of(config.ep.dispatch_format).has_tensor_scale();
  return {.rows = state.rows.encoded_rows,
          .weights = state.weights.gate_up,
          .output = state.activated.data(),
          .row_offsets = state.row_offsets.data(),
          .row_counts = state.row_counts.data(),
          .row_scales = state.rows.scales,
          .row_tensor_scale = has_tensor_scale ? config.ep.input_scale : 1.0f,
          .device_row_tensor_scale = step.input_scale,
          .row_tensor_scales = state.rows.expert_tensor_scales,
          .num_row_tensor_scales = state.rows.expert_tensor_scales != nullptr ? ep->n_local_experts() : 0,
          .weight_scales = has_weight_scales() ? state.weights.gate_up_scales : nullptr,
          .weight_tensor_scales = state.weights.gate_up_tensor_scales,
          .bias = state.weights.gate_up_bias,
          .output_scales = is_fp8() ? state.activated_scales.data() : nullptr};
}

Status MoeLayer::Impl::gate_up(int rank, const MoeLayerStep& step, Stream stream) {
  return starts_with_rows() ? gate_up_with_rows(rank, step, stream)
                            : of(rank).gate_up->run(gate_up_tensors(rank, step), stream);
}

Status MoeLayer::Impl::gate_up_with_rows(int rank, const MoeLayerStep& step, Stream stream) {
  GroupedMatmul& matmul = *of(rank).gate_up;
  const Result<RowReadiness> readiness = ep->row_readiness(rank, static_cast<int>(matmul.num_blocks()));
  if (!readiness.ok()) return readiness.status();
  GroupedMatmulTensors tensors = gate_up_tensors(rank, step);
  tensors.readiness = &readiness.value();
  // dispatch_wait, which is behind it, has not written offsets and counts yet. The offsets of dispatch_async
  // begin at the first expert, and the groups before it are in front.
  const int num_before = ep->num_groups() - ep->n_local_experts();
  tensors.row_offsets = reinterpret_cast<const uint32_t*>(readiness.value().row_offsets - num_before);
  tensors.row_counts = nullptr;
  SWITCHYARD_RETURN_IF_ERROR(matmul.run(tensors, stream));
  return is_split() ? Status() : ep->dispatch_wait(rank, dispatch_output(rank), stream);
}

Status MoeLayer::Impl::down(int rank, Stream stream) {
  RankState& state = of(rank);
  std::optional<RowCompletion> completion;
  if (combines_with_experts()) {
    const Result<RowCompletion> found = ep->row_completion(rank);
    if (!found.ok()) return found.status();
    completion = found.value();
  }
  return state.down->run({.rows = state.activated.data(),
                          .weights = state.weights.down,
                          .output = outputs_of(rank),
                          .row_offsets = state.row_offsets.data(),
                          .row_counts = state.row_counts.data(),
                          .row_scales = is_fp8() ? state.activated_scales.data() : nullptr,
                          .weight_scales = has_weight_scales() ? state.weights.down_scales : nullptr,
                          .weight_tensor_scales = state.weights.down_tensor_scales,
                          .bias = state.weights.down_bias,
                          .completion = completion ? &*completion : nullptr},
                         stream);
}

CombineInput MoeLayer::Impl::combine_input(int rank, bool follows_down) const {
  return {.expert_rows = outputs_of(rank),
          .src_info = of(rank).rows.src_info,
          .follows_experts = follows_down && combines_with_experts() && of(rank).rows.max_rows > 0};
}

CombineOutput MoeLayer::Impl::combine_output(int rank, const MoeLayerStep& step) const {
  return {.topk_ids = ids_of(rank, step),
          .topk_weights = weights_of(rank, step),
          .num_tokens = step.num_tokens,
          .destination = {.output = step.output, .output_stride_bytes = step.output_stride_bytes}};
}

// Of a whole step nothing is enqueued between its parts; without memory for rows, down is no launch.
Status MoeLayer::Impl::run_part(MoePart part, int rank, const MoeLayerStep& step, Stream stream,
                                bool is_whole_step) {
  of(rank).uses_callers_streams |= stream.is_callers();
  switch (part) {
    case MoePart::kRoute:
      return route(rank, step, stream);
    case MoePart::kDispatch:
      return dispatch(rank, step, stream);
    case MoePart::kDispatchAsync:
      return ep->dispatch_async(rank, dispatch_input(rank, step), stream);
    case MoePart::kDispatchWait:
      return ep->dispatch_wait(rank, dispatch_output(rank), stream);
    case MoePart::kGateUp:
      return gate_up(rank, step, stream);
    case MoePart::kDown:
      return down(rank, stream);
    case MoePart::kCombine:
      return ep->combine(rank, combine_input(rank, is_whole_step), combine_output(rank, step), stream);
    case MoePart::kCombineAsync:
      return ep->combine_async(rank, combine_input(rank, false), stream);
    case MoePart::kCombineWait:
      return ep->combine_wait(rank, combine_output(rank, step), stream);
    case MoePart::kAllReduce:
      return ep->all_reduce(rank, step.output, step.num_tokens, stream);
  }
  return Status();
}

Status MoeLayer::run_part(MoePart part, int rank, const MoeLayerStep& step, Stream stream) {
  if (std::find(impl_->parts.begin(), impl_->parts.end(), part) == impl_->parts.end())
    return invalid_argument("part: %s is none of this layer's, which parts_of(config()) returns",
                            to_string(part));
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank(rank));
  const RankCall call(*impl_->of(rank).call_under_way, rank, "run_part");
  SWITCHYARD_RETURN_IF_ERROR(call.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_step(part, rank, step));
  return impl_->run_part(part, rank, step, stream, false);
}

Status MoeLayer::run(int rank, const MoeLayerStep& step, Stream stream) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank(rank));
  const RankCall call(*impl_->of(rank).call_under_way, rank, "run");
  SWITCHYARD_RETURN_IF_ERROR(call.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_step(MoePart::kRoute, rank, step));
  for (const MoePart part : impl_->parts)
    SWITCHYARD_RETURN_IF_ERROR(impl_->run_part(part, rank, step, stream, true));
  return Status();
}

}  // namespace switchyard

#include "ep_harness.hpp"

#include <algorithm>

#include "reference/identity_experts.hpp"
#include "reference/placement.hpp"
#include "reference/token_format.hpp"
#include "switchyard/detail/runtime/internals.hpp"

namespace switchyard::testing_support {

namespace {

constexpr float kInputScale = 2.0f / (6 * 448);  // tokens of make_step() are at most 2
constexpr uint64_t kFirstWaitNs = 1000;          // waits are added to what is there

std::vector<float> expert_input_scales(TokenFormatKind format, int n_experts) {
  std::vector<float> scales;
  for (int i = 0; info_of(format).encodes_by_expert && i < n_experts; ++i)
    scales.push_back(kInputScale * (1 + static_cast<float>(i % 7) / 3));
  return scales;
}

}  // namespace

reference::Step make_step(const Shape& shape, uint64_t seed) {
  std::mt19937_64 random(seed);
  reference::Step step{shape.n_ranks, shape.n_experts, shape.top_k, shape.hidden, {}, {}, {}};
  step.input_scale = kInputScale;
  for (int rank = 0; rank < shape.n_ranks; ++rank) {
    const int num_tokens = shape.tokens_per_rank[rank];
    std::vector<bf16> tokens(static_cast<size_t>(num_tokens) * shape.hidden);
    for (bf16& value : tokens) value = to_bf16(static_cast<float>(random() % 2001) / 500.0f - 2.0f);
    std::vector<int32_t> ids(static_cast<size_t>(num_tokens) * shape.top_k);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % shape.n_experts);
    std::vector<float> weights(ids.size());
    for (float& weight : weights) weight = static_cast<float>(random() % 1000 + 1) / 1000.0f;
    step.tokens.push_back(std::move(tokens));
    step.topk_ids.push_back(std::move(ids));
    step.topk_weights.push_back(std::move(weights));
  }
  return step;
}

reference::Step as_run(reference::Step step, const RunOptions& options) {
  if (options.placement || options.max_experts_per_rank != 0 || step.n_experts % step.n_ranks != 0)
    reference::place_experts(
        step,
        options.placement ? *options.placement : must(ExpertPlacement::even(step.n_experts, step.n_ranks)),
        options.max_experts_per_rank, options.p2p_world_size);
  step.format = options.format;
  step.expert_input_scales = expert_input_scales(options.format, step.n_experts);
  step.combine_format = options.combine_format;
  step.reduces_at_owner = options.reduce_at_owner;
  step.has_shared_expert = options.shared_expert == SharedExpert::kFused;
  if (options.style.is_encoded) step = reference::with_encoded_tokens(std::move(step));
  step.is_shared_output_encoded = options.protocol == Protocol::kDirect;
  step.skips_all_to_all = options.routing == Routing::kSkipAllToAll;
  step.allreduce_world_size = options.allreduce_world_size;
  if (!step.skips_all_to_all) return step;
  step.tokens.assign(step.tokens.size(), step.tokens[0]);
  step.topk_ids.assign(step.topk_ids.size(), step.topk_ids[0]);
  step.topk_weights.assign(step.topk_weights.size(), step.topk_weights[0]);
  return step;
}

std::vector<bf16> scaling_expert(const void*, const reference::Step& step, int rank, int token_idx,
                                 int expert_idx) {
  const std::vector<bf16> token = step.token(rank, token_idx, expert_idx);
  std::vector<bf16> row(step.hidden);
  for (int column = 0; column < step.hidden; ++column) {
    row[column] = to_bf16(to_float(token[column]) * (1.0f + static_cast<float>(expert_idx) / 8.0f));
  }
  return row;
}

EpHarness::EpHarness(const Shape& shape, const RunOptions& options)
    : EpHarness(
          must(World::create({.target = options.target, .n_ranks = shape.n_ranks, .host = options.host})),
          shape, options) {}

EpHarness::EpHarness(std::unique_ptr<World> world, const Shape& shape, const RunOptions& options)
    : shape_(shape), options_(options), world_(std::move(world)) {
  const int max_tokens = shape.max_tokens_per_rank != 0
                             ? shape.max_tokens_per_rank
                             : *std::max_element(shape.tokens_per_rank.begin(), shape.tokens_per_rank.end());
  const bool sets_capacity =
      options.row_layout == RowLayout::kMasked && options.routing == Routing::kAllToAll;
  const int max_rows_per_expert = sets_capacity ? shape.n_ranks * max_tokens * shape.top_k : 0;
  ep_ = must(ExpertParallel::create(
      *world_, {.n_experts = shape.n_experts,
                .top_k = shape.top_k,
                .hidden = shape.hidden,
                .max_tokens_per_rank = max_tokens,
                .n_sms = options.n_sms,
                .num_threads = options.num_threads,
                .timeout_ns = options.timeout_ns,
                .dependent_launch = options.dependent_launch,
                .protocol = options.protocol,
                .capacity_factor = options.capacity_factor,
                .row_layout = options.row_layout,
                .row_alignment = options.row_alignment,
                .max_rows_per_expert = max_rows_per_expert,
                .row_delivery = options.row_delivery,
                .reduce_at_owner = options.reduce_at_owner,
                .dispatch_format = options.format,
                .input_scale = options.style.has_device_scale ? 4 * kInputScale : kInputScale,
                .expert_input_scales = expert_input_scales(options.format, shape.n_experts),
                .combine_format = options.combine_format,
                .shared_expert = options.shared_expert,
                .routing = options.routing,
                .p2p_world_size = options.p2p_world_size,
                .allreduce_world_size = options.allreduce_world_size,
                .placement = options.placement,
                .max_experts_per_rank = options.max_experts_per_rank,
                .counts_experts = options.counts_experts}));
  reference::Step sample{.top_k = shape.top_k, .hidden = shape.hidden, .format = options.format};
  const size_t num_groups = static_cast<size_t>(ep_->num_groups());
  const size_t hidden = static_cast<size_t>(shape.hidden);
  const size_t tokens = static_cast<size_t>(max_tokens);
  const size_t top_k = static_cast<size_t>(shape.top_k);
  ranks_.resize(static_cast<size_t>(shape.n_ranks));
  const auto make_waits = [&](Rank& owner) {
    return options.times_ranks
               ? must(owner.upload(std::vector<uint64_t>(static_cast<size_t>(shape.n_ranks), kFirstWaitNs)))
               : owner.view<uint64_t>(nullptr, 0);
  };
  for (const int rank : world_->local_ranks()) {
    Rank& owner = world_->rank(rank);
    const RowBuffers rows = must(ep_->row_buffers(rank));
    const size_t max_rows = rows.max_rows;
    const TokenFormatInfo format = info_of(options.format);
    ranks_[static_cast<size_t>(rank)] = {
        .tokens =
            must(reference::TokenTensors::create(owner, sample, max_tokens, options.style, shape.top_k)),
        .rows = owner.view(rows.rows, rows.rows == nullptr ? 0 : max_rows * hidden),
        .expert_rows =
            owner.view(rows.expert_outputs, rows.expert_outputs == nullptr ? 0 : max_rows * hidden),
        .encoded_rows = owner.view(reinterpret_cast<uint8_t*>(rows.encoded_rows),
                                   max_rows * format.row_bytes(shape.hidden)),
        .scales = owner.view(reinterpret_cast<uint8_t*>(rows.scales),
                             format.scale_tensor_bytes(rows.max_rows, shape.hidden).value()),
        .encoded_outputs =
            owner.view(reinterpret_cast<uint8_t*>(rows.encoded_outputs),
                       rows.encoded_outputs == nullptr ? 0 : max_rows * ep_->combine_message_bytes()),
        .src_info = owner.view(rows.src_info, 2 * max_rows),
        .expert_ids = must(owner.allocate<int32_t>(num_groups)),
        .topk_weights = must(owner.allocate<float>(tokens * top_k)),
        .row_offsets = must(owner.allocate<uint32_t>(num_groups + 1)),
        .row_counts = must(owner.allocate<uint32_t>(num_groups)),
        .row_experts = must(owner.allocate<int32_t>(is_per_rank() ? max_rows * top_k : 0)),
        .row_weights = must(owner.allocate<float>(is_per_rank() ? max_rows * top_k : 0)),
        .src_ranks = must(owner.allocate<int32_t>(options.unwritten == UnwrittenRows::kLeft ? 0 : max_rows)),
        .scale_row_offsets = format.placement == ScalePlacement::kTiled
                                 ? must(owner.allocate<uint32_t>(num_groups))
                                 : owner.view<uint32_t>(nullptr, 0),
        .dispatch_waits = make_waits(owner),
        .combine_waits = make_waits(owner),
        .group_input_scales = must(owner.allocate<float>(num_groups))};
  }
}

// Outputs are poisoned, so that what is not written shows.
void EpHarness::upload(const reference::Step& step) {
  for (const int rank : world_->local_ranks()) {
    RankBuffers& buffers = ranks_[rank];
    ASSERT_TRUE(buffers.tokens.upload(step, rank).ok());
    ASSERT_TRUE(buffers.topk_weights.upload(step.topk_weights[rank]).ok());
    ASSERT_TRUE(buffers.group_input_scales.upload(exchanged(step).group_input_scales(rank)).ok());
    ASSERT_TRUE(buffers.row_experts.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.row_weights.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.encoded_rows.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.scales.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.src_info.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.row_offsets.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.row_counts.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.src_ranks.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.scale_row_offsets.fill_bytes(0xee).ok());
    ASSERT_TRUE(buffers.expert_ids.fill_bytes(0xee).ok());
  }
}

DispatchInput EpHarness::dispatch_input(const reference::Step& step, int rank) {
  return ranks_[rank].tokens.input(step.num_tokens(rank), ranks_[rank].topk_weights.data());
}

CombineOutput EpHarness::combine_output(const reference::Step& step, int rank) const {
  const RankBuffers& buffers = ranks_[rank];
  return {buffers.tokens.topk_ids(), buffers.topk_weights.data(), step.num_tokens(rank),
          buffers.tokens.destination(options_.reduction), buffers.combine_waits.data()};
}

RankWaits EpHarness::rank_waits(int rank) const {
  const RankBuffers& buffers = ranks_[static_cast<size_t>(rank)];
  return {must(buffers.dispatch_waits.download()), must(buffers.combine_waits.download())};
}

DispatchOutput EpHarness::dispatch_output(int rank) {
  RankBuffers& buffers = ranks_[rank];
  return {buffers.encoded_rows.data(),
          buffers.src_info.data(),
          static_cast<uint32_t>(buffers.src_info.size() / 2),
          buffers.row_offsets.data(),
          buffers.expert_ids.data(),
          buffers.scales.data(),
          buffers.scale_row_offsets.data(),
          buffers.row_counts.data(),
          buffers.src_ranks.size() > 0 ? buffers.src_ranks.data() : nullptr,
          options_.unwritten,
          is_per_rank() ? buffers.row_experts.data() : nullptr,
          is_per_rank() ? buffers.row_weights.data() : nullptr,
          nullptr,
          nullptr,
          nullptr,
          buffers.dispatch_waits.data()};
}

Status EpHarness::hold_up(int rank, int late_rank) {
  if (rank != late_rank) return Status();
  const Rank& late = world_->rank(rank);
  return late.launch(kernel_table(late).stall, {.num_blocks = 1, .num_threads = 32}, {late_.late_ns});
}

Status EpHarness::launch_dispatch(int rank, const DispatchInput& input) {
  if (options_.mode == StepMode::kFused) return ep_->dispatch(rank, input, dispatch_output(rank));
  SWITCHYARD_RETURN_IF_ERROR(ep_->dispatch_async(rank, input));
  return ep_->dispatch_wait(rank, dispatch_output(rank));
}

// Of rows that are encoded, or are to be, the library's kernel makes expert outputs. Of bf16 one of the host
// does; elsewhere rows are taken for the outputs.
bool EpHarness::recodes_rows() const {
  return options_.format != TokenFormatKind::kBF16 || ranks_.front().encoded_outputs.size() > 0;
}
bool EpHarness::has_expert_kernel() const {
  return recodes_rows() || (options_.target == TargetChoice::kHost && !options_.experts_in_place);
}
Status EpHarness::launch_experts(int rank) {
  RankBuffers& buffers = ranks_[rank];
  if (!has_expert_kernel()) return Status();
  Rank& owner = world_->rank(rank);
  const uint32_t max_rows = static_cast<uint32_t>(buffers.src_info.size() / 2);
  if (!recodes_rows())
    return reference::launch_identity_experts(
        owner.stream(), {buffers.rows.data(), buffers.expert_rows.data(),
                         buffers.row_offsets.data() + ep_->num_groups(), max_rows, shape_.hidden});
  return kernel_table(owner).recode_rows(
      {.num_threads = 64}, owner.stream(),
      {.format = options_.format,
       .hidden = shape_.hidden,
       .input = {.rows = reinterpret_cast<std::byte*>(buffers.encoded_rows.data()),
                 .scales = reinterpret_cast<std::byte*>(buffers.scales.data()),
                 .max_rows = max_rows,
                 .tensor_scale = kInputScale},
       .num_groups = ep_->num_groups(),
       .row_offsets = buffers.row_offsets.data(),
       .group_tensor_scales = buffers.group_input_scales.data(),
       .output_format = buffers.encoded_outputs.size() > 0 ? options_.combine_format : CombineFormat::kBF16,
       .output = expert_outputs(rank)});
}
void* EpHarness::expert_outputs(int rank) const {
  const RankBuffers& buffers = ranks_[rank];
  if (buffers.encoded_outputs.size() > 0) return buffers.encoded_outputs.data();
  return (has_expert_kernel() ? buffers.expert_rows : buffers.rows).data();
}

Status EpHarness::launch_combine(int rank, const CombineInput& input, const CombineOutput& output) {
  if (options_.mode == StepMode::kFused) return ep_->combine(rank, input, output);
  SWITCHYARD_RETURN_IF_ERROR(ep_->combine_async(rank, input));
  return ep_->combine_wait(rank, output);
}

// Phase by phase: ranks that share a queue to a GPU must not find one rank's wait in front of another's send.
Status EpHarness::run_dispatch(const reference::Step& step) {
  for (const int rank : world_->local_ranks()) {
    SWITCHYARD_RETURN_IF_ERROR(hold_up(rank, late_.of_dispatch));
    DispatchInput input = dispatch_input(step, rank);
    if (options_.mode == StepMode::kSplit) input.rank_wait_ns = ranks_[rank].dispatch_waits.data();
    SWITCHYARD_RETURN_IF_ERROR(options_.mode == StepMode::kFused
                                   ? ep_->dispatch(rank, input, dispatch_output(rank))
                                   : ep_->dispatch_async(rank, input));
  }
  if (options_.mode == StepMode::kSplit)
    for (const int rank : world_->local_ranks())
      SWITCHYARD_RETURN_IF_ERROR(ep_->dispatch_wait(rank, dispatch_output(rank)));
  return ep_->synchronize();
}

std::string EpHarness::run_steps(const std::vector<reference::Step>& steps, bool back_to_back) {
  if (back_to_back) return run_back_to_back(steps);
  for (const reference::Step& step : steps)
    if (const std::string difference = run_and_compare(step); !difference.empty()) return difference;
  return "";
}

Status EpHarness::dispatch_some(const reference::Step& step, const std::vector<int>& ranks) {
  upload(step);
  for (const int rank : ranks)
    SWITCHYARD_RETURN_IF_ERROR(ep_->dispatch(rank, dispatch_input(step, rank), dispatch_output(rank)));
  return ep_->synchronize();
}

Status EpHarness::enqueue_dispatch(const reference::Step& step) {
  upload(step);
  for (const int rank : world_->local_ranks())
    SWITCHYARD_RETURN_IF_ERROR(ep_->dispatch(rank, dispatch_input(step, rank), dispatch_output(rank)));
  return Status();
}

Status EpHarness::enqueue_combine(const reference::Step& step) {
  for (const int rank : world_->local_ranks()) {
    RankBuffers& buffers = ranks_[rank];
    SWITCHYARD_RETURN_IF_ERROR(
        ep_->combine(rank, {buffers.rows.data(), buffers.src_info.data()}, combine_output(step, rank)));
  }
  return Status();
}

Status EpHarness::dispatch_in_two(const reference::Step& step) {
  upload(step);
  for (const int rank : world_->local_ranks())
    SWITCHYARD_RETURN_IF_ERROR(ep_->dispatch_async(rank, dispatch_input(step, rank)));
  const Status status = ep_->synchronize();
  for (const int rank : world_->local_ranks())
    SWITCHYARD_RETURN_IF_ERROR(ep_->dispatch_wait(rank, dispatch_output(rank)));
  SWITCHYARD_RETURN_IF_ERROR(enqueue_combine(step));
  const Status rest = ep_->synchronize();
  return status.ok() ? rest : status;
}

Status EpHarness::enqueue_steps(const reference::Step& step, int num_steps) {
  upload(step);
  for (int i = 0; i < num_steps; ++i)
    for (const int rank : world_->local_ranks()) {
      RankBuffers& buffers = ranks_[rank];
      SWITCHYARD_RETURN_IF_ERROR(launch_dispatch(rank, dispatch_input(step, rank)));
      SWITCHYARD_RETURN_IF_ERROR(launch_experts(rank));
      SWITCHYARD_RETURN_IF_ERROR(
          launch_combine(rank, {expert_outputs(rank), buffers.src_info.data()}, combine_output(step, rank)));
    }
  return Status();
}

Status EpHarness::run_combine(const reference::Step& step) {
  for (const int rank : world_->local_ranks()) {
    RankBuffers& buffers = ranks_[rank];
    const CombineInput input{buffers.encoded_outputs.size() > 0
                                 ? static_cast<const void*>(buffers.encoded_outputs.data())
                                 : buffers.expert_rows.data(),
                             buffers.src_info.data()};
    const CombineOutput output = combine_output(step, rank);
    SWITCHYARD_RETURN_IF_ERROR(hold_up(rank, late_.of_combine));
    SWITCHYARD_RETURN_IF_ERROR(launch_combine(rank, input, output));
    if (options_.routing == Routing::kSkipAllToAll && options_.allreduce_world_size != 1)
      SWITCHYARD_RETURN_IF_ERROR(ep_->all_reduce(rank, output.destination.output, step.num_tokens(rank)));
  }
  return ep_->synchronize();
}

// As the experts hand them over.
Status EpHarness::upload_expert_rows(int rank, const std::vector<bf16>& expert_rows) {
  RankBuffers& buffers = ranks_[rank];
  if (buffers.encoded_outputs.size() == 0) return buffers.expert_rows.upload(expert_rows);
  std::vector<uint8_t> rows;
  for (auto row = expert_rows.begin(); row != expert_rows.end(); row += shape_.hidden) {
    const reference::EncodedToken encoded =
        reference::encode_token(TokenFormatKind::kFP8, std::vector<bf16>(row, row + shape_.hidden), 1);
    rows.insert(rows.end(), encoded.codes.begin(), encoded.codes.end());
    rows.insert(rows.end(), encoded.scales.begin(), encoded.scales.end());
    rows.resize(align_up<size_t>(rows.size(), ep_->combine_message_bytes()));
  }
  return buffers.encoded_outputs.upload(rows);
}

}  // namespace switchyard::testing_support

#include "ep_harness.hpp"

#include <algorithm>

#include "reference/identity_experts.hpp"
#include "reference/per_rank.hpp"
#include "reference/placement.hpp"
#include "reference/token_format.hpp"

namespace switchyard::testing_support {

namespace {

constexpr float kInputScale = 2.0f / (6 * 448);  // tokens of make_step() are at most 2

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
          buffers.tokens.destination(options_.reduction)};
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
          is_per_rank() ? buffers.row_weights.data() : nullptr};
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
  return owner.kernels().recode_rows(
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
  for (const int rank : world_->local_ranks())
    SWITCHYARD_RETURN_IF_ERROR(options_.mode == StepMode::kFused
                                   ? ep_->dispatch(rank, dispatch_input(step, rank), dispatch_output(rank))
                                   : ep_->dispatch_async(rank, dispatch_input(step, rank)));
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

reference::DispatchResult EpHarness::download_dispatch(int rank) {
  RankBuffers& buffers = ranks_[rank];
  reference::DispatchResult result;
  result.row_offsets = must(buffers.row_offsets.download());
  result.row_counts = must(buffers.row_counts.download());
  result.expert_ids = must(buffers.expert_ids.download());
  result.unwritten = options_.unwritten;
  const size_t num_rows = std::min<size_t>(result.row_offsets.back(), buffers.src_info.size() / 2);
  result.src_info = must(buffers.src_info.download(2 * num_rows));
  if (buffers.src_ranks.size() > 0) result.src_ranks = must(buffers.src_ranks.download(num_rows));
  if (is_per_rank()) {
    result.row_experts = must(buffers.row_experts.download(num_rows * static_cast<size_t>(shape_.top_k)));
    result.row_weights = must(buffers.row_weights.download(num_rows * static_cast<size_t>(shape_.top_k)));
  }
  if (options_.format == TokenFormatKind::kBF16) {
    result.rows = must(buffers.rows.download(num_rows * shape_.hidden));
  } else {
    const size_t row_bytes = info_of(options_.format).row_bytes(shape_.hidden);
    result.encoded_rows = must(buffers.encoded_rows.download(num_rows * row_bytes));
    result.scales = must(buffers.scales.download());
    result.max_rows = buffers.src_info.size() / 2;
    result.scale_row_offsets = must(buffers.scale_row_offsets.download());
  }
  return result;
}

void EpHarness::run_and_check(const reference::Step& step) { ASSERT_EQ(run_and_compare(step), ""); }

// Checks what dispatch left and lets the experts work on it: every row by its own rule.
std::string EpHarness::compare_dispatch(const reference::Step& step_as_sent) {
  reference::Step step = exchanged(step_as_sent);
  step.row_alignment = static_cast<uint32_t>(options_.row_alignment);
  step.min_group_rows = static_cast<uint32_t>(ep_->config().max_rows_per_expert);
  for (const int rank : world_->local_ranks()) {
    const reference::DispatchResult result = download_dispatch(rank);
    if (const std::string difference = reference::check_dispatch(step, rank, result); !difference.empty())
      return difference;
    if (const std::string difference =
            is_per_rank() ? reference::check_choices(step_as_sent, rank, result) : "";
        !difference.empty())
      return difference;
    const auto origins = reference::dispatched_rows(step, rank);
    std::vector<bf16> expert_rows(static_cast<size_t>(result.row_offsets.back()) * step.hidden);
    for (int group = 0; group < step.num_groups(); ++group)
      for (size_t i = 0; i < origins[group].size(); ++i) {
        const size_t row = result.row_offsets[group] + i;
        const std::vector<bf16> output = expert_row(
            step_as_sent, rank, group, {origins[group][i].src_rank, result.src_info[2 * row], /*k=*/0});
        std::copy(output.begin(), output.end(),
                  expert_rows.begin() + static_cast<ptrdiff_t>(row) * step.hidden);
      }
    if (const Status status = upload_expert_rows(rank, expert_rows); !status.ok()) return status.to_string();
  }
  return "";
}

std::vector<bf16> EpHarness::expert_row(const reference::Step& step, int rank, int group,
                                        const reference::RowOrigin& origin) const {
  const int first_group = step.has_shared_expert ? 1 : 0;
  if (is_per_rank()) {
    const reference::RankSums sums{step, &scaling_expert, nullptr};
    return reference::rank_sum(&sums, step, origin.src_rank, origin.src_token,
                               group < first_group ? step.n_ranks : rank);
  }
  const int expert_idx = group < first_group ? step.n_experts : step.expert_at(rank, group - first_group);
  return scaling_expert(nullptr, step, origin.src_rank, origin.src_token, expert_idx);
}

reference::Step EpHarness::exchanged(const reference::Step& step) const {
  return is_per_rank() ? reference::per_rank(step) : step;
}

std::vector<bf16> EpHarness::expected_output(const reference::Step& step, int rank,
                                             reference::ExpertFunction expert) const {
  const reference::RankSums sums{step, expert, nullptr};
  // Per rank, identity experts return the row once, whoever they are.
  if (is_per_rank() && expert == &scaling_expert)
    return reference::combine_weighted(exchanged(step), rank, &reference::rank_sum, &sums);
  return reference::combine_weighted(exchanged(step), rank, expert, nullptr);
}

std::string EpHarness::compare_output(int rank, const std::vector<bf16>& expected,
                                      const reference::TokenTensors& tokens) {
  const std::vector<bf16> output =
      must(tokens.output(static_cast<int>(expected.size() / static_cast<size_t>(shape_.hidden))));
  for (size_t i = 0; i < expected.size(); ++i)
    if (output[i].bits != expected[i].bits)
      return "rank " + std::to_string(rank) + ", value " + std::to_string(i) + " of the output is " +
             std::to_string(to_float(output[i])) + " instead of " + std::to_string(to_float(expected[i]));
  for (const bf16 value : output) last_output_.push_back(value.bits);
  return "";
}

bool EpHarness::outputs_are_untouched() {
  for (const RankBuffers& buffers : ranks_)
    for (const bf16 value : must(buffers.tokens.output(ep_->config().max_tokens_per_rank)))
      if (value.bits != 0xeeee) return false;
  return true;
}

std::string EpHarness::dispatch_and_compare(const reference::Step& step) {
  upload(step);
  if (const Status dispatched = run_dispatch(step); !dispatched.ok()) return dispatched.to_string();
  return compare_dispatch(step);
}

std::string EpHarness::run_and_compare(const reference::Step& step) {
  if (const std::string difference = dispatch_and_compare(step); !difference.empty()) return difference;
  if (const Status combined = run_combine(step); !combined.ok()) return combined.to_string();
  last_output_.clear();
  for (const int rank : world_->local_ranks()) {
    const bool weighted = options_.reduction == CombineReduction::kWeighted;
    const std::vector<bf16> expected =
        weighted ? expected_output(step, rank, &scaling_expert)
                 : reference::combine_unreduced(step, rank, &scaling_expert, nullptr);
    if (const std::string difference = compare_output(rank, expected, ranks_[rank].tokens);
        !difference.empty())
      return difference;
  }
  return "";
}

std::string EpHarness::run_with_early_experts(const reference::Step& step,
                                              const std::function<Status(int rank)>& launch_experts) {
  upload(step);
  Status status;
  const auto for_each_rank = [&](const auto& call) {
    for (const int rank : world_->local_ranks())
      if (status.ok()) status = call(rank);
  };
  for_each_rank([&](int rank) { return ep_->dispatch_async(rank, dispatch_input(step, rank)); });
  for_each_rank(launch_experts);
  for_each_rank([&](int rank) { return ep_->dispatch_wait(rank, dispatch_output(rank)); });
  for_each_rank([&](int rank) {
    RankBuffers& buffers = ranks_[rank];
    return ep_->combine(rank, {buffers.expert_rows.data(), buffers.src_info.data()},
                        combine_output(step, rank));
  });
  if (status.ok()) status = ep_->synchronize();
  if (!status.ok()) return status.to_string();
  for (const int rank : world_->local_ranks()) {
    const std::vector<bf16> expected =
        reference::combine_weighted(step, rank, &reference::identity_expert, nullptr);
    if (const std::string difference = compare_output(rank, expected, ranks_[rank].tokens);
        !difference.empty())
      return difference;
  }
  return "";
}

std::string EpHarness::run_back_to_back(const std::vector<reference::Step>& steps) {
  struct StepBuffers {
    reference::TokenTensors tokens;
    Buffer<float> topk_weights;
  };
  for (const int rank : world_->local_ranks())
    if (const Status status =
            ranks_[rank].group_input_scales.upload(exchanged(steps.front()).group_input_scales(rank));
        !status.ok())
      return status.to_string();
  std::vector<std::vector<StepBuffers>> buffers(steps.size());  // [step][rank]
  for (size_t i = 0; i < steps.size(); ++i) {
    buffers[i].resize(static_cast<size_t>(shape_.n_ranks));
    for (const int rank : world_->local_ranks()) {
      Rank& owner = world_->rank(rank);
      StepBuffers& step = buffers[i][static_cast<size_t>(rank)] = {
          .tokens = must(
              reference::TokenTensors::create(owner, steps[i], steps[i].num_tokens(rank), options_.style)),
          .topk_weights = must(owner.upload(steps[i].topk_weights[rank]))};
      if (const Status status = step.tokens.upload(steps[i], rank); !status.ok()) return status.to_string();
    }
  }
  Status status;
  for (size_t i = 0; i < steps.size(); ++i)
    for (const int rank : world_->local_ranks()) {
      if (!status.ok()) break;
      const StepBuffers& step = buffers[i][rank];
      const int num_tokens = steps[i].num_tokens(rank);
      status = launch_dispatch(rank, step.tokens.input(num_tokens, step.topk_weights.data()));
      if (status.ok()) status = launch_experts(rank);
      if (status.ok())
        status = launch_combine(
            rank, {expert_outputs(rank), ranks_[rank].src_info.data()},
            {step.tokens.topk_ids(), step.topk_weights.data(), num_tokens, step.tokens.destination()});
      if (status.ok() && options_.routing == Routing::kSkipAllToAll)
        status = ep_->all_reduce(rank, step.tokens.destination().output, num_tokens);
    }
  if (status.ok()) status = ep_->synchronize();
  if (!status.ok()) return status.to_string();
  for (size_t i = 0; i < steps.size(); ++i)
    for (const int rank : world_->local_ranks()) {
      const std::vector<bf16> expected = expected_output(steps[i], rank, &reference::identity_expert);
      if (const std::string difference = compare_output(rank, expected, buffers[i][rank].tokens);
          !difference.empty())
        return "step " + std::to_string(i) + ": " + difference;
    }
  return "";
}

}  // namespace switchyard::testing_support

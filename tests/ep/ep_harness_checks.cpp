// What an EpHarness reads back after a step, and how that compares with the reference.
#include <algorithm>

#include "ep_harness.hpp"
#include "reference/identity_experts.hpp"
#include "reference/per_rank.hpp"

namespace switchyard::testing_support {

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
  for (const RankBuffers& buffers : ranks_) {
    for (const bf16 value : must(buffers.tokens.output(ep_->config().max_tokens_per_rank)))
      if (value.bits != 0xeeee) return false;
    for (const int32_t src_rank : must(buffers.src_ranks.download()))
      if (static_cast<uint32_t>(src_rank) != 0xeeeeeeee) return false;
  }
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

// Rows per rank: the launches in front of a dispatch and behind it, which turn experts into ranks and back,
// and the count of both.
#include <algorithm>

#include "call_checks.hpp"
#include "expert_parallel_impl.hpp"

namespace switchyard {

KeptChoices ExpertParallel::Impl::kept_choices(int rank) const {
  const ExchangeMemory& memory = state(rank).memory;
  if (!is_per_rank()) return {};
  return {.seats = memory.at<int32_t>(layout.kept_seats),
          .weights = memory.at<float>(layout.kept_weights),
          .rank_ids = memory.at<int32_t>(layout.rank_ids),
          .rank_weights = memory.at<float>(layout.rank_weights)};
}

Status ExpertParallel::Impl::check_choices(const char* call, const DispatchInput& input) const {
  if (!(is_per_rank() || config.reduce_at_owner) || input.num_tokens == 0) return Status();
  return check_pointer(call, "topk_weights", input.topk_weights);
}

Status ExpertParallel::Impl::check_choices(const char* call, const DispatchOutput& output) const {
  for (const auto& [name, pointer] :
       {std::pair<const char*, const void*>("row_experts", output.row_experts),
        std::pair<const char*, const void*>("row_weights", output.row_weights),
        std::pair<const char*, const void*>("expert_totals", output.expert_totals)}) {
    if (pointer == nullptr) continue;
    if (!is_per_rank())
      return invalid_argument("%s: %s must be null: row_layout is %s, and not per-rank", call, name,
                              to_string(config.row_layout));
    SWITCHYARD_RETURN_IF_ERROR(check_pointer(call, name, pointer));
  }
  return Status();
}

Status ExpertParallel::Impl::choose_ranks(int rank, const DispatchInput& input, Stream stream) const {
  if (!is_per_rank()) return Status();
  const DispatchStep& step = state(rank).dispatch_call.step;
  const Rank& here = member(rank);
  return here.launch_on(stream, kernel_table(here).choose_ranks, launch_shape(),
                        ChooseRanksParams{.shape = shape_of_rank(rank),
                                          .my_rank = step.my_rank,
                                          .num_tokens = input.num_tokens,
                                          .topk_ids = ids_of(rank, input),
                                          .topk_weights = input.topk_weights,
                                          .kept = kept_choices(rank),
                                          .copy_stride = kept_choice_bytes() / sizeof(int32_t),
                                          .ep_counters = step.ep_counters,
                                          .wait_context = step.wait_context});
}

Status ExpertParallel::Impl::fetch_choices(int rank, const DispatchOutput& output, Stream stream) const {
  if (output.row_experts == nullptr && output.row_weights == nullptr && output.expert_totals == nullptr)
    return Status();
  const DispatchStep& step = state(rank).dispatch_call.step;
  // The kernel counts rows from the first set on; what it writes begins with those of this one.
  const int64_t num_in_front = config.row_sets > 1 ? group_in_front(rank, 0).num_tokens : 0;
  const auto in_set = [&](auto* choices) {
    return choices == nullptr ? nullptr : choices - num_in_front * config.top_k;
  };
  FetchChoicesParams params{.my_rank = step.my_rank,
                            .n_ranks = step.shape.n_ranks,
                            .n_local_experts = n_local_experts(),
                            .top_k = config.top_k,
                            .first_row = output.row_offsets + (num_groups() - num_expert_groups()),
                            .step_cells = step.recv_counts.mine,
                            .src_info = state(rank).memory.row_buffers().src_info,
                            .seats = {},
                            .weights = {},
                            .copy_stride = kept_choice_bytes() / sizeof(int32_t),
                            .row_experts = in_set(output.row_experts),
                            .row_weights = in_set(output.row_weights),
                            .expert_totals = output.expert_totals,
                            .ep_counters = step.ep_counters,
                            .wait_context = step.wait_context};
  const std::vector<int> peers = peers_of(rank);
  for (size_t i = 0; i < peers.size(); ++i) {
    std::byte* arena = exchange_of(peers[i]);
    params.seats.of_rank[i] = reinterpret_cast<int32_t*>(arena + layout.kept_seats.offset);
    params.weights.of_rank[i] = reinterpret_cast<float*>(arena + layout.kept_weights.offset);
  }
  const Rank& here = member(rank);
  return here.launch_on(stream, kernel_table(here).fetch_choices, launch_shape(), params);
}

Status ExpertParallel::count_routing(World& world, int rank, const RoutingInput& input,
                                     const RoutingCounts& counts, Stream stream) {
  constexpr char kCall[] = "count_routing";
  const std::vector<int> local = world.local_ranks();
  if (std::find(local.begin(), local.end(), rank) == local.end())
    return invalid_argument("%s: rank is %d; it must be a rank of this process", kCall, rank);
  if (input.num_tokens < 0 || input.num_tokens > kMaxTokensPerRank)
    return invalid_argument("%s: num_tokens is %d; it must be 0..%d", kCall, input.num_tokens,
                            kMaxTokensPerRank);
  if (input.top_k < 1 || input.top_k > kMaxTopK)
    return invalid_argument("%s: top_k is %d; it must be 1..%d", kCall, input.top_k, kMaxTopK);
  if (input.n_experts < 1 || input.n_experts > kMaxExperts || input.n_experts % world.n_ranks() != 0)
    return invalid_argument(
        "%s: n_experts is %d; it must be 1..%d and a multiple of the number of ranks (%d)", kCall,
        input.n_experts, kMaxExperts, world.n_ranks());
  if (input.num_tokens == 0) return Status();
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(kCall, "topk_ids", input.topk_ids));
  for (const auto& [name, pointer] :
       {std::pair<const char*, const void*>("tokens_of_rank", counts.tokens_of_rank),
        std::pair<const char*, const void*>("choices_of_expert", counts.choices_of_expert),
        std::pair<const char*, const void*>("is_token_in_rank", counts.is_token_in_rank)})
    if (pointer == nullptr) return invalid_argument("%s: %s is null", kCall, name);
  const Rank& here = world.rank(rank);
  constexpr uint32_t kNumThreads = 512, kTokensPerBlock = 256;
  const LaunchShape shape{
      .num_blocks = std::min(ceil_div(static_cast<uint32_t>(input.num_tokens), kTokensPerBlock),
                             static_cast<uint32_t>(std::max(1, device_of(here).num_multiprocessors()))),
      .num_threads = kNumThreads};
  return here.launch_on(stream, kernel_table(here).count_routing, shape,
                        CountRoutingParams{.ids = input.topk_ids,
                                           .num_tokens = input.num_tokens,
                                           .top_k = input.top_k,
                                           .n_experts = input.n_experts,
                                           .n_ranks = world.n_ranks(),
                                           .tokens_of_rank = counts.tokens_of_rank,
                                           .choices_of_expert = counts.choices_of_expert,
                                           .is_token_in_rank = counts.is_token_in_rank});
}

}  // namespace switchyard

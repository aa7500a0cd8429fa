// switchyard_ep_config as the library has it.
#include "handles.hpp"

namespace switchyard::c_api {
namespace {

Status read_numbers(const switchyard_ep_config& from, ExpertParallelConfig& config) {
  config.n_experts = from.n_experts;
  config.top_k = from.top_k;
  config.hidden = from.hidden;
  config.max_tokens_per_rank = from.max_tokens_per_rank;
  config.n_sms = from.n_sms;
  config.num_threads = from.num_threads;
  config.timeout_ns = or_default(from.timeout_ns, config.timeout_ns);
  config.first_timeout_ns = from.first_timeout_ns;
  config.dependent_launch = from.dependent_launch != 0;
  config.capacity_factor = from.capacity_factor;
  config.row_alignment = or_default(from.row_alignment, 1);
  config.max_rows_per_expert = from.max_rows_per_expert;
  config.input_scale = or_default(from.input_scale, 1.0f);
  config.p2p_world_size = from.p2p_world_size;
  config.allreduce_world_size =
      from.allreduce_world_size == SWITCHYARD_ALL_RANKS ? 0 : or_default(from.allreduce_world_size, 1);
  config.steps_in_flight = or_default(from.steps_in_flight, 1);
  config.row_sets = or_default(from.row_sets, 1);
  config.reduce_at_owner = from.reduce_at_owner != 0;
  config.max_experts_per_rank = from.max_experts_per_rank;
  config.counts_experts = from.counts_experts != 0;
  config.shared_expert = from.has_shared_expert != 0 ? SharedExpert::kFused : SharedExpert::kNone;
  config.routing = from.skips_all_to_all != 0 ? Routing::kSkipAllToAll : Routing::kAllToAll;
  if (from.num_expert_input_scales < 0)
    return invalid_argument("num_expert_input_scales is %d; it must not be negative",
                            from.num_expert_input_scales);
  if (from.num_expert_input_scales > 0)
    SWITCHYARD_RETURN_IF_ERROR(check_pointer("expert_input_scales", from.expert_input_scales));
  config.expert_input_scales.assign(from.expert_input_scales,
                                    from.expert_input_scales + from.num_expert_input_scales);
  return Status();
}

}  // namespace

Result<ExpertPlacement> read_placement(int n_experts, int n_ranks, const int32_t* experts,
                                       const int32_t* num_experts_of_rank) {
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("placement", experts));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer("num_experts_of_rank", num_experts_of_rank));
  std::vector<std::vector<int>> lists;
  for (int rank = 0; rank < n_ranks; ++rank) {
    const int32_t count = num_experts_of_rank[rank];
    if (count < 0 || count > n_experts)
      return invalid_argument("num_experts_of_rank[%d] is %d; it must be 0..%d", rank, count, n_experts);
    lists.emplace_back(experts, experts + count);
    experts += count;
  }
  return ExpertPlacement::from_lists(n_experts, std::move(lists));
}

Status read_config(const char* name, const switchyard_ep_config* given, int n_ranks,
                   ExpertParallelConfig& config) {
  switchyard_ep_config from;
  SWITCHYARD_RETURN_IF_ERROR(read(name, given, from));
  SWITCHYARD_RETURN_IF_ERROR(check_reserved("config->reserved_end", from.reserved_end));
  SWITCHYARD_RETURN_IF_ERROR(read_numbers(from, config));
  SWITCHYARD_RETURN_IF_ERROR(read_enum("protocol", from.protocol, Protocol::kDirect, config.protocol));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("row_layout", from.row_layout, RowLayout::kPerRank, config.row_layout));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("combine_format", from.combine_format, CombineFormat::kFP8, config.combine_format));
  SWITCHYARD_RETURN_IF_ERROR(
      read_enum("row_delivery", from.row_delivery, RowDelivery::kReceiver, config.row_delivery));
  SWITCHYARD_RETURN_IF_ERROR(read_format("dispatch_format", from.dispatch_format, config.dispatch_format));
  if (from.placement == nullptr && from.num_experts_of_rank == nullptr) return Status();
  Result<ExpertPlacement> placement =
      read_placement(config.n_experts, n_ranks, from.placement, from.num_experts_of_rank);
  if (placement.ok()) config.placement = std::move(placement).value();
  return placement.status();
}

}  // namespace switchyard::c_api

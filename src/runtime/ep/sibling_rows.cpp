// Rows that came once to a rank which owns several of their token's experts: the launch behind a dispatch
// that lays them out.
#include "expert_parallel_impl.hpp"

namespace switchyard {

LinkedRows ExpertParallel::Impl::linked_rows(int rank) const {
  const DispatchStep& step = state(rank).dispatch_call.step;
  return {.shape = step.shape,
          .my_rank = step.my_rank,
          .first_group = num_groups() - num_expert_groups(),
          .step_cells = step.recv_counts.mine,
          .links = reinterpret_cast<const uint32_t*>(step.recv_bufs.mine + layout.row_links_offset),
          .ep_counters = step.ep_counters,
          .wait_context = step.wait_context};
}

Status ExpertParallel::Impl::fill_siblings(int rank, Stream stream) const {
  if (config.row_delivery != RowDelivery::kReceiver) return Status();
  const FormatLayout format = format_layout(config);
  std::byte* memory = state(rank).dispatch_call.step.recv_bufs.mine;
  const Rank& here = member(rank);
  return here.launch_on(
      stream, kernel_table(here).fill_siblings, launch_shape(),
      FillSiblingsParams{.linked = linked_rows(rank),
                         .rows = memory,
                         .row_bytes = format.row_bytes,
                         .scales = memory + layout.scales_offset,
                         .scales_bytes = format.interleaves_rows ? 0 : format.scales_bytes});
}

Status ExpertParallel::Impl::reduce_siblings(int rank, const void* expert_rows, Stream stream) const {
  if (!config.reduce_at_owner) return Status();
  const std::byte* memory = state(rank).dispatch_call.step.recv_bufs.mine;
  const Rank& here = member(rank);
  const auto launch = config.combine_format == CombineFormat::kFP8 ? kernel_table(here).reduce_fp8_siblings
                                                                   : kernel_table(here).reduce_siblings;
  return here.launch_on(stream, launch, launch_shape(),
                        ReduceSiblingsParams{.linked = linked_rows(rank),
                                             .expert_rows = const_cast<void*>(expert_rows),
                                             .row_weights = reinterpret_cast<const float*>(
                                                 memory + layout.row_weights_offset)});
}

}  // namespace switchyard

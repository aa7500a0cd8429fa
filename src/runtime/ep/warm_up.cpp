// What an engine does before its first step.
#include "expert_parallel_impl.hpp"

namespace switchyard {
namespace {

// What a dispatch without tokens writes to.
struct WarmUpOutput {
  Buffer<uint32_t> row_offsets;
  Buffer<int32_t> expert_ids;
  RowBuffers rows = {};
};

}  // namespace

Status ExpertParallel::warm_up() {
  const std::vector<int> ranks = impl_->local_ranks();
  std::vector<WarmUpOutput> outputs;
  for (const int rank : ranks) {
    SWITCHYARD_RETURN_IF_ERROR(impl_->check_call(rank, "warm_up", Impl::Step::kIdle));
    const Rank& here = impl_->member(rank);
    const DeviceScope active = device_of(here).activate();
    SWITCHYARD_RETURN_IF_ERROR(active.status());
    SWITCHYARD_RETURN_IF_ERROR(kernel_table(here).load());
    SWITCHYARD_RETURN_IF_ERROR(impl_->max_resident_blocks().status());  // which loads those of the protocol
    const size_t num_groups = static_cast<size_t>(this->num_groups());
    Result<Buffer<uint32_t>> row_offsets = here.allocate<uint32_t>(num_groups + 1);
    if (!row_offsets.ok()) return row_offsets.status();
    Result<Buffer<int32_t>> expert_ids = here.allocate<int32_t>(num_groups);
    if (!expert_ids.ok()) return expert_ids.status();
    outputs.push_back({std::move(row_offsets).value(), std::move(expert_ids).value()});
    // The groups of masked rows take up their memory whether rows come or not.
    if (config().row_layout != RowLayout::kMasked) continue;
    const Result<RowBuffers> rows = row_buffers(rank);
    if (!rows.ok()) return rows.status();
    outputs.back().rows = rows.value();
  }
  // All ranks of this process begin a part before any of them begins the next.
  for (size_t i = 0; i < ranks.size(); ++i)
    SWITCHYARD_RETURN_IF_ERROR(dispatch(ranks[i], {},
                                        {.rows = outputs[i].rows.encoded_rows,
                                         .src_info = outputs[i].rows.src_info,
                                         .max_rows = outputs[i].rows.max_rows,
                                         .row_offsets = outputs[i].row_offsets.data(),
                                         .expert_ids = outputs[i].expert_ids.data(),
                                         .scales = outputs[i].rows.scales}));
  for (const int rank : ranks) SWITCHYARD_RETURN_IF_ERROR(combine(rank, {}, {}));
  const bool reduces = config().routing == Routing::kSkipAllToAll &&
                       (n_ranks() == 1 || num_reducing_ranks(config(), n_ranks()) > 1);
  for (const int rank : ranks)
    if (reduces) SWITCHYARD_RETURN_IF_ERROR(all_reduce(rank, nullptr, 0));
  SWITCHYARD_RETURN_IF_ERROR(synchronize());
  for (const auto& flight : impl_->later_flights) SWITCHYARD_RETURN_IF_ERROR(flight->warm_up());
  return Status();
}

}  // namespace switchyard

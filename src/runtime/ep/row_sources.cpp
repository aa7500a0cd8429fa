// Which rank each row of a dispatch came from, derived from what its kernels left behind.
#include "expert_parallel_impl.hpp"
#include "switchyard/detail/ep/direct/layout.hpp"
#include "switchyard/detail/sync/counters.hpp"

namespace switchyard {
namespace {

// The rank that asks, and the ranks whose rows it has: all, or itself if the all-to-all is skipped.
struct Receiver {
  int rank;
  int n_ranks;
  int num_expert_groups;
  EpShape shape;

  bool is_alone() const { return shape.n_ranks == 1; }
};

// dispatch_wait leaves for combine_async which rows came from which rank.
std::vector<uint32_t> slotted_offsets(const Receiver& receiver, std::vector<int32_t>& counters) {
  const EPLocalSyncCounters<> view(counters.data(), receiver.shape.n_experts);
  std::vector<uint32_t> offsets;
  for (int local = 0; local < receiver.num_expert_groups; ++local)
    for (int src_rank = 0; src_rank < receiver.n_ranks; ++src_rank) {
      const int pair_idx = receiver.is_alone() ? local : local * receiver.n_ranks + src_rank;
      const int32_t row_end = *view.row_end(pair_idx);
      const bool is_behind_all = receiver.is_alone() && src_rank > receiver.rank;
      offsets.push_back(static_cast<uint32_t>(is_behind_all ? row_end : row_end - *view.row_count(pair_idx)));
    }
  return offsets;
}

// Every rank has told this one how many rows it sent to each expert here: [local expert][source rank]. It
// tells so again only when this rank has begun its next dispatch.
std::vector<uint32_t> direct_offsets(const Receiver& receiver, std::vector<int32_t>& counters,
                                     int first_group, const std::vector<uint64_t>& cells) {
  const DirectCounters view(EPLocalSyncCounters<>(counters.data(), receiver.shape.n_experts));
  std::vector<uint32_t> offsets;
  for (int local = 0; local < receiver.num_expert_groups; ++local) {
    uint32_t row = static_cast<uint32_t>(*view.row_offset(first_group + local));
    for (int src_rank = 0; src_rank < receiver.n_ranks; ++src_rank) {
      offsets.push_back(row);
      if (!receiver.is_alone())
        row += StepCell::unpack(cells[static_cast<size_t>(local * receiver.n_ranks + src_rank)]).value;
      else if (src_rank == receiver.rank)
        row = static_cast<uint32_t>(*view.row_offset(first_group + local + 1));
    }
  }
  return offsets;
}

}  // namespace

Result<std::vector<uint32_t>> ExpertParallel::source_row_offsets(int rank) const {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("source_row_offsets", rank));
  SWITCHYARD_RETURN_IF_ERROR(impl_->wait_for_calls(rank));
  const Receiver receiver{rank, n_ranks(), impl_->num_expert_groups(), impl_->exchange_shape_of(rank)};
  const auto download = [&](auto& values, const void* from) {
    return device_of(impl_->member(rank))
        .copy(values.data(), from, values.size() * sizeof(values[0]), impl_->member(rank).stream());
  };
  const ExchangeLayout& layout = impl_->layout;
  std::vector<int32_t> counters(layout.counters.bytes / sizeof(int32_t));
  SWITCHYARD_RETURN_IF_ERROR(download(counters, impl_->exchange_of(rank) + layout.counters.offset));
  if (!impl_->is_direct()) return slotted_offsets(receiver, counters);

  const int first_group = num_groups() - receiver.num_expert_groups;
  std::vector<uint64_t> cells(layout.dispatch_counts.bytes / sizeof(uint64_t));
  SWITCHYARD_RETURN_IF_ERROR(download(cells, impl_->exchange_of(rank) + layout.dispatch_counts.offset));
  return direct_offsets(receiver, counters, first_group, cells);
}

}  // namespace switchyard

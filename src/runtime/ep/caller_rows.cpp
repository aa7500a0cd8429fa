// Expert rows of the direct protocol that lie in the caller's memory: they are copied to where peers read, or
// peers read them where they are.
#include <algorithm>

#include "call_checks.hpp"
#include "expert_parallel_impl.hpp"

namespace switchyard {

// Behind the fault records of a rank.
LentMemory* ExpertParallel::Impl::lent_memory_of(int world_rank) const {
  std::byte* memory = arenas->host_visible_of_rank(world_rank);
  return memory == nullptr ? nullptr : reinterpret_cast<LentMemory*>(memory + kLentMemoryOffset);
}

// Kernels with a wire have no way to such rows, and processes may not see each other's host memory. The
// driver may wait for the GPU where memory is exported, opened or closed: a process with several of the ranks
// does none of it, since what runs there may wait for a rank whose calls the same thread has yet to make.
std::unique_ptr<LentRows> ExpertParallel::Impl::make_lender(int rank) const {
  if (!is_direct() || has_wire || world.n_ranks() > kMaxDirectRanks) return nullptr;
  if (is_one_of_many() && world.local_ranks().size() > 1) return nullptr;
  const int own_rank = members[static_cast<size_t>(rank)];
  std::vector<LentMemory*> memory_of_rank;
  for (int world_rank = 0; world_rank < world.n_ranks(); ++world_rank) {
    const bool is_here = world.is_local(world_rank) && world_rank != own_rank;
    const bool is_member =
        std::find(arena_members.begin(), arena_members.end(), world_rank) != arena_members.end();
    memory_of_rank.push_back(is_here || !is_member ? nullptr : lent_memory_of(world_rank));
    if (!is_here && is_member && memory_of_rank.back() == nullptr) return nullptr;
  }
  bool shares_process_with_other_devices = false;
  for (const int local_rank : world.local_ranks())
    shares_process_with_other_devices |=
        device_of(world.rank(local_rank)).uuid() != device_of(member(rank)).uuid();
  return std::make_unique<LentRows>(
      Internals::make_memory_opener(world, member(rank)),
      Lender{own_rank, config.steps_in_flight, shares_process_with_other_devices}, std::move(memory_of_rank));
}

// Peers find rows from the first set on, and add an offset that is not negative.
bool ExpertParallel::Impl::has_in_arena(int rank, const void* rows) const {
  const auto* memory = state(rank).memory.at<std::byte>(layout.row_memory);
  const auto* begin = static_cast<const std::byte*>(rows);
  return begin >= memory + bytes_in_front(rank) && begin < memory + layout.row_memory.bytes;
}

Status ExpertParallel::Impl::check_lending(const char* call) const {
  if (!is_direct() || layout.has_encoded_outputs)
    return failed_precondition("%s: protocol is %s and combine_format %s; they must be direct and bf16", call,
                               to_string(config.protocol), to_string(config.combine_format));
  return Status();
}

Result<bool> ExpertParallel::offer_expert_rows(int rank, const void* rows, Stream stream) {
  constexpr char kCall[] = "offer_expert_rows";
  const RankCall begun = impl_->begin_call(rank, kCall, Impl::Step::kDispatched);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_lending(kCall));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(kCall, "rows", rows));
  Impl::RankState& own = impl_->state(rank);
  own.lent_rows = nullptr;
  own.found_rows = {};
  // Sums of siblings are written to where rows were, which are the caller's.
  if (config().reduce_at_owner || impl_->has_wire) return false;
  if (impl_->has_in_arena(rank, rows)) {
    own.lent_rows = rows;
    return true;
  }
  const std::unique_ptr<LentRows>& lender = impl_->whole().state(rank).lender;
  if (lender == nullptr) return false;
  const Result<bool> is_recorded = impl_->is_recorded(rank, stream);
  if (!is_recorded.ok()) return is_recorded.status();
  std::vector<int> readers;
  for (const int peer : impl_->peers_of(rank)) readers.push_back(impl_->members[static_cast<size_t>(peer)]);
  std::function<Status()> wait;  // for nothing in a recording
  if (!is_recorded.value()) wait = [&] { return impl_->wait_for_calls(rank); };
  std::optional<LentRows::Found> found = lender->find(rows, readers, impl_->flight_idx, wait);
  if (!found) return false;
  own.lent_rows = rows;
  own.found_rows = std::move(*found);
  return true;
}

// Counts a dispatch, unless it is recorded: nobody knows when that one runs.
void ExpertParallel::Impl::note_dispatch(int rank, Stream stream) const {
  LentRows* lender = whole().state(rank).lender.get();
  if (lender == nullptr || !lender->has_offered()) return;
  const Result<bool> recorded = is_recorded(rank, stream);
  if (recorded.ok() && !recorded.value()) lender->begin_step(flight_idx);
}

// What others offer is opened, and a graph that is recorded now keeps what it will read of this rank's.
Status ExpertParallel::Impl::exchange_offers(int rank, const CombineInput& input, Stream stream) const {
  LentRows* lender = whole().state(rank).lender.get();
  if (lender == nullptr) return Status();
  lender->answer();
  const int slot = state(rank).found_rows.slot;
  if (!is_lent(rank, input.expert_rows) || slot == LentRows::kNoSlot) return Status();
  const Result<bool> recorded = is_recorded(rank, stream);
  if (recorded.ok() && recorded.value()) lender->keep(slot);
  return recorded.status();
}

Status ExpertParallel::store_expert_rows(int rank, const ExpertRows& rows, Stream stream) {
  constexpr char kCall[] = "store_expert_rows";
  const RankCall begun = impl_->begin_call(rank, kCall, Impl::Step::kDispatched);
  SWITCHYARD_RETURN_IF_ERROR(begun.status());
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_lending(kCall));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(kCall, "rows", rows.rows));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(kCall, "row_offsets", rows.row_offsets));
  SWITCHYARD_RETURN_IF_ERROR(check_pointer(kCall, "row_counts", rows.row_counts));
  const Rank& here = impl_->member(rank);
  LaunchShape shape = impl_->launch_shape();
  shape.programmatic_dependent = false;
  (void)impl_->begin_call(rank, stream);  // it waits for nobody
  // With several sets, the caller has the rows of one.
  const int num_in_front = config().row_sets > 1 ? 1 : 0;
  const uint32_t rows_per_group = num_in_front > 0 ? 1 : rows.rows_per_group;
  return here.launch_on(stream, kernel_table(here).store_rows, shape,
                        StoreRowsParams{.num_groups = num_groups() - num_in_front,
                                        .row_bytes = token_bytes(config()),
                                        .from_rows_per_group = rows_per_group,
                                        .num_from_rows = rows.num_rows,
                                        .row_offsets = rows.row_offsets + num_in_front,
                                        .row_counts = rows.row_counts + num_in_front,
                                        .from = static_cast<const std::byte*>(rows.rows),
                                        .to = reinterpret_cast<std::byte*>(
                                                  impl_->state(rank).memory.row_buffers().expert_outputs) -
                                              impl_->bytes_in_front(rank),
                                        .wait_context = impl_->state(rank).dispatch_call.step.wait_context});
}

}  // namespace switchyard

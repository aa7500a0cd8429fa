// Placements on the device: the table by which a rank's kernels find the seat of an id, and the counts of
// rows per expert.
#include <algorithm>

#include "agreement.hpp"
#include "expert_parallel_impl.hpp"

namespace switchyard {

int ExpertParallel::Impl::seat_of(int rank, int expert) const {
  if (config.routing == Routing::kAllToAll) {
    std::vector<int> group_of_rank;
    if (config.p2p_world_size != 0)
      for (const int world_rank : members) group_of_rank.push_back(world_rank / config.p2p_world_size);
    const ExpertSeat seat = placement->seat_for(expert, rank, group_of_rank);
    return seat.rank * n_local_experts() + seat.seat;
  }
  // Ranks whose outputs are added up have the same tokens: one replica of theirs works on them.
  const int num_reducing = num_reducing_ranks(config, n_ranks());
  std::vector<ExpertSeat> seats;
  for (const ExpertSeat& seat : placement->seats_of(expert))
    if (seat.rank / num_reducing == rank / num_reducing) seats.push_back(seat);
  if (seats.empty()) return -1;
  const ExpertSeat seat = seats[static_cast<size_t>(expert) % seats.size()];
  return seat.rank == rank ? seat.seat : -1;
}

int ExpertParallel::Impl::expert_of(int rank, int seat_idx) const {
  const int num_seats = n_local_experts();
  const bool is_own = config.routing == Routing::kSkipAllToAll;
  return placement->expert_at({is_own ? rank : seat_idx / num_seats, seat_idx % num_seats});
}

int ExpertParallel::Impl::named_expert(int expert_idx) const {
  if (is_per_rank()) return -1;  // kernels know ranks only
  const int num_seats = n_local_experts();
  return expert_idx < 0 || !has_table()
             ? expert_idx
             : placement->expert_at({expert_idx / num_seats, expert_idx % num_seats});
}

Status ExpertParallel::Impl::upload_seats(int rank) const {
  SWITCHYARD_RETURN_IF_ERROR(wait_for_calls(rank));
  const ExchangeMemory& memory = state(rank).memory;
  const auto upload = [&](const ArenaPart& part, const auto& values) {
    return part.bytes == 0
               ? Status()
               : device_of(member(rank))
                     .copy(memory.at<void>(part), values.data(), part.bytes, member(rank).stream());
  };
  if (!has_table()) return upload(layout.expert_scales, config.expert_input_scales);
  std::vector<int32_t> seat_of_expert;
  for (int expert = 0; expert < config.n_experts; ++expert) seat_of_expert.push_back(seat_of(rank, expert));
  SWITCHYARD_RETURN_IF_ERROR(upload(layout.seat_table, seat_of_expert));
  std::vector<float> scale_of_seat(layout.expert_scales.bytes / sizeof(float), 1.0f);
  for (size_t seat_idx = 0; seat_idx < scale_of_seat.size(); ++seat_idx)
    if (const int expert = expert_of(rank, static_cast<int>(seat_idx)); expert >= 0)
      scale_of_seat[seat_idx] = config.expert_input_scales[static_cast<size_t>(expert)];
  return upload(layout.expert_scales, scale_of_seat);
}

Status ExpertParallel::Impl::check_new_placement(const ExpertPlacement& next) const {
  if (!has_table())
    return failed_precondition(
        "set_placement: this object was created without a placement and without max_experts_per_rank; its "
        "kernels have no table to change");
  if (const Status status = check_placement(next, config.n_experts, n_ranks()); !status.ok())
    return invalid_argument("set_placement: %s", status.message().c_str());
  if (next.num_seats_per_rank() > n_local_experts()) {
    const auto& lists = next.experts_of_rank();
    const auto largest =
        std::max_element(lists.begin(), lists.end(), [](auto& a, auto& b) { return a.size() < b.size(); });
    return invalid_argument(
        "set_placement: rank %d would hold %d experts; there are %d seats (max_experts_per_rank)",
        static_cast<int>(largest - lists.begin()), next.num_seats_per_rank(), n_local_experts());
  }
  for (const int rank : local_ranks()) {
    SWITCHYARD_RETURN_IF_ERROR(check_call(rank, "set_placement", Step::kIdle));
    for (const auto& flight : later_flights)
      SWITCHYARD_RETURN_IF_ERROR(flight->impl_->check_call(rank, "set_placement", Step::kIdle));
  }
  return Status();
}

// A table is read by its own rank's kernels only: the order of that rank's stream keeps a step to one
// placement. Ranks need not wait for each other, only agree.
Status ExpertParallel::Impl::set_placement(const ExpertPlacement& next) {
  Transport& transport = transport_of(world);
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport, members, check_new_placement(next)));
  ExpertParallelConfig next_config = config;
  next_config.placement = next;
  SWITCHYARD_RETURN_IF_ERROR(agree_on(transport, members, next_config));
  Status kept;
  for (const int rank : local_ranks())
    if (kept.ok()) kept = keep_expert_counts(rank);
  SWITCHYARD_RETURN_IF_ERROR(agree_that(transport, members, kept));
  // The seats of a rank stay as many as they are.
  next_config.max_experts_per_rank = n_local_experts();
  config = std::move(next_config);
  placement = next;
  Status uploaded;
  for (const int rank : local_ranks()) {
    if (uploaded.ok()) uploaded = upload_seats(rank);
    state(rank).has_dispatched = false;  // what it knows of its rows is by the old seats
  }
  for (const auto& flight : later_flights) {
    flight->impl_->config = config;
    flight->impl_->placement = placement;
    for (const int rank : local_ranks()) {
      if (uploaded.ok()) uploaded = flight->impl_->upload_seats(rank);
      flight->impl_->state(rank).has_dispatched = false;
    }
  }
  return agree_that(transport, members, uploaded);
}

Result<std::vector<int64_t>> ExpertParallel::Impl::expert_counts(int rank) const {
  if (layout.expert_counts.bytes == 0)
    return failed_precondition("expert_counts: counts_experts is false; create() must be told to count");
  SWITCHYARD_RETURN_IF_ERROR(wait_for_calls(rank));
  std::vector<int64_t> of_seat(layout.expert_counts.bytes / sizeof(int64_t));
  SWITCHYARD_RETURN_IF_ERROR(device_of(member(rank))
                                 .copy(of_seat.data(), state(rank).memory.at<void>(layout.expert_counts),
                                       layout.expert_counts.bytes, member(rank).stream()));
  std::vector<int64_t> of_expert = state(rank).past_counts;
  of_expert.resize(static_cast<size_t>(config.n_experts));
  for (size_t seat_idx = 0; seat_idx < of_seat.size(); ++seat_idx)
    if (const int expert = expert_of(rank, static_cast<int>(seat_idx)); expert >= 0)
      of_expert[static_cast<size_t>(expert)] += of_seat[seat_idx];
  for (const auto& flight : later_flights) {
    const Result<std::vector<int64_t>> more = flight->impl_->expert_counts(rank);
    if (!more.ok()) return more.status();
    for (size_t expert = 0; expert < of_expert.size(); ++expert) of_expert[expert] += more.value()[expert];
  }
  return of_expert;
}

// Before seats get other experts.
Status ExpertParallel::Impl::keep_expert_counts(int rank) {
  if (layout.expert_counts.bytes == 0) return Status();
  Result<std::vector<int64_t>> counts = expert_counts(rank);
  if (!counts.ok()) return counts.status();
  state(rank).past_counts = std::move(counts).value();
  return clear_expert_counts(rank);
}

// Those of the present placement.
Status ExpertParallel::Impl::clear_expert_counts(int rank) const {
  if (layout.expert_counts.bytes == 0)
    return failed_precondition(
        "clear_expert_counts: counts_experts is false; create() must be told to count");
  for (const auto& flight : later_flights)
    SWITCHYARD_RETURN_IF_ERROR(flight->impl_->clear_expert_counts(rank));
  SWITCHYARD_RETURN_IF_ERROR(wait_for_calls(rank));
  return device_of(member(rank))
      .fill(state(rank).memory.at<void>(layout.expert_counts), 0, layout.expert_counts.bytes,
            member(rank).stream());
}

Status ExpertParallel::set_placement(const ExpertPlacement& placement) {
  return impl_->whole().set_placement(placement);
}

const ExpertPlacement& ExpertParallel::placement() const { return *impl_->placement; }

Result<std::vector<int64_t>> ExpertParallel::expert_counts(int rank) const {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("expert_counts", rank));
  return impl_->whole().expert_counts(rank);
}

Status ExpertParallel::clear_expert_counts(int rank) {
  SWITCHYARD_RETURN_IF_ERROR(impl_->check_rank("clear_expert_counts", rank));
  impl_->whole().state(rank).past_counts.clear();
  return impl_->whole().clear_expert_counts(rank);
}

}  // namespace switchyard

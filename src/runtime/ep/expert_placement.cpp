#include "switchyard/types/expert_placement.hpp"

#include <algorithm>
#include <utility>

#include "switchyard/detail/ep/shape.hpp"

namespace switchyard {
namespace {

Status check_counts(int n_experts, size_t num_ranks) {
  if (n_experts < 1 || n_experts > kMaxExperts)
    return invalid_argument("placement: n_experts is %d; it must be 1..%d", n_experts, kMaxExperts);
  if (num_ranks < 1 || num_ranks > static_cast<size_t>(kMaxRanks))
    return invalid_argument("placement: the number of ranks is %zu; it must be 1..%d", num_ranks, kMaxRanks);
  return Status();
}

}  // namespace

Result<ExpertPlacement> ExpertPlacement::from_lists(int n_experts,
                                                    std::vector<std::vector<int>> experts_of_rank) {
  SWITCHYARD_RETURN_IF_ERROR(check_counts(n_experts, experts_of_rank.size()));
  ExpertPlacement placement;
  placement.n_experts_ = n_experts;
  placement.seats_of_expert_.resize(static_cast<size_t>(n_experts));
  for (size_t rank = 0; rank < experts_of_rank.size(); ++rank)
    for (size_t seat = 0; seat < experts_of_rank[rank].size(); ++seat) {
      const int expert = experts_of_rank[rank][seat];
      if (expert < 0 || expert >= n_experts)
        return invalid_argument("placement: rank %zu holds expert %d; experts are 0..%d", rank, expert,
                                n_experts - 1);
      std::vector<ExpertSeat>& seats = placement.seats_of_expert_[static_cast<size_t>(expert)];
      if (!seats.empty() && seats.back().rank == static_cast<int>(rank))
        return invalid_argument(
            "placement: rank %zu holds expert %d twice; one replica per rank is the limit", rank, expert);
      seats.push_back({static_cast<int>(rank), static_cast<int>(seat)});
    }
  for (int expert = 0; expert < n_experts; ++expert)
    if (placement.seats_of(expert).empty())
      return invalid_argument(
          "placement: expert %d is on no rank; all of 0..%d must be on one of the %zu ranks", expert,
          n_experts - 1, experts_of_rank.size());
  for (const std::vector<int>& experts : experts_of_rank)
    placement.num_seats_per_rank_ = std::max(placement.num_seats_per_rank_, static_cast<int>(experts.size()));
  placement.experts_of_rank_ = std::move(experts_of_rank);
  return placement;
}

Result<ExpertPlacement> ExpertPlacement::even(int n_experts, int n_ranks) {
  SWITCHYARD_RETURN_IF_ERROR(check_counts(n_experts, static_cast<size_t>(std::max(n_ranks, 0))));
  std::vector<std::vector<int>> experts_of_rank(static_cast<size_t>(n_ranks));
  const int fewest = n_experts / n_ranks, num_larger = n_experts % n_ranks;
  int expert = 0;
  for (int rank = 0; rank < n_ranks; ++rank)
    for (int i = 0; i < fewest + (rank < num_larger ? 1 : 0); ++i)
      experts_of_rank[static_cast<size_t>(rank)].push_back(expert++);
  return from_lists(n_experts, std::move(experts_of_rank));
}

int ExpertPlacement::expert_at(ExpertSeat seat) const {
  const std::vector<int>& experts = experts_of_rank_[static_cast<size_t>(seat.rank)];
  return seat.seat < static_cast<int>(experts.size()) ? experts[static_cast<size_t>(seat.seat)] : -1;
}

bool ExpertPlacement::is_plain() const {
  int expert = 0;
  for (const std::vector<int>& experts : experts_of_rank_) {
    if (static_cast<int>(experts.size()) != num_seats_per_rank_) return false;
    for (const int held : experts)
      if (held != expert++) return false;
  }
  return expert == n_experts_;
}

ExpertSeat ExpertPlacement::seat_for(int expert, int source_rank, std::span<const int> group_of_rank) const {
  const std::span<const ExpertSeat> seats = seats_of(expert);
  const auto group_of = [&](int rank) {
    return group_of_rank.empty() ? 0 : group_of_rank[static_cast<size_t>(rank)];
  };
  int num_near = 0;
  for (const ExpertSeat& seat : seats) {
    if (seat.rank == source_rank) return seat;
    if (group_of(seat.rank) == group_of(source_rank)) ++num_near;
  }
  if (num_near == 0) return seats[static_cast<size_t>(source_rank) % seats.size()];
  int turn = source_rank % num_near;
  for (const ExpertSeat& seat : seats)
    if (group_of(seat.rank) == group_of(source_rank) && turn-- == 0) return seat;
  return {};
}

}  // namespace switchyard

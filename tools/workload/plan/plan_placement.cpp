#include "plan_placement.hpp"

#include <algorithm>
#include <numeric>

namespace switchyard::tools {
namespace {

size_t at(int index) { return static_cast<size_t>(index); }

// [expert]: how many replicas each gets.
std::vector<int> count_replicas(const PlacementGoal& goal) {
  std::vector<int> num_replicas(goal.rows_of_expert.size(), 1);
  const auto load = [&](size_t expert) {
    return num_replicas[expert] < goal.n_ranks ? goal.rows_of_expert[expert] / num_replicas[expert] : -1;
  };
  for (int i = 0; i < goal.num_replicas; ++i) {
    size_t busiest = 0;
    for (size_t expert = 1; expert < num_replicas.size(); ++expert)
      if (load(expert) > load(busiest)) busiest = expert;
    ++num_replicas[busiest];
  }
  return num_replicas;
}

// Experts on ranks, each replica with an equal share of its expert's rows.
class Table {
 public:
  Table(int n_ranks, int num_seats, std::vector<double> rows_of_replica)
      : num_seats_(at(num_seats)),
        rows_(std::move(rows_of_replica)),
        experts_(at(n_ranks)),
        is_held_(at(n_ranks), std::vector<bool>(rows_.size())),
        is_fixed_(rows_.size()),
        loads_(at(n_ranks)) {}

  // To the rank with the least load that can have it.
  void place(int expert) {
    size_t best = experts_.size();
    for (size_t rank = 0; rank < experts_.size(); ++rank)
      if (has_seat(rank) && !holds(rank, expert) && (best == experts_.size() || loads_[rank] < loads_[best]))
        best = rank;
    if (best == experts_.size()) best = make_room(expert);
    add(best, expert);
  }

  // Exchanges experts of the rank with the largest load, or moves one, as long as that lowers the larger of
  // the two loads. Each time the loads are more equal, so this ends; the limit only bounds the time.
  void level() {
    for (int i = 0; i < 256 && level_once(); ++i) {
    }
  }

  // The same with loads that are known better; `is_fixed` says of each expert whether it stays where it is.
  void level_others(std::vector<double> loads, std::vector<bool> is_fixed) {
    loads_ = std::move(loads);
    is_fixed_ = std::move(is_fixed);
    level();
  }

  std::vector<std::vector<int>> lists() const {
    std::vector<std::vector<int>> lists = experts_;
    for (std::vector<int>& experts : lists) std::sort(experts.begin(), experts.end());
    return lists;
  }

 private:
  static constexpr int kNobody = -1;  // an empty seat

  bool has_seat(size_t rank) const { return experts_[rank].size() < num_seats_; }
  bool holds(size_t rank, int expert) const { return is_held_[rank][at(expert)]; }
  bool is_fixed(int expert) const { return expert != kNobody && is_fixed_[at(expert)]; }
  double rows_of(int expert) const { return expert == kNobody ? 0 : rows_[at(expert)]; }
  void add(size_t rank, int expert) {
    if (expert == kNobody) return;
    experts_[rank].push_back(expert);
    is_held_[rank][at(expert)] = true;
    loads_[rank] += rows_of(expert);
  }
  void remove(size_t rank, int expert) {
    if (expert == kNobody) return;
    std::erase(experts_[rank], expert);
    is_held_[rank][at(expert)] = false;
    loads_[rank] -= rows_of(expert);
  }

  // Only ranks that hold the expert have seats left: another gives one of its experts to such a rank. It has
  // one that the other lacks, since it has more experts, and none of them is this one.
  size_t make_room(int expert) {
    size_t free = 0, full = 0;
    while (!has_seat(free)) ++free;
    while (holds(full, expert)) ++full;
    const std::vector<int>& held = experts_[full];
    const int moved =
        *std::find_if(held.begin(), held.end(), [&](int candidate) { return !holds(free, candidate); });
    remove(full, moved);
    add(free, moved);
    return full;
  }

  bool level_once() {
    const size_t busiest =
        static_cast<size_t>(std::max_element(loads_.begin(), loads_.end()) - loads_.begin());
    struct {
      size_t rank = 0;
      int given = kNobody, taken = kNobody;
      double load = 0;
    } best;
    best.load = loads_[busiest] * (1 - 1e-9);
    for (size_t rank = 0; rank < experts_.size(); ++rank) {
      std::vector<int> takeable = experts_[rank];
      if (has_seat(rank)) takeable.push_back(kNobody);
      for (const int given : experts_[busiest])
        for (const int taken : takeable) {
          if (rank == busiest || holds(rank, given) || (taken != kNobody && holds(busiest, taken))) continue;
          if (is_fixed(given) || is_fixed(taken)) continue;
          const double moved = rows_of(given) - rows_of(taken);
          const double load = std::max(loads_[busiest] - moved, loads_[rank] + moved);
          if (load < best.load) best = {rank, given, taken, load};
        }
    }
    if (best.given == kNobody) return false;
    remove(busiest, best.given);
    remove(best.rank, best.taken);
    add(busiest, best.taken);
    add(best.rank, best.given);
    return true;
  }

  const size_t num_seats_;
  const std::vector<double> rows_;          // [expert]: of each replica
  std::vector<std::vector<int>> experts_;   // [rank]
  std::vector<std::vector<bool>> is_held_;  // [rank][expert]
  std::vector<bool> is_fixed_;              // [expert]
  std::vector<double> loads_;               // [rank]
};

Status check(const PlacementGoal& goal, int num_seats) {
  const int n_experts = static_cast<int>(goal.rows_of_expert.size());
  const int64_t most = int64_t{n_experts} * (goal.n_ranks - 1);
  if (goal.num_replicas > most)
    return invalid_argument(
        "--replicas: %d must be 0..%lld: an expert is on each of %d ranks (--ranks) once "
        "at most",
        goal.num_replicas, static_cast<long long>(most), goal.n_ranks);
  if (int64_t{num_seats} * goal.n_ranks < int64_t{n_experts} + goal.num_replicas)
    return invalid_argument(
        "--experts-per-rank: %d on each of %d ranks do not hold %d experts (--experts) and %d replicas "
        "(--replicas); it must be %d or more",
        num_seats, goal.n_ranks, n_experts, goal.num_replicas,
        (n_experts + goal.num_replicas + goal.n_ranks - 1) / goal.n_ranks);
  return Status();
}

Result<ExpertPlacement> plan_longest_first(const PlacementGoal& goal, int num_seats) {
  const std::vector<int> num_replicas = count_replicas(goal);
  const int n_experts = static_cast<int>(num_replicas.size());
  std::vector<double> rows_of_replica;
  for (int expert = 0; expert < n_experts; ++expert)
    rows_of_replica.push_back(goal.rows_of_expert[at(expert)] / num_replicas[at(expert)]);
  std::vector<int> order(num_replicas.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return rows_of_replica[at(a)] > rows_of_replica[at(b)]; });
  Table table(goal.n_ranks, num_seats, rows_of_replica);
  for (const int expert : order)
    for (int i = 0; i < num_replicas[at(expert)]; ++i) table.place(expert);
  table.level();
  // Replicas do not have equal shares by the rule that picks one; the other experts make up for that.
  Result<ExpertPlacement> placement = ExpertPlacement::from_lists(n_experts, table.lists());
  if (!placement.ok() || goal.num_replicas == 0) return placement;
  std::vector<bool> has_replicas;
  for (const int count : num_replicas) has_replicas.push_back(count > 1);
  table.level_others(load_of_ranks(placement.value(), goal.rows_of_expert, goal.group_of_rank),
                     std::move(has_replicas));
  return ExpertPlacement::from_lists(n_experts, table.lists());
}

double largest_load(const PlacementGoal& goal, const ExpertPlacement& placement) {
  const std::vector<double> loads = load_of_ranks(placement, goal.rows_of_expert, goal.group_of_rank);
  return *std::max_element(loads.begin(), loads.end());
}

}  // namespace

Result<ExpertPlacement> plan_placement(const PlacementGoal& goal) {
  const int n_experts = static_cast<int>(goal.rows_of_expert.size());
  const int fewest_seats = (n_experts + goal.num_replicas + goal.n_ranks - 1) / goal.n_ranks;
  const int num_seats = goal.experts_per_rank == 0 ? fewest_seats : goal.experts_per_rank;
  SWITCHYARD_RETURN_IF_ERROR(check(goal, num_seats));
  Result<ExpertPlacement> planned = plan_longest_first(goal, num_seats);
  if (!planned.ok()) return planned;
  Result<ExpertPlacement> even = ExpertPlacement::even(n_experts, goal.n_ranks);
  if (!even.ok()) return even;
  return largest_load(goal, even.value()) < largest_load(goal, planned.value()) ? even : planned;
}

std::vector<std::vector<double>> load_of_seats(const ExpertPlacement& placement,
                                               const std::vector<double>& rows_of_expert,
                                               const std::vector<int>& group_of_rank) {
  std::vector<std::vector<double>> loads;
  for (const std::vector<int>& experts : placement.experts_of_rank()) loads.emplace_back(experts.size());
  for (int expert = 0; expert < placement.n_experts(); ++expert)
    for (int source = 0; source < placement.n_ranks(); ++source) {
      const ExpertSeat seat = placement.seat_for(expert, source, group_of_rank);
      loads[at(seat.rank)][at(seat.seat)] += rows_of_expert[at(expert)] / placement.n_ranks();
    }
  return loads;
}

std::vector<double> load_of_ranks(const ExpertPlacement& placement, const std::vector<double>& rows_of_expert,
                                  const std::vector<int>& group_of_rank) {
  std::vector<double> loads;
  for (const std::vector<double>& seats : load_of_seats(placement, rows_of_expert, group_of_rank))
    loads.push_back(std::accumulate(seats.begin(), seats.end(), 0.0));
  return loads;
}

}  // namespace switchyard::tools

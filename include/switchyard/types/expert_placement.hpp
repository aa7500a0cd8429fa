// ExpertPlacement: which ranks hold which experts. Ranks may hold different numbers of experts, or none, and
// an expert may be on several ranks: its replicas.
//
// Every rank has as many *seats* as the rank with most experts has experts. The seats of a rank are numbered
// from 0, in the order of its list; a rank with fewer experts leaves its last seats empty, and no row ever
// goes to them.
//
// Ownership. A placement is a value and owns its lists.
// Threads. const calls may come from any threads at once.
#pragma once

#include <span>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard {

// A seat of a rank: where an expert is, or could be.
struct ExpertSeat {
  int rank = -1;
  int seat = -1;  // among the rank's; its rows are those of local expert `seat`

  friend bool operator==(const ExpertSeat&, const ExpertSeat&) = default;
};

class ExpertPlacement {
 public:
  // Makes a placement from the experts of each rank. Every expert of 0..n_experts-1 must be on some rank, and
  // on no rank twice; the error names the expert and the rank.
  static Result<ExpertPlacement> from_lists(int n_experts, std::vector<std::vector<int>> experts_of_rank);
  // Makes the placement that ranks have if none is given: experts in ascending order, as many on each rank,
  // or one more on the first n_experts % n_ranks ranks.
  static Result<ExpertPlacement> even(int n_experts, int n_ranks);

  int n_experts() const { return n_experts_; }
  int n_ranks() const { return static_cast<int>(experts_of_rank_.size()); }
  // The seats of every rank: the most experts that one of them holds.
  int num_seats_per_rank() const { return num_seats_per_rank_; }
  // The experts of every rank; the expert at position s has seat s.
  const std::vector<std::vector<int>>& experts_of_rank() const { return experts_of_rank_; }
  // The expert at a seat, or -1: the seat is empty.
  int expert_at(ExpertSeat seat) const;
  // Where an expert is, in ascending order of ranks; more than one seat: it has replicas.
  std::span<const ExpertSeat> seats_of(int expert) const {
    return seats_of_expert_[static_cast<size_t>(expert)];
  }
  // Whether every expert is on one rank only, rank r holds the experts that follow those of rank r - 1, and
  // all hold as many: what kernels compute without a table.
  bool is_plain() const;

  // Returns the replica that takes the rows of a source rank: the one on that rank if there is one, else one
  // in its group, else any; among several, number source_rank % (how many there are). Every rank can compute
  // it, for any other. `group_of_rank` has a number per rank; ranks of one group reach each other by stores.
  // Empty: all ranks are one group.
  ExpertSeat seat_for(int expert, int source_rank, std::span<const int> group_of_rank = {}) const;

  friend bool operator==(const ExpertPlacement& a, const ExpertPlacement& b) {
    return a.n_experts_ == b.n_experts_ && a.experts_of_rank_ == b.experts_of_rank_;
  }

 private:
  ExpertPlacement() = default;

  int n_experts_ = 0;
  int num_seats_per_rank_ = 0;
  std::vector<std::vector<int>> experts_of_rank_;
  std::vector<std::vector<ExpertSeat>> seats_of_expert_;
};

}  // namespace switchyard

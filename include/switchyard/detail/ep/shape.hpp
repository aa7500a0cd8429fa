// The shape of an expert-parallel world: fixed at compile time or given at run time, by the same code.
#pragma once

#include <cstdint>

#include "switchyard/detail/base/macros.hpp"
#include "switchyard/detail/sync/counters.hpp"
#include "switchyard/detail/testing/logic_mutant.hpp"

namespace switchyard {

inline constexpr int kMaxRanks = 512;
// The most ranks whose addresses fit into a kernel's parameters; larger worlds use the kernels with a wire.
inline constexpr int kMaxDirectRanks = MAX_GPUS_PER_NODE;
inline constexpr int kMaxExperts = 1024;
inline constexpr int kMaxTopK = 32;
inline constexpr int kMaxHidden = 16384;
inline constexpr int kMaxTokensPerRank = 65535;
inline constexpr int kMaxRowsPerExpert = kMaxRanks * kMaxTokensPerRank;
inline constexpr int kHiddenMultiple = 8;

struct EpShape {
  int n_ranks = 0;
  int n_experts = 0;  // of the whole model; with a seat table, the seats of all ranks
  int top_k = 0;
  int hidden = 0;
  int max_tokens_per_rank = 0;
  int p2p_world_size = 0;  // ranks that store into each other directly
  // Where ranks do not exchange tokens, each is a world of its own: its experts are some of the model's, with
  // ids [first_expert, first_expert + n_experts) of num_ids. 0: the ids are the experts.
  int first_expert = 0;
  int num_ids = 0;
  // Where a placement is given: [num_ids], in the memory of the rank's device, the seat to which this rank
  // sends the rows of each id; to a kernel the seats are the experts. -1: none of this rank's, where ranks do
  // not exchange tokens. Null: the ids are the seats.
  const int32_t* seat_of_id = nullptr;

  friend constexpr bool operator==(const EpShape&, const EpShape&) = default;
};

// What a kernel's first template argument says of the shape: `kShape`, where a field that is 0 is given at
// run time.
template <typename T>
concept FixedShape = requires {
  EpShape{T::kShape};
};

// Fixes nothing: one kernel serves every shape.
struct RunTimeShape {
  static constexpr EpShape kShape{};
};
// The same for kernels that reach some of their peers over a wire, or that have more than kMaxDirectRanks.
struct WiredShape {
  static constexpr EpShape kShape{};
  static constexpr bool kHasWire = true;
};

template <FixedShape Fixed>
inline constexpr bool kHasWire = requires {
  requires Fixed::kHasWire;
};

// The same for kernels that tell the owner of a token's rows which of them are siblings
// (ep/direct/layout.hpp, RowLink).
template <FixedShape Fixed>
struct Linked : Fixed {
  static constexpr bool kLinksRows = true;
};

template <FixedShape Fixed>
inline constexpr bool kLinksRows = requires {
  requires Fixed::kLinksRows;
};

// The same for combines that begin while experts still work, and so wait for the outputs of each expert.
template <FixedShape Fixed>
struct Early : Fixed {
  static constexpr bool kAwaitsExperts = true;
};

template <FixedShape Fixed>
inline constexpr bool kAwaitsExperts = requires {
  requires Fixed::kAwaitsExperts;
};

template <FixedShape Fixed>
struct ShapeOf {
  static constexpr EpShape kFixed = Fixed::kShape;

  EpShape given;  // what kFixed leaves open
  int local_experts = n_experts() / n_ranks();
  // Multiplying by 2^20 / local_experts, rounded up, divides: this is exact for all experts below 2^10.
  uint32_t owner_factor = (kOwnerUnit - 1) / static_cast<uint32_t>(local_experts) + 1;

  SWITCHYARD_HD constexpr int n_ranks() const { return kFixed.n_ranks != 0 ? kFixed.n_ranks : given.n_ranks; }
  SWITCHYARD_HD constexpr int n_experts() const {
    return kFixed.n_experts != 0 ? kFixed.n_experts : given.n_experts;
  }
  SWITCHYARD_HD constexpr int top_k() const { return kFixed.top_k != 0 ? kFixed.top_k : given.top_k; }
  SWITCHYARD_HD constexpr int hidden() const { return kFixed.hidden != 0 ? kFixed.hidden : given.hidden; }
  SWITCHYARD_HD constexpr int max_tokens_per_rank() const {
    return kFixed.max_tokens_per_rank != 0 ? kFixed.max_tokens_per_rank : given.max_tokens_per_rank;
  }
  SWITCHYARD_HD constexpr int first_expert() const {
    return kFixed.first_expert != 0 ? kFixed.first_expert : given.first_expert;
  }
  SWITCHYARD_HD constexpr int num_ids() const {
    const int num_ids = kFixed.num_ids != 0 ? kFixed.num_ids : given.num_ids;
    return num_ids != 0 ? num_ids : n_experts();
  }
  // Whether topk_ids may hold this id.
  SWITCHYARD_HD constexpr bool is_id(int id) const {
    return static_cast<uint32_t>(id) + 1 <= static_cast<uint32_t>(num_ids());
  }
  // Returns -1 for padding, and for an expert that lives on another rank. Ids out of range have no expert,
  // and are a fault that others report.
  SWITCHYARD_HD constexpr int expert_of_id(int id) const {
    int expert_of[] = {id};
    find_experts(expert_of);
    return expert_of[0];
  }
  // The same for several ids, each of which its expert replaces. One branch decides for all of them, before
  // any id is looked at: without a table the ids may still be in flight, and the loads from a table are in
  // flight together.
  template <int kNumIds>
  SWITCHYARD_HD constexpr void find_experts(int (&ids)[kNumIds]) const {
    if (given.seat_of_id == nullptr) {
      for (int& id : ids) id = expert_without_table(id);
    } else {
      for (int& id : ids) id = seat_of(id);
    }
  }
  SWITCHYARD_HD constexpr int expert_without_table(int id) const {
    const uint32_t expert_idx = static_cast<uint32_t>(id) - static_cast<uint32_t>(first_expert());
    return expert_idx < static_cast<uint32_t>(n_experts()) ? static_cast<int>(expert_idx) : -1;
  }
  SWITCHYARD_HD constexpr int seat_of(int id) const {
    if (static_cast<uint32_t>(id) >= static_cast<uint32_t>(num_ids())) return -1;
    return mutate<Fixed, LogicMutant::kNextSeat>([&] { return given.seat_of_id[id]; },
                                                 [&] { return next_seat(given.seat_of_id[id]); });
  }
  SWITCHYARD_HD constexpr int next_seat(int seat) const { return seat < 0 ? seat : (seat + 1) % n_experts(); }
  // Returns the expert's number among the model's experts; with a seat table, its seat.
  SWITCHYARD_HD constexpr int id_of_expert(int expert_idx) const { return expert_idx + first_expert(); }
  SWITCHYARD_HD constexpr int n_local_experts() const { return local_experts; }
  SWITCHYARD_HD constexpr int owner_rank(int expert_idx) const {
    return static_cast<int>(static_cast<uint32_t>(expert_idx) * owner_factor / kOwnerUnit);
  }
  SWITCHYARD_HD constexpr int local_expert(int expert_idx) const {
    return expert_idx - owner_rank(expert_idx) * n_local_experts();
  }

  static constexpr uint32_t kOwnerUnit = 1u << 20;
  static_assert(uint64_t{kMaxExperts} * kMaxExperts <= kOwnerUnit);
};

}  // namespace switchyard

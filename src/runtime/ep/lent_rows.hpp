// Expert rows in the caller's memory, which ranks of other processes read where they are. CUDA lets a process
// open memory that another has allocated, by a ticket of 64 bytes. A rank offers the allocation that its rows
// lie in, in memory that the hosts of all ranks share; each of the others opens it in its next combine, and
// answers with the address by which it finds it. Nobody waits for an answer: until all have come, rows are
// copied.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "switchyard/detail/device/memory_opener.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/types/fault.hpp"

namespace switchyard {

// What a rank offers, and what the others have answered; zeroed at first.
struct LentMemory {
  // Allocations that may be open at a time: what others have open is not freed, even if its owner frees it.
  static constexpr int kSlots = 8;

  struct Offer {
    std::atomic<uint64_t> number;  // no two offers of a rank have the same; 0: none
    std::atomic<uint64_t> ticket[std::tuple_size_v<MemoryTicket>];
  };
  struct Answer {
    std::atomic<uint64_t> number;   // of the offer
    std::atomic<uint64_t> address;  // 0: it could not be opened
  };

  Offer offers[kSlots];
  Answer answers[kSlots][kMaxDirectRanks];  // by the world's rank
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "the memory is shared between processes");

// In the memory of a rank that all hosts see: two fault records, then this.
inline constexpr uint64_t kLentMemoryOffset = (2 * sizeof(FaultRecord) + 63) / 64 * 64;
inline constexpr uint64_t kHostVisibleBytes = kLentMemoryOffset + sizeof(LentMemory);

// Whose rows those are.
struct Lender {
  int world_rank = 0;
  int num_flights = 1;
  bool shares_process_with_other_devices = false;
};

class LentRows {
 public:
  static constexpr int kNoSlot = -1;  // all readers are of this process
  // Where ranks find some rows.
  struct Found {
    std::vector<const std::byte*> address_of_reader;
    int slot = kNoSlot;  // of the allocation that they lie in
  };
  // A slot is offered anew once so many calls have not used it.
  static constexpr uint64_t kIdleCalls = 64;

  // memory_of_rank: by the world's rank; null: the rank is one of this process.
  LentRows(std::unique_ptr<MemoryOpener> opener, const Lender& lender,
           std::vector<LentMemory*> memory_of_rank);

  bool has_offered() const { return num_offers_ > 0; }
  // A flight has enqueued a dispatch: when that has ended, no peer reads what the flight has lent before.
  void begin_step(int flight_idx) { ++num_steps_[static_cast<size_t>(flight_idx)]; }
  // Where each of `readers` finds `rows`, of a step of the flight; nothing: some do not, or not yet. `wait`
  // returns when no kernel of an earlier call of this rank runs any more, or an error; null: nothing may be
  // waited for now.
  std::optional<Found> find(const void* rows, std::span<const int> readers, int flight_idx,
                            const std::function<Status()>& wait);
  // A graph has what find() has returned with this slot, which is never offered anew.
  void keep(int slot) { slots_[static_cast<size_t>(slot)].is_kept = true; }
  // Opens what others offer, and closes what they offer no longer.
  void answer();
  // No kernel of any rank runs any more, and only `members` go on: closes what was of others, for good.
  void restart(std::span<const int> members);

 private:
  struct Slot {
    uint64_t number = 0;
    Allocation allocation;
    uint64_t last_call = 0;
    std::vector<uint64_t> last_step_of_flight;  // that read it; 0: none
    bool is_kept = false;
  };
  struct Opened {
    uint64_t number = 0;
    std::unique_ptr<SharedMapping> mapping;
  };
  bool is_here(int rank) const {
    return rank == lender_.world_rank || memory_of_rank_[static_cast<size_t>(rank)] == nullptr;
  }
  Slot* slot_of(const Allocation& allocation, const std::function<Status()>& wait);
  Slot* free_slot();
  bool may_be_read(const Slot& slot) const;
  void open(const LentMemory::Offer& offer, Opened& opened, LentMemory::Answer& answer);

  const std::unique_ptr<MemoryOpener> opener_;
  const Lender lender_;
  std::vector<LentMemory*> memory_of_rank_;
  std::vector<uint64_t> num_steps_;  // of each flight, from 1 on
  uint64_t num_calls_ = 0, num_offers_ = 0, num_refused_ = 0;
  std::array<uint64_t, 64> refused_ids_{};  // the last ones that have no ticket
  std::array<Slot, LentMemory::kSlots> slots_;
  std::vector<std::array<Opened, LentMemory::kSlots>> opened_;  // by the world's rank
};

}  // namespace switchyard

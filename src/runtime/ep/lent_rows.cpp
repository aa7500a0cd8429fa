#include "lent_rows.hpp"

#include <algorithm>

namespace switchyard {

LentRows::LentRows(std::unique_ptr<MemoryOpener> opener, const Lender& lender,
                   std::vector<LentMemory*> memory_of_rank)
    : opener_(std::move(opener)),
      lender_(lender),
      memory_of_rank_(std::move(memory_of_rank)),
      num_steps_(static_cast<size_t>(lender.num_flights), 1),
      opened_(memory_of_rank_.size()) {}

std::optional<LentRows::Found> LentRows::find(const void* rows, std::span<const int> readers, int flight_idx,
                                              const std::function<Status()>& wait) {
  ++num_calls_;
  const bool is_alone =
      std::all_of(readers.begin(), readers.end(), [&](int rank) { return rank == lender_.world_rank; });
  if (lender_.shares_process_with_other_devices && !is_alone && !opener_->is_open_to_other_devices(rows))
    return {};
  const auto* here = static_cast<const std::byte*>(rows);
  Found found{.address_of_reader = std::vector<const std::byte*>(readers.size(), here)};
  if (std::all_of(readers.begin(), readers.end(), [&](int rank) { return is_here(rank); })) return found;
  const Result<Allocation> allocation = opener_->allocation_of(rows);
  if (!allocation.ok()) return {};
  Slot* slot = slot_of(allocation.value(), wait);
  if (slot == nullptr) return {};
  slot->last_call = num_calls_;
  found.slot = static_cast<int>(slot - slots_.data());
  const auto& answer_of_rank = memory_of_rank_[static_cast<size_t>(lender_.world_rank)]->answers[found.slot];
  for (size_t i = 0; i < readers.size(); ++i) {
    if (is_here(readers[i])) continue;
    const LentMemory::Answer& answer = answer_of_rank[readers[i]];
    // Pairs with the release in open(), of the reader's process.
    const bool has_come = answer.number.load(std::memory_order_acquire) == slot->number;
    const uint64_t begin = has_come ? answer.address.load(std::memory_order_relaxed) : 0;
    if (begin == 0) return {};
    found.address_of_reader[i] =
        reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(begin)) + (here - slot->allocation.begin);
  }
  const auto flight = static_cast<size_t>(flight_idx);
  slot->last_step_of_flight[flight] = num_steps_[flight];
  return found;
}

LentRows::Slot* LentRows::slot_of(const Allocation& allocation, const std::function<Status()>& wait) {
  for (Slot& slot : slots_)
    if (slot.number != 0 && slot.allocation.id == allocation.id) return &slot;
  if (std::find(refused_ids_.begin(), refused_ids_.end(), allocation.id) != refused_ids_.end())
    return nullptr;
  Slot* slot = free_slot();
  if (slot == nullptr || (slot->number != 0 && wait == nullptr)) return nullptr;
  // The driver may wait for the GPU here, so this comes once for each allocation that gets a slot.
  const Result<MemoryTicket> ticket = opener_->export_allocation(allocation);
  if (!ticket.ok()) {
    refused_ids_[num_refused_++ % refused_ids_.size()] = allocation.id;
    return nullptr;
  }
  // The others close what was in the slot when they find the new offer.
  if (slot->number != 0 && !wait().ok()) return nullptr;
  *slot = {.number = ++num_offers_,
           .allocation = allocation,
           .last_step_of_flight = std::vector<uint64_t>(num_steps_.size())};
  LentMemory::Offer& offer =
      memory_of_rank_[static_cast<size_t>(lender_.world_rank)]->offers[slot - slots_.data()];
  // Who reads the ticket between these two finds another number behind it.
  offer.number.store(0, std::memory_order_seq_cst);
  for (size_t i = 0; i < ticket.value().size(); ++i)
    offer.ticket[i].store(ticket.value()[i], std::memory_order_release);
  // Publishes the ticket; pairs with the acquire in open(), of the other processes.
  offer.number.store(slot->number, std::memory_order_release);
  return slot;
}

// One that was never used, or else the one that has not been used for longest.
LentRows::Slot* LentRows::free_slot() {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.number == 0) return &slot;
    if (slot.is_kept || may_be_read(slot)) continue;
    if (oldest == nullptr || slot.last_call < oldest->last_call) oldest = &slot;
  }
  return oldest == nullptr || num_calls_ - oldest->last_call <= kIdleCalls ? nullptr : oldest;
}

// Also when all calls of this rank have ended: unless it awaits its readers, its combine ends with its own
// sums, not with those of others.
bool LentRows::may_be_read(const Slot& slot) const {
  for (size_t flight = 0; flight < num_steps_.size(); ++flight)
    if (slot.last_step_of_flight[flight] != 0 && slot.last_step_of_flight[flight] == num_steps_[flight])
      return true;
  return false;
}

void LentRows::answer() {
  for (size_t rank = 0; rank < memory_of_rank_.size(); ++rank) {
    if (is_here(static_cast<int>(rank))) continue;
    LentMemory& memory = *memory_of_rank_[rank];
    for (size_t slot = 0; slot < LentMemory::kSlots; ++slot)
      open(memory.offers[slot], opened_[rank][slot], memory.answers[slot][lender_.world_rank]);
  }
}

void LentRows::restart(std::span<const int> members) {
  for (size_t rank = 0; rank < opened_.size(); ++rank) {
    if (std::find(members.begin(), members.end(), static_cast<int>(rank)) != members.end()) continue;
    opened_[rank] = {};
    memory_of_rank_[rank] = nullptr;
  }
  for (Slot& slot : slots_) std::fill(slot.last_step_of_flight.begin(), slot.last_step_of_flight.end(), 0);
}

void LentRows::open(const LentMemory::Offer& offer, Opened& opened, LentMemory::Answer& answer) {
  // Of the ticket; pairs with the release in slot_of().
  const uint64_t number = offer.number.load(std::memory_order_acquire);
  if (number == 0 || number == opened.number) return;
  MemoryTicket ticket;
  for (size_t i = 0; i < ticket.size(); ++i) ticket[i] = offer.ticket[i].load(std::memory_order_acquire);
  if (offer.number.load(std::memory_order_acquire) != number) return;  // another one is being offered
  opened = {.number = number, .mapping = nullptr};
  Result<std::unique_ptr<SharedMapping>> mapping = opener_->open_allocation(ticket);
  if (mapping.ok()) opened.mapping = std::move(mapping).value();
  const void* address = opened.mapping == nullptr ? nullptr : opened.mapping->data();
  answer.address.store(reinterpret_cast<uintptr_t>(address), std::memory_order_relaxed);
  // Publishes the address, and that the memory is open; pairs with the acquire in find().
  answer.number.store(number, std::memory_order_release);
}

}  // namespace switchyard

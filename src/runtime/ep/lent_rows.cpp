#include "lent_rows.hpp"

#include <algorithm>

namespace switchyard {

LentRows::LentRows(std::unique_ptr<MemoryOpener> opener, int my_rank, std::vector<LentMemory*> memory_of_rank)
    : opener_(std::move(opener)),
      my_rank_(my_rank),
      memory_of_rank_(std::move(memory_of_rank)),
      opened_(memory_of_rank_.size()) {}

std::optional<LentRows::Addresses> LentRows::find(const void* rows, std::span<const int> readers,
                                                  bool is_recorded, const std::function<Status()>& wait) {
  ++num_calls_;
  const auto is_here = [&](int rank) {
    return rank == my_rank_ || memory_of_rank_[static_cast<size_t>(rank)] == nullptr;
  };
  const auto* here = static_cast<const std::byte*>(rows);
  if (std::all_of(readers.begin(), readers.end(), is_here)) return Addresses(readers.size(), here);
  const Result<Allocation> allocation = opener_->allocation_of(rows);
  if (!allocation.ok()) return {};
  Slot* slot = slot_of(allocation.value(), wait);
  if (slot == nullptr) return {};
  slot->last_call = num_calls_;
  const auto number = static_cast<size_t>(slot - slots_.data());
  Addresses addresses;
  for (const int rank : readers) {
    if (is_here(rank)) {
      addresses.push_back(here);
      continue;
    }
    const LentMemory::Answer& answer = memory_of_rank_[static_cast<size_t>(my_rank_)]->answers[number][rank];
    // Pairs with the release in open(), of the reader's process.
    const bool has_come = answer.number.load(std::memory_order_acquire) == slot->number;
    const uint64_t begin = has_come ? answer.address.load(std::memory_order_relaxed) : 0;
    if (begin == 0) return {};
    addresses.push_back(reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(begin)) +
                        (here - slot->allocation.begin));
  }
  slot->is_kept |= is_recorded;
  return addresses;
}

LentRows::Slot* LentRows::slot_of(const Allocation& allocation, const std::function<Status()>& wait) {
  for (Slot& slot : slots_)
    if (slot.number != 0 && slot.allocation.id == allocation.id) return &slot;
  if (std::find(refused_ids_.begin(), refused_ids_.end(), allocation.id) != refused_ids_.end())
    return nullptr;
  Slot* slot = free_slot(wait);
  if (slot == nullptr) return nullptr;
  // The driver may wait for the GPU here, so this comes once for each allocation that gets a slot.
  const Result<MemoryTicket> ticket = opener_->export_allocation(allocation);
  if (!ticket.ok()) {
    refused_ids_[num_refused_++ % refused_ids_.size()] = allocation.id;
    return nullptr;
  }
  *slot = {.number = ++num_offers_, .allocation = allocation};
  LentMemory::Offer& offer = memory_of_rank_[static_cast<size_t>(my_rank_)]->offers[slot - slots_.data()];
  // Who reads the ticket between these two finds another number behind it.
  offer.number.store(0, std::memory_order_seq_cst);
  for (size_t i = 0; i < ticket.value().size(); ++i)
    offer.ticket[i].store(ticket.value()[i], std::memory_order_release);
  // Publishes the ticket; pairs with the acquire in open(), of the other processes.
  offer.number.store(slot->number, std::memory_order_release);
  return slot;
}

// One that was never used, or else the one that has not been used for longest.
LentRows::Slot* LentRows::free_slot(const std::function<Status()>& wait) {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.number == 0) return &slot;
    if (!slot.is_kept && (oldest == nullptr || slot.last_call < oldest->last_call)) oldest = &slot;
  }
  if (oldest == nullptr || num_calls_ - oldest->last_call <= kIdleCalls) return nullptr;
  // The others close the old one when they find the new one.
  return wait().ok() ? oldest : nullptr;
}

void LentRows::answer() {
  for (size_t rank = 0; rank < memory_of_rank_.size(); ++rank) {
    LentMemory* memory = memory_of_rank_[rank];
    if (memory == nullptr || static_cast<int>(rank) == my_rank_) continue;
    for (size_t slot = 0; slot < LentMemory::kSlots; ++slot)
      open(memory->offers[slot], opened_[rank][slot], memory->answers[slot][my_rank_]);
  }
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

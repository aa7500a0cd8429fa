#include "mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <thread>

namespace switchyard {
namespace {

constexpr size_t kPieceBytes = 2032;
constexpr size_t kReasonBytes = 496;

enum FarewellState : uint64_t { kPresent = 0, kLeftInOrder = 1, kFailed = 2 };

uint64_t load_acquire(const uint64_t& cell) { return __atomic_load_n(&cell, __ATOMIC_ACQUIRE); }

// Polls fast at first, then leaves the core to the wire thread and to others.
template <typename Done>
bool poll_until(const Deadline& deadline, Done done) {
  auto pause = std::chrono::microseconds(10);
  while (!done()) {
    if (deadline.has_passed()) return false;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(500));
  }
  return true;
}

}  // namespace

// A piece of the message of a PE in one round; `round` arrives behind the rest.
struct Mailbox::Letter {
  uint64_t message_bytes;
  std::byte piece[kPieceBytes];
  uint64_t round;
};

struct Mailbox::Farewell {
  char reason[kReasonBytes];
  uint64_t size;
  uint64_t state;  // arrives behind the rest
};

// A letter of each PE, and the one that this PE sends, for even and for odd rounds; and the same of
// farewells. Two rounds are enough: a PE sends its letter of round i + 2 when it has those of round i + 1 of
// all others, and each of these has read round i before.
uint64_t Mailbox::bytes(int n_pes) {
  return (static_cast<uint64_t>(n_pes) + 1) * (2 * sizeof(Letter) + sizeof(Farewell));
}

Mailbox::Mailbox(WireThread& wire, std::byte* memory, int my_pe, int n_pes)
    : wire_(wire), memory_(memory), my_pe_(my_pe), n_pes_(n_pes) {}

Mailbox::Letter& Mailbox::letter_of(int pe, uint64_t round) const {
  const size_t index = (round % 2) * static_cast<size_t>(n_pes_ + 1) + static_cast<size_t>(pe);
  return reinterpret_cast<Letter*>(memory_)[index];
}

Mailbox::Farewell& Mailbox::farewell_of(int pe) const {
  std::byte* farewells = memory_ + 2 * static_cast<size_t>(n_pes_ + 1) * sizeof(Letter);
  return reinterpret_cast<Farewell*>(farewells)[pe];
}

Status Mailbox::farewell_error(int pe) const {
  const Farewell& farewell = farewell_of(pe);
  const std::string reason(farewell.reason, std::min<uint64_t>(farewell.size, kReasonBytes));
  return unavailable("rank %d has left%s%s", pe, reason.empty() ? "" : ": ", reason.c_str());
}

Status Mailbox::exchange(const Bytes& mine, size_t offset, const Deadline& deadline) {
  ++round_;
  Letter& outgoing = letter_of(n_pes_, round_);
  outgoing.message_bytes = mine.size();
  const size_t size = offset < mine.size() ? std::min(kPieceBytes, mine.size() - offset) : 0;
  if (size > 0) std::memcpy(outgoing.piece, mine.data() + offset, size);
  Letter& at_peer = letter_of(my_pe_, round_);
  const auto each_peer = [&](auto function) {
    for (int i = 1; i < n_pes_; ++i) function((my_pe_ + i) % n_pes_);
  };
  each_peer([&](int pe) { wire_.put(pe, &at_peer, &outgoing, offsetof(Letter, piece) + size); });
  wire_.settle();
  each_peer([&](int pe) { wire_.signal(pe, &at_peer.round, round_); });
  return wait_for_letters(deadline);
}

// A PE that left in order behind its letter does not matter; one that failed has told why all do.
Status Mailbox::wait_for_letters(const Deadline& deadline) const {
  int missing = -1;
  Status absence;
  const auto look = [&] {
    missing = -1;
    for (int i = 1; i < n_pes_; ++i) {
      const int pe = (my_pe_ + i) % n_pes_;
      // In this order: a farewell arrives behind the letters that were sent before it.
      const uint64_t state = load_acquire(farewell_of(pe).state);
      const bool has_come = load_acquire(letter_of(pe, round_).round) == round_;
      if (!has_come) missing = pe;
      if (state == kFailed || (state == kLeftInOrder && !has_come)) absence = farewell_error(pe);
    }
    return missing < 0 || !absence.ok();
  };
  const bool is_over = poll_until(deadline, look);
  if (missing < 0) return Status();
  if (is_over) return absence;
  return Status(StatusCode::kDeadlineExceeded, "rank " + std::to_string(missing) + " did not answer in time");
}

Result<std::vector<Bytes>> Mailbox::all_gather(const Bytes& mine, const Deadline& deadline) {
  std::vector<Bytes> all(static_cast<size_t>(n_pes_));
  all[static_cast<size_t>(my_pe_)] = mine;
  uint64_t longest = mine.size();
  for (size_t offset = 0; failure_.ok(); offset += kPieceBytes) {
    if (Status status = exchange(mine, offset, deadline); !status.ok()) {
      failure_ = std::move(status);
      leave(/*in_order=*/false, failure_.message());
      break;
    }
    for (int pe = 0; pe < n_pes_; ++pe) {
      if (pe == my_pe_) continue;
      const Letter& letter = letter_of(pe, round_);
      Bytes& message = all[static_cast<size_t>(pe)];
      longest = std::max(longest, letter.message_bytes);
      const size_t size = std::min<uint64_t>(kPieceBytes, letter.message_bytes - message.size());
      message.insert(message.end(), letter.piece, letter.piece + size);
    }
    if (offset + kPieceBytes >= longest) return all;
  }
  return failure_;
}

void Mailbox::leave(bool in_order, const std::string& reason) {
  if (std::exchange(has_left_, true)) return;
  Farewell& outgoing = farewell_of(n_pes_);
  outgoing.size = std::min(reason.size(), kReasonBytes);
  std::memcpy(outgoing.reason, reason.data(), outgoing.size);
  outgoing.state = in_order ? kLeftInOrder : kFailed;
  Farewell& at_peer = farewell_of(my_pe_);
  at_peer.state = outgoing.state;
  for (int pe = 0; pe < n_pes_; ++pe)
    if (pe != my_pe_) wire_.put(pe, &at_peer, &outgoing, offsetof(Farewell, state));
  wire_.settle();
  for (int pe = 0; pe < n_pes_; ++pe)
    if (pe != my_pe_) wire_.signal(pe, &at_peer.state, outgoing.state);
}

bool Mailbox::wait_until_all_have_left(const Deadline& deadline) const {
  const auto num_in = [&](FarewellState state) {
    int count = 0;
    for (int pe = 0; pe < n_pes_; ++pe) count += load_acquire(farewell_of(pe).state) == state ? 1 : 0;
    return count;
  };
  (void)poll_until(deadline, [&] { return num_in(kFailed) > 0 || num_in(kLeftInOrder) == n_pes_; });
  return num_in(kLeftInOrder) == n_pes_;
}

}  // namespace switchyard

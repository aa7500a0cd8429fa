// How PEs agree on things without a call of SHMEM that waits for ever: each has a box in symmetric memory
// into which the others put. Host only: CUDA's symmetric memory is not for the host to read.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "switchyard/detail/transport/transport.hpp"
#include "transport/deadline.hpp"
#include "wire_thread.hpp"

namespace switchyard {

class Mailbox {
 public:
  // What a box needs of symmetric memory, which must be zero before any PE uses its box.
  static uint64_t bytes(int n_pes);
  Mailbox(WireThread& wire, std::byte* memory, int my_pe, int n_pes);

  // Gives every PE what each has given, in their order. Fails by the deadline, with the name of a PE that did
  // not answer, or as soon as one has failed, or has left whose message has not come; from then on every call
  // fails.
  Result<std::vector<Bytes>> all_gather(const Bytes& mine, const Deadline& deadline);

  // Tells all others that this PE gives nothing from now on: it ends in order, or something has failed.
  void leave(bool in_order, const std::string& reason);
  // Waits until all PEs have left, this one included; false: one of them not in order, or not by the
  // deadline.
  bool wait_until_all_have_left(const Deadline& deadline) const;

 private:
  // Symmetric addresses of what the others put here.
  struct Letter;
  struct Farewell;
  Letter& letter_of(int pe, uint64_t round) const;
  Farewell& farewell_of(int pe) const;
  // One round: every PE gives a piece of its message.
  Status exchange(const Bytes& mine, size_t offset, const Deadline& deadline);
  Status wait_for_letters(const Deadline& deadline) const;
  Status farewell_error(int pe) const;

  WireThread& wire_;
  std::byte* const memory_;
  const int my_pe_;
  const int n_pes_;
  uint64_t round_ = 0;
  Status failure_;
  bool has_left_ = false;
};

}  // namespace switchyard

// A SHMEM whose PEs are threads of one process, for tests of what is built on it: puts and signals arrive
// late and in any order that a fence allows.
#pragma once

#include <cstdint>
#include <functional>

#include "switchyard/detail/transport/shmem_api.hpp"

namespace switchyard::testing_support {

struct FakeShmemOptions {
  int n_pes = 2;
  int group = 1;                   // PEs of one group reach each other's memory by loads and stores
  uint64_t heap_bytes = 16 << 20;  // of each PE
  uint32_t seed = 1;               // of the order in which puts arrive
  bool fence_orders = true;        // false: a SHMEM that breaks its promise
  bool makes_ids = true;           // for processes without a launcher
};

// One at a time: the table has no place for a context. A PE is whoever calls init(), in that order.
class FakeShmem {
 public:
  explicit FakeShmem(const FakeShmemOptions& options);
  ~FakeShmem();
  FakeShmem(const FakeShmem&) = delete;
  FakeShmem& operator=(const FakeShmem&) = delete;

  const ShmemApi& api() const;
  int num_finalized() const;
  int num_abandoned() const;
  int num_released() const;
  // What a PE has put into symmetric memory, other than what it allocated first: the mailbox of agreements.
  uint64_t bytes_put_beside_mailbox(int pe) const;

  struct State;

 private:
  State* const state_;
};

// Runs `body(i)` in `count` threads.
void in_threads(int count, const std::function<void(int i)>& body);

}  // namespace switchyard::testing_support

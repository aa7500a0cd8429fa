// Transport: how the ranks of a world reach each other's memory, and how their processes agree on things.
// One kind serves a world whose ranks are all in this process; others carry rows between processes.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "switchyard/status.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard {

struct KernelTable;  // detail/launch/kernel_table.hpp
namespace emulator {
class WireEngine;  // detail/target/host_wire.hpp
}

using Bytes = std::vector<std::byte>;

// Memory that every rank has with the same size and layout: what lies at an offset in one rank's lies at the
// same offset in every other's. It is zeroed when it is made, and freed with the object, on this process's
// side only: a peer's mapping of it stays valid.
class SymmetricMemory {
 public:
  virtual ~SymmetricMemory() = default;

  // Where the memory of a rank can be loaded from and stored to by kernels of this process; null: it cannot.
  // Aligned to 256 bytes.
  virtual std::byte* of_rank(int rank) const = 0;
  // The part that the hosts of all ranks on this machine can read while kernels run; null as above.
  virtual std::byte* host_visible_of_rank(int rank) const = 0;
  // Host: what carries puts and signals between these memories where loads and stores do not reach. Null:
  // they reach everywhere.
  virtual emulator::WireEngine* wire_engine() const { return nullptr; }
};

class Transport {
 public:
  virtual ~Transport() = default;

  // "local", "process", "shmem".
  virtual const char* name() const = 0;
  // Of the whole world, and those of this process: [first_local_rank(), first_local_rank() +
  // num_local_ranks()).
  virtual int n_ranks() const = 0;
  virtual int first_local_rank() const = 0;
  virtual int num_local_ranks() const = 0;
  bool is_local(int rank) const {
    return rank >= first_local_rank() && rank < first_local_rank() + num_local_ranks();
  }
  // How many ranks, of whatever process, run on the device of a local rank, itself included.
  virtual int num_ranks_on_device_of(int rank) const = 0;

  // Whether loads and stores of `rank` reach the memory of `peer`; every process has the same answer.
  virtual bool reaches(int, int) const { return true; }

  // The calls below are collective: every process that has one of `members` makes the same calls in the same
  // order, from one thread at a time. Each fails by the deadline given when the world was joined, with an
  // error that names a member that did not answer, or with kUnavailable if one is known to have ended or has
  // left. What fails at one member fails, with the same error, at all that have not completed the call.

  // Gives every process what each process of a member has given, in the order of `members`; all local ranks
  // give the same.
  virtual Result<std::vector<Bytes>> all_gather(std::span<const int> members, const Bytes& mine) = 0;
  // Returns when all members have called it, and everything that they put before has arrived.
  virtual Status barrier(std::span<const int> members) = 0;
  // `bytes` of device memory, and `host_visible_bytes` beside it, for each member.
  virtual Result<std::unique_ptr<SymmetricMemory>> allocate(std::span<const int> members, uint64_t bytes,
                                                            uint64_t host_visible_bytes) = 0;

  // CUDA: kernels that use the wire of this transport (their `wired` ones); null: those of the library, whose
  // wire is stores.
  virtual const KernelTable* wired_kernels() const { return nullptr; }

  // Ranks whose process is known to have ended, in order; empty on a transport that cannot know.
  virtual std::vector<int> dead_ranks() const = 0;
  // Ranks whose process is being ended, whether or not dead_ranks() has them already; empty as above.
  virtual std::vector<int> ending_ranks() const { return {}; }
  // How long it may take until ending_ranks() has a rank whose process is being killed; 0: it never will.
  virtual std::chrono::milliseconds death_notice() const { return {}; }
  // Waits until nothing is left of the process of a dead rank: it may be known as dead before the driver has
  // ended its kernels. Fails by the deadline.
  virtual Status wait_for_end_of(int) { return Status(); }
  // Calls `on_death(rank)` for each rank whose process ends, from a thread of the transport, at most once per
  // rank, until the handle is dropped; for ranks that are dead already before the call returns.
  virtual std::shared_ptr<void> watch(std::function<void(int rank)> on_death) = 0;
  // Says that a step has failed: a peer may be gone, so that this process need not wait for it when it
  // leaves. An agreement that succeeds takes this back.
  virtual void note_failure(const Status&) {}
};

// What the plugin that has a SHMEM for the target says of itself, or why there is none.
Result<std::string> describe_shmem(Target target);

}  // namespace switchyard

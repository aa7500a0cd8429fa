// What the library's own code, its command, benchmarks and tests know of a World and a Rank beyond the
// contract.
#pragma once

#include <memory>

#include "switchyard/world.hpp"

namespace switchyard {

class MemoryOpener;
class Transport;

struct Internals {
  static Device& device(const Rank& rank) { return rank.device_; }
  static const KernelTable& kernels(const Rank& rank) { return rank.kernels_; }
  static Transport& transport(const World& world);
  static Status check_process(const World& world, const char* call);
  static std::unique_ptr<MemoryOpener> make_memory_opener(const World& world, const Rank& rank);
};

inline Device& device_of(const Rank& rank) { return Internals::device(rank); }
// The library's kernels, for Rank::launch().
inline const KernelTable& kernel_table(const Rank& rank) { return Internals::kernels(rank); }
inline Transport& transport_of(const World& world) { return Internals::transport(world); }
// An error in a fork of the process that made the world. What asks other processes asks this first.
inline Status check_process(const World& world, const char* call) {
  return Internals::check_process(world, call);
}

}  // namespace switchyard

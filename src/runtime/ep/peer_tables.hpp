// Where a rank finds its peers: addresses that its kernels need, in the memory of its device.
#pragma once

#include <vector>

#include "switchyard/detail/device/device.hpp"
#include "switchyard/detail/ep/params.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

struct PeerTables {
  std::byte* const* arena_of_rank;  // null: reached over the wire only
  uint64_t* const* poison_of_rank;  // the same
  Wire wire;

  // What the tables of so many ranks take.
  static uint64_t bytes(int n_ranks) { return 3 * static_cast<uint64_t>(n_ranks) * sizeof(std::byte*); }
  // Copies the tables to `memory`, which it allocates at the first call: graphs keep the address. Later calls
  // have no more ranks. `arenas` are those of all ranks; ranks that are not `is_near` are reached over the
  // wire.
  static Result<PeerTables> upload(const Rank& owner, int rank, const std::vector<std::byte*>& arenas,
                                   const std::vector<bool>& is_near, uint64_t poison_offset,
                                   DeviceMemory& memory);
};

}  // namespace switchyard

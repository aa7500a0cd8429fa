// What every collective call of a transport asks of its members.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <span>

#include "switchyard/detail/transport/transport.hpp"

namespace switchyard {

// Members are different ranks of the world, at least one of them local.
inline Status check_members(std::span<const int> members, const Transport& transport) {
  bool has_local = false;
  for (ptrdiff_t i = 0; i < std::ssize(members); ++i) {
    const int rank = members[static_cast<size_t>(i)];
    if (rank < 0 || rank >= transport.n_ranks())
      return invalid_argument("member %d; it must be 0..%d", rank, transport.n_ranks() - 1);
    if (std::find(members.begin(), members.begin() + i, rank) != members.begin() + i)
      return invalid_argument("member %d is given twice", rank);
    has_local = has_local || transport.is_local(rank);
  }
  if (!has_local) return invalid_argument("none of %zu members is a rank of this process", members.size());
  return Status();
}

}  // namespace switchyard

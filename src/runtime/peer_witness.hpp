// Who among some ranks has ended, for whoever loses its context on a GPU with them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "switchyard/detail/base/lost_context.hpp"
#include "switchyard/detail/transport/transport.hpp"

namespace switchyard {

// Names those of `members`, ranks of the transport's world, by their number among them.
inline std::unique_ptr<DeathWitness> make_peer_witness(const Transport& transport, std::vector<int> members) {
  auto who_has_ended = [&transport, members = std::move(members)]() -> std::string {
    const std::vector<int> ending = transport.ending_ranks();
    for (size_t rank = 0; rank < members.size(); ++rank)
      for (const int ending_rank : ending)
        if (ending_rank == members[rank]) return "rank " + std::to_string(rank);
    return "";
  };
  return std::make_unique<DeathWitness>(std::move(who_has_ended), transport.death_notice());
}

}  // namespace switchyard

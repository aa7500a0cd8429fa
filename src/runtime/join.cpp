// World::join(): checks the options, makes the device, and meets the processes of the other ranks.
#include "world_impl.hpp"

namespace switchyard {

Result<std::unique_ptr<World>> World::join(const JoinOptions&) {
  return unavailable("join: this build has no transport between processes");
}

}  // namespace switchyard

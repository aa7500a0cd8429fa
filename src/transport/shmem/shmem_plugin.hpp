// Finds and loads the plugin that has a SHMEM (detail/transport/shmem_api.hpp).
#pragma once

#include "switchyard/detail/transport/shmem_api.hpp"
#include "switchyard/status.hpp"
#include "switchyard/types/target.hpp"

namespace switchyard {

// The table of the target's plugin, which stays loaded. No plugin is kUnavailable, with what to do about it;
// one of another version is kFailedPrecondition.
Result<const ShmemApi*> load_shmem_plugin(Target target);

// Whether a table is one that this library can use for the target; `source` is where it comes from.
Status check_shmem_api(const ShmemApi* api, Target target, const char* source);

}  // namespace switchyard

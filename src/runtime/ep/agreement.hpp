// What the processes of a world agree on before they exchange rows.
#pragma once

#include <span>

#include "ep_config.hpp"
#include "switchyard/detail/transport/transport.hpp"

namespace switchyard {

// One configuration serves all ranks, so all of it must be the same: that of `rank`, and this one's.
Status check_same(const ExpertParallelConfig& mine, int my_rank, const ExpertParallelConfig& theirs,
                  int rank);

// Whether all members have the same configuration; if not, the error says which field differs on which rank,
// with both values, and is the same kind of error on all sides. Collective.
Status agree_on(Transport& transport, std::span<const int> members, const ExpertParallelConfig& config);

// Whether all members have got as far without an error: a member that has not is named on all sides.
// Collective.
Status agree_that(Transport& transport, std::span<const int> members, const Status& mine);

}  // namespace switchyard

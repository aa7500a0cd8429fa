// The traces of ranks that ran in processes of their own, as one.
#pragma once

#include <string>
#include <vector>

#include "switchyard/status.hpp"

namespace switchyard::tools {

// Of what `run --trace` wrote in each process; processes that wrote nothing have none. All ranks of a host,
// or of one GPU, have one clock: the trace begins with the first event of any rank.
Result<std::string> merge_traces(const std::vector<std::string>& traces);

}  // namespace switchyard::tools

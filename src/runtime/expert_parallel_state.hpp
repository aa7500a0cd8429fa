// What ExpertParallel keeps of each rank; for the files that implement it.
#pragma once

#include <optional>

#include "ep_config.hpp"
#include "exchange_memory.hpp"
#include "switchyard/detail/runtime/trace_recorder.hpp"
#include "switchyard/expert_parallel.hpp"
#include "switchyard/row_readiness.hpp"

namespace switchyard {

struct ExpertParallel::RankState {
  ExchangeMemory memory;
  std::optional<TraceRecorder> trace;
  Step step = Step::kIdle;
  int num_tokens = 0;                 // of the step under way
  const void* expert_rows = nullptr;  // of its combine_async
  Status failure;
};

}  // namespace switchyard

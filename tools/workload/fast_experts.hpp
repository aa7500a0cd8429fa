// The experts of `switchyard run --matmul fast`: two GroupedMatmuls per rank, with the activation fused into
// the first.
#pragma once

#include <memory>
#include <vector>

#include "switchyard/expert_parallel.hpp"
#include "switchyard/grouped_matmul.hpp"
#include "workload.hpp"

namespace switchyard::tools {

// Rounds all weights to what e4m3 codes with a power of two as scale for each 128 x 128 can hold. bf16 holds
// these numbers, too: reference and kernels then have the same weights.
void round_to_fp8(reference::MlpExperts& experts);

// The experts of a rank: those at its seats, and behind the shared one, if it has one. A matrix of each.
int num_matrices(const ExpertParallel& ep);

class FastExperts {
 public:
  // The weights of each rank's groups go to its memory: bf16, or fp8 if they were rounded so. `max_rows`: the
  // rows that dispatch has memory for.
  static Result<std::unique_ptr<FastExperts>> create(World& world, const ExpertParallel& ep,
                                                     const reference::MlpExperts& experts,
                                                     const MatmulRows& rows, uint32_t max_rows);

  // rows: [max_rows][hidden], with scales as dispatch writes them.
  // Where the rows of each group begin, and how many there are.
  struct Groups {
    const uint32_t* row_offsets;
    const uint32_t* row_counts;
  };
  Status gate_up(int rank, const void* rows, const void* row_scales, const Groups& groups);
  Status down(int rank, const Groups& groups, bf16* output);

 private:
  struct Weights {
    Buffer<uint8_t> elements;
    Buffer<float> scales;  // fp8
  };
  struct RankState {
    Weights gate_up_weights, down_weights;
    Buffer<uint8_t> activated;
    Buffer<float> activated_scales;
    std::unique_ptr<GroupedMatmul> gate_up, down;
  };

  static Status make_matmuls(Rank& rank, GroupedMatmulShape shape, RankState& state);

  std::vector<RankState> ranks_;
};

}  // namespace switchyard::tools

// Grouped matmul over rows of bf16 or blockwise fp8, as dispatch leaves them: each group's rows times the
// weights of its expert. Persistent blocks stream tiles (gemm/tiled/). A GroupedMatmul is made once for a
// shape, checks it and keeps what its launches need; run() only launches, so it can be recorded as a graph.
// How many rows each group has is read on the device.
#pragma once

#include <memory>
#include <optional>

#include "switchyard/detail/launch/matmul_kernels.hpp"
#include "switchyard/world.hpp"

namespace switchyard {

struct GroupedMatmulShape {
  int num_groups = 1;
  int num_experts = 0;                           // of the weights; 0: as many as groups
  MatmulElement element = MatmulElement::kBF16;  // of rows and weights; the output is bf16
  int inner = 0;                                 // K, a multiple of 8; of fp8, 16
  int columns = 0;                               // N, a multiple of 8
  int64_t max_rows = 0;                          // of all groups together: rows that the tensors hold
  // Group g begins at row g * group_capacity (masked: counts come with the tensors); 0: by row_offsets.
  int64_t group_capacity = 0;
  // What the tuning is chosen for; 0: max_rows / num_groups.
  int64_t expected_rows_per_group = 0;
  int num_blocks = 0;                  // a budget; 0: one per multiprocessor
  std::optional<MatmulTuning> tuning;  // none: chosen
};

// In memory of the rank's device, 16-byte aligned, without gaps.
struct GroupedMatmulTensors {
  const void* rows = nullptr;             // [max_rows][K]
  const void* weights = nullptr;          // [expert][N][K]
  bf16* output = nullptr;                 // [max_rows][N]; rows of no group are left as they are
  const uint32_t* row_offsets = nullptr;  // [num_groups + 1]; [num_groups] with row_counts
  const uint32_t* row_counts = nullptr;   // [num_groups]; null: a group ends where the next one begins
  const int32_t* expert_ids = nullptr;    // [num_groups]; null: group g has the weights of expert g
  // fp8: element = code * scale. [ceil(K / 128)][max_rows rounded up to 4], as dispatch in fp8 leaves them;
  // and [expert][ceil(N / 128)][ceil(K / 128)].
  const float* row_scales = nullptr;
  const float* weight_scales = nullptr;
};

class GroupedMatmul {
 public:
  // `rank` must outlive the object.
  static Result<std::unique_ptr<GroupedMatmul>> create(Rank& rank, const GroupedMatmulShape& shape);

  // Launches on the rank's stream and returns. One launch of a GroupedMatmul at a time. An output is the sum
  // over K of exact products, in fp32, in an order of the target's, rounded once to bf16; it has the same
  // bits from run to run and for every number of blocks. (Of fp8 the matrix unit adds up 128 products with
  // fewer bits than fp32 has; all else is in fp32.)
  Status run(const GroupedMatmulTensors& tensors);

  const GroupedMatmulShape& shape() const { return shape_; }
  const MatmulTuning& tuning() const { return kernel_.tuning; }
  uint32_t num_blocks() const { return num_blocks_; }  // of a launch: whole pairs where they work so

 private:
  GroupedMatmul(Rank& rank, const GroupedMatmulShape& shape, const MatmulKernel& kernel, uint32_t num_blocks);
  Status check_tensors(const GroupedMatmulTensors& tensors) const;

  Rank& rank_;
  const GroupedMatmulShape shape_;
  const MatmulKernel& kernel_;
  const uint32_t num_blocks_;
  Buffer<uint32_t> queue_;
};

}  // namespace switchyard

// The parameters of the tiled grouped matmul.
#pragma once

#include "switchyard/detail/base/checked.hpp"
#include "switchyard/detail/base/prefetched_memory.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/matmul_epilogue.hpp"

namespace switchyard {

// Where the rows of each group lie, read on the device. Ragged: offsets. Aligned: offsets of where groups
// begin, and counts. Masked: counts, and a capacity.
struct GroupRows {
  const uint32_t* row_offsets = nullptr;  // [num_groups + 1], or [num_groups] with counts; null: by capacity
  const uint32_t* row_counts = nullptr;   // [num_groups]; null: a group ends where the next one begins
  uint32_t capacity = 0;                  // without offsets: group g begins at row g * capacity
  uint32_t num_groups = 0;
  uint32_t max_rows = 0;  // that the tensors hold; rows beyond are not read
};

// Rows that the kernel decodes to bf16 itself. Their sizes are those of MatmulSettings.
struct RowCodes {
  TokenFormatKind format = TokenFormatKind::kBF16;
  FormatTensors tensors;
  // NVFP4: of the groups from first_scaled_group on; the rows of the others have tensors.tensor_scale. Null:
  // all rows have that.
  const float* group_tensor_scales = nullptr;
  uint32_t first_scaled_group = 0;
};

struct MatmulSettings {
  GroupRows groups;
  const int32_t* expert_ids = nullptr;  // [num_groups]; null: group g has the weights of expert g
  // fp8: words of a float, or of four e8m0 codes, each. Word w of a row is at
  // row * row_scale_row_stride + w * row_scale_word_stride. And float [expert][ceil(N / 128)][ceil(K / 128)].
  const uint32_t* row_scales = nullptr;
  uint32_t row_scale_row_stride = 1, row_scale_word_stride = 0;
  MatmulRowScales row_scale_kind = MatmulRowScales::kFloat;
  // Of coded weights: a byte each, [expert][N][K / scale group].
  const void* weight_scales = nullptr;
  uint32_t num_experts = 0;  // of the weights
  uint32_t inner = 0;        // K, a multiple of 8; of fp8, 16; of coded weights, inner_multiple_of() them
  uint32_t columns = 0;      // N, a multiple of 8
  // [rows][N]; with an activation [rows][N / 2], of fp8 codes, too; or rows as a combine in fp8 takes them.
  bf16* output = nullptr;
  uint32_t* queue = nullptr;  // a word that is 0 before and after every launch
  // What only some epilogues read.
  const float* bias = nullptr;         // [num_experts][N], or null
  const float* row_weights = nullptr;  // [rows], or null
  ActivationNumbers activation;
  GateLayout gate_layout = GateLayout::kStacked;
  float* output_scales = nullptr;  // [ceil(N / 2 / 128)][output_scale_stride]
  uint32_t output_scale_stride = 0;
  const float* weight_tensor_scales = nullptr;  // of coded weights: [num_experts], or null
  PrefetchedMemory prefetched;                  // the first of the weights
};

}  // namespace switchyard

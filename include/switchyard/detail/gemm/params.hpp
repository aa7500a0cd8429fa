// The parameters of the kernels that compute on dispatched rows.
#pragma once

#include <cstdint>

#include "switchyard/token_format.hpp"
#include "switchyard/types/bf16.hpp"

namespace switchyard {

struct GroupedMatmulParams {
  int32_t num_groups;
  int32_t inner;                // K, of any size
  int32_t columns;              // N, a multiple of 8
  const bf16* rows;             // [rows][K]
  const bf16* weights;          // [experts][K][N]
  const uint32_t* row_offsets;  // [num_groups + 1]
  const uint32_t* row_counts;   // [num_groups]; null: a group ends where the next one begins
  const int32_t* expert_ids;    // [num_groups]
  bf16* output;                 // [rows][N]
};

// The rows that silu_mul reads.
struct SiluMulInput {
  int32_t num_groups;
  int32_t width;                // of gate, of up, and of the output
  const bf16* gate_up;          // [rows][2 * width]: gate, then up
  const uint32_t* row_offsets;  // [num_groups + 1]; the last one is the number of rows
};

// Where silu(gate) * up is stored, and as what (docs/formats.md).
struct SiluMulDestination {
  TokenFormatKind format = TokenFormatKind::kBF16;
  void* rows = nullptr;    // [rows][width]: bf16, or codes without gaps
  void* scales = nullptr;  // as the format places them
  // Transposed scales: rows the tensors hold.
  uint32_t max_rows = 0;
  // Tiled scales, [num_groups]: the scale row of each group's first row, as dispatch exports it; null: row r
  // has scale row r.
  const uint32_t* scale_row_offsets = nullptr;
  // NVFP4: the tensor scale, or, if this is not null, the tensor scale of each group, [num_groups].
  float tensor_scale = 1.0f;
  const float* group_tensor_scales = nullptr;
};

// Rows in one of the token formats, to be converted to bf16 or blockwise fp8 (e4m3).
struct RecodeCall {
  TokenFormatKind format;
  int32_t hidden;  // a multiple of 16; of 128 where fp8 comes in or goes out
  FormatTensors input;
  int32_t num_groups;
  const uint32_t* row_offsets;       // [num_groups + 1]; the last one is the number of rows
  const float* group_tensor_scales;  // NVFP4 by expert: [num_groups]
  CombineFormat output_format;
  void* output;  // [rows], as combine takes them from the experts
};

}  // namespace switchyard

// The parameters of the kernels that compute on dispatched rows.
#pragma once

#include <cstdint>

#include "switchyard/base/bf16.hpp"

namespace switchyard {

struct GroupedMatmulParams {
  int32_t num_groups;
  int32_t inner;                // K, of any size
  int32_t columns;              // N, a multiple of 8
  const bf16* rows;             // [rows][K]
  const bf16* weights;          // [experts][K][N]
  const uint32_t* row_offsets;  // [num_groups + 1]
  const int32_t* expert_ids;    // [num_groups]
  bf16* output;                 // [rows][N]
};

struct SiluMulParams {
  int32_t num_groups;
  int32_t width;                // of gate, of up, and of the output
  const bf16* gate_up;          // [rows][2 * width]: gate, then up
  const uint32_t* row_offsets;  // [num_groups + 1]; the last one is the number of rows
  bf16* output;                 // [rows][width]
};

}  // namespace switchyard

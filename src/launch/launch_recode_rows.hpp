// What recode_kernels.cpp gives the table of kernels.
#pragma once

#include "switchyard/detail/gemm/params.hpp"
#include "switchyard/detail/target/target.hpp"

namespace switchyard::inline SWITCHYARD_TARGET {

Status launch_recode_rows(const LaunchShape& shape, StreamHandle stream, const RecodeCall& call);
Status load_recode_rows_kernels();  // CUDA only

}  // namespace switchyard::inline SWITCHYARD_TARGET

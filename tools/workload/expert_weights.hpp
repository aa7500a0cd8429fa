// The experts of a workload as the weights of a MoeLayer.
#pragma once

#include <vector>

#include "reference/reference.hpp"
#include "switchyard/moe_layer.hpp"

namespace switchyard::tools {

// Rounds all weights to what e4m3 codes with a power of two as scale for each 128 x 128 can hold. bf16 holds
// these numbers, too: reference and kernels then have the same weights.
void round_to_fp8(reference::MlpExperts& experts);

// The same to what coded weights can hold, times a tensor scale that is a power of two.
void round_to_codes(reference::MlpExperts& experts, WeightFormat format);

// Which of the reference's experts a rank holds, in the order of its matrices: the shared one, which is the
// reference's last, comes first, and behind it those at the rank's seats. An empty seat has any weights: no
// row goes there.
std::vector<size_t> experts_of_rank(const ExpertParallel& ep, int rank, int n_experts);

// The weights of one rank, in its memory: bf16, or fp8 or codes if they were rounded so.
class WeightTensors {
 public:
  // Memory for so many experts, which upload() fills.
  static Result<WeightTensors> create(const Rank& rank, MatmulElement element, WeightFormat format,
                                      int num_experts, int hidden, int width);
  Status upload(const reference::MlpExperts& experts, const std::vector<size_t>& of_rank);
  ExpertWeights pointers() const;

 private:
  struct Tensor {
    Buffer<uint8_t> elements;
    Buffer<float> scales;         // fp8
    Buffer<uint8_t> code_scales;  // coded weights
    Buffer<float> tensor_scales;  // NVFP4

    const void* scale_pointer(WeightFormat format) const {
      return is_coded(format) ? static_cast<const void*>(code_scales.data()) : scales.data();
    }
  };

  MatmulElement element_ = MatmulElement::kBF16;
  WeightFormat format_ = WeightFormat::kAsRows;
  Tensor gate_up_, down_;
};

}  // namespace switchyard::tools

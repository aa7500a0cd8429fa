// The tensors of a rank's tokens: what dispatch reads, and what combine writes, as engines have them. Tests,
// simulations and `switchyard run` give the library all kinds of them.
#pragma once

#include <string>
#include <vector>

#include "reference.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard::reference {

// How inputs and outputs are handed over.
struct TensorStyle {
  bool has_wide_ids = false;      // of 64 bits
  bool is_encoded = false;        // tokens come as codes and scales of the step's format
  bool has_device_scale = false;  // NVFP4: the input scale is in the rank's memory
  int gap_bytes = 0;              // between tokens, and between rows of the output: a multiple of 16

  // What is special; empty: nothing.
  std::string describe() const;
};

// The step with tokens that come encoded: its own, in its format.
Step with_encoded_tokens(Step step);

class TokenTensors {
 public:
  // Memory for so many tokens. rows_per_token: of the output, 1 unless it is unreduced.
  static Result<TokenTensors> create(const Rank& rank, const Step& step, int max_tokens,
                                     const TensorStyle& style, int rows_per_token = 1);
  // Takes over the tokens of a rank of the step, and overwrites the output.
  Status upload(const Step& step, int rank);

  // topk_weights: of rows per rank; else not needed.
  DispatchInput input(int num_tokens, const float* topk_weights = nullptr) const;
  // 32-bit ids for combine; null: it has them.
  const int32_t* topk_ids() const { return style_.has_wide_ids ? nullptr : ids_.data(); }
  CombineDestination destination(CombineReduction reduction = CombineReduction::kWeighted) const;
  // So many rows, without the gaps; an error if a gap has been written to.
  Result<std::vector<bf16>> output(int num_rows) const;

 private:
  TensorStyle style_;
  uint32_t token_bytes_ = 0, scales_bytes_ = 0, row_bytes_ = 0;
  Buffer<uint8_t> tokens_, scales_, output_;
  Buffer<int32_t> ids_;
  Buffer<int64_t> wide_ids_;
  Buffer<float> scale_;
};

}  // namespace switchyard::reference

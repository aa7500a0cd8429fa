// What dispatch, combine and a whole MoE layer mean, in plain loops over vectors. This code shares nothing
// with kernels, buffers or protocols; it is written to be read and checked by eye.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/token_format.hpp"
#include "switchyard/token_format.hpp"
#include "switchyard/types/bf16.hpp"
#include "switchyard/types/expert_parallel.hpp"

namespace switchyard::reference {

// The inputs of one step, by rank.
struct Step {
  int n_ranks = 1;
  int n_experts = 1;
  int top_k = 1;
  int hidden = 8;
  std::vector<std::vector<bf16>> tokens;         // [rank][token * hidden]
  std::vector<std::vector<int32_t>> topk_ids;    // [rank][token * top_k]
  std::vector<std::vector<float>> topk_weights;  // [rank][token * top_k]

  // The formats in which tokens are sent, and expert results sent back.
  TokenFormatKind format = TokenFormatKind::kBF16;
  float input_scale = 1;
  // Tokens that come encoded: [rank][token * bytes of its codes, of its scales]; `tokens` is not looked at
  // then. Empty: the tokens are those of bf16.
  std::vector<std::vector<uint8_t>> token_codes = {}, token_scales = {};
  std::vector<float> expert_input_scales;  // NVFP4 by expert: [expert]; input_scale is the shared one's
  // Every token goes to one expert more, on its own rank, which counts as expert n_experts: its rows are
  // group 0 of the rank's rows, and its result is added last, with weight 1.
  bool has_shared_expert = false;
  // How a rank's rows are laid out: every group begins at a multiple of the alignment and takes up at least
  // min_group_rows rows.
  uint32_t row_alignment = 1;
  uint32_t min_group_rows = 0;
  CombineFormat combine_format = CombineFormat::kBF16;
  // What the experts of another rank made of a token is summed up there, rounded to the combine's format, and
  // counts once, with weight 1, at the first k of them. A rank that has one of the token's experts sends its
  // result as it is, and what the experts of the token's own rank made of it is not sent.
  bool reduces_at_owner = false;
  bool is_shared_output_encoded = false;  // the shared expert's result is encoded and decoded, too
  // Every rank has all tokens (the same on each) and works on those of its own experts; the shared expert's
  // tokens are dealt evenly to the ranks. Outputs are the ranks' sums, each rounded, added up and rounded
  // again.
  bool skips_all_to_all = false;
  // All of that within groups of so many ranks, which have the same tokens and whose outputs are added up; 0:
  // all ranks.
  int allreduce_world_size = 0;
  int num_reducing() const { return allreduce_world_size == 0 ? n_ranks : allreduce_world_size; }

  // Which experts each rank holds, by seat; empty: n_experts / n_ranks each, in ascending order. An expert
  // that several ranks hold works on a rank's tokens where it is nearest: on that rank, else on a rank of its
  // group, else anywhere; of several, on number (source rank) % (how many there are). If the all-to-all is
  // skipped, number (expert) % (how many there are) does.
  std::vector<std::vector<int>> experts_of_rank;
  int num_seats = 0;               // of every rank; 0: as many as the rank with most experts has
  std::vector<int> group_of_rank;  // empty: all ranks are one group

  int num_tokens(int rank) const { return static_cast<int>(topk_ids[rank].size()) / top_k; }
  // The seats of every rank: its groups of rows, without the shared expert.
  int n_local_experts() const;
  // The expert at a seat; -1: the seat is empty.
  int expert_at(int rank, int seat) const;
  // The rank that works on what a rank sends to the expert.
  int owner_of(int src_rank, int expert) const;
  int num_groups() const { return n_local_experts() + (has_shared_expert ? 1 : 0); }
  // The row at which the next group begins, behind one that begins at first_row and has so many rows.
  size_t next_group(size_t first_row, size_t num_rows) const;
  // Whether the rank's experts work on choice k of the source rank's token.
  bool reaches(int src_rank, int expert, int rank) const {
    return expert >= 0 && owner_of(src_rank, expert) == rank && (!skips_all_to_all || src_rank == rank);
  }
  // Whether the token is among the rank's rows of the shared expert.
  bool is_shared_row(int rank, int token_idx) const;
  bool encodes_by_expert() const { return info_of(format).encodes_by_expert; }
  // n_experts is the shared one.
  float input_scale_of(int expert_idx) const {
    return encodes_by_expert() && expert_idx < n_experts ? expert_input_scales[expert_idx] : input_scale;
  }
  // The input scale of each group of the rank's rows; 1 for an empty seat.
  std::vector<float> group_input_scales(int rank) const;
  // The token in its format, as the expert gets it; not bf16.
  EncodedToken encoded_token(int rank, int token_idx, int expert_idx) const;
  // The token as an expert sees it: encoded and decoded in its format.
  std::vector<bf16> token(int rank, int token_idx, int expert_idx) const;
};

// The step as the experts see it, computed on all cores: tokens are encoded and decoded in their format, and
// are then bf16. If experts see different values of a token, the step itself is returned.
Step as_seen(Step step);

// Where a row of the ragged output came from.
struct RowOrigin {
  int src_rank;
  int src_token;
  int k;
  friend auto operator<=>(const RowOrigin&, const RowOrigin&) = default;
};

// The rows rank `rank` receives, by group: the shared expert's if there is one (k is -1), then those of each
// local expert; of a group by source rank, then token, then k.
std::vector<std::vector<RowOrigin>> dispatched_rows(const Step& step, int rank);

// The output of dispatch on a rank.
struct DispatchResult {
  std::vector<uint32_t> row_offsets;               // [num_groups + 1]
  std::vector<int32_t> expert_ids;                 // [num_groups]
  std::vector<int32_t> src_info;                   // [rows][2]
  std::vector<bf16> rows;                          // [rows][hidden]; of bf16 only
  std::vector<uint8_t> encoded_rows;               // [rows][bytes], of the other formats
  std::vector<uint8_t> scales;                     // the whole tensor
  uint64_t max_rows = 0;                           // the rows that the tensors hold
  std::vector<uint32_t> scale_row_offsets;         // [num_groups] of tiled scales; empty: not asked for
  std::vector<uint32_t> row_counts;                // [num_groups]; empty: not asked for
  std::vector<int32_t> src_ranks;                  // [rows]; empty: not asked for
  UnwrittenRows unwritten = UnwrittenRows::kLeft;  // what was asked for
  std::vector<int32_t> row_experts;                // [rows][top_k]; empty: not asked for (per_rank.hpp)
  std::vector<float> row_weights;                  // [rows][top_k]; empty: not asked for
};

// Returns an empty string if the result is right, else the first difference. The rows of one (expert, source
// rank) may come in any order.
std::string check_dispatch(const Step& step, int rank, const DispatchResult& result);

// The result of expert `expert_idx` (global) for token `token_idx` of rank `rank`: [hidden].
using ExpertFunction = std::vector<bf16> (*)(const void* experts, const Step& step, int rank, int token_idx,
                                             int expert_idx);

// Identity experts: they return the token as they see it.
std::vector<bf16> identity_expert(const void*, const Step& step, int rank, int token_idx, int expert_idx);

// [token * hidden]: the weighted sum in fp32, in the order of k, not rounded; padding adds nothing. The
// shared expert comes last. A result that travels as fp8 counts as (weight * scale) * code, the first
// product cut to 20 significant bits, the second exact.
std::vector<float> combine_sums(const Step& step, int rank, ExpertFunction expert, const void* experts);
// The same, rounded once.
std::vector<bf16> combine_weighted(const Step& step, int rank, ExpertFunction expert, const void* experts);
// The sum over the ranks, in fp32, in the order of ranks, rounded once.
std::vector<bf16> summed(const std::vector<std::vector<bf16>>& partial);
// [token * top_k * hidden]: each expert's result, zeros for padding.
std::vector<bf16> combine_unreduced(const Step& step, int rank, ExpertFunction expert, const void* experts);

// The top_k largest logits of each token, ties to the lower index, with softmax weights over those chosen.
struct Routing {
  std::vector<int32_t> topk_ids;
  std::vector<float> topk_weights;
};
Routing topk_softmax(const std::vector<float>& logits, int num_tokens, int n_experts, int top_k);

// Ragged rows: group g takes rows [row_offsets[g], row_offsets[g + 1]) to expert expert_ids[g].
struct RaggedGroups {
  std::vector<uint32_t> row_offsets;
  std::vector<int32_t> expert_ids;
};
// [row][columns]: each row [inner] times its expert's matrix [inner][columns], summed in fp32 over k in
// order.
std::vector<bf16> grouped_matmul(const RaggedGroups& groups, const std::vector<bf16>& rows,
                                 const std::vector<std::vector<bf16>>& matrices, int inner, int columns);

// [row][width]: silu(gate) * up in fp32, of [row][2 * width]: gate, then up. Any NaN is the positive quiet
// one.
std::vector<float> silu_products(const std::vector<bf16>& gate_up, int width);
// The same, rounded once.
std::vector<bf16> silu_mul(const std::vector<bf16>& gate_up, int width);

// A gated MLP per expert: down(silu(gate(x)) * up(x)), each product summed in fp32 over k and rounded to
// bf16.
struct MlpExperts {
  int hidden = 0;
  int width = 0;
  std::vector<std::vector<bf16>> gate_up;  // [expert][hidden * 2 width]: columns of gate, then of up
  std::vector<std::vector<bf16>> down;     // [expert][width * hidden]
};
std::vector<bf16> mlp_expert(const void* experts, const Step& step, int rank, int token_idx, int expert_idx);

// combine_weighted over MLP experts, for all ranks, on all cores.
std::vector<std::vector<bf16>> moe_layer(const Step& step, const MlpExperts& experts);

}  // namespace switchyard::reference

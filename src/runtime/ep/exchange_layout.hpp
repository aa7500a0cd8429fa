// Where the buffers through which ranks exchange tokens lie in a rank's arena: the same on every rank.
#pragma once

#include "ep_config.hpp"

namespace switchyard {

// A buffer in the arena; 0 bytes where the protocol has none.
struct ArenaPart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct ExchangeLayout {
  uint64_t row_capacity;  // rows
  // What rows need: of the arena if the protocol is direct, else memory of their own when asked for.
  uint64_t row_memory_bytes, src_info_bytes;
  bool has_bf16_rows, has_scales, has_encoded_outputs;
  // In the row memory.
  uint64_t scales_offset, token_scales_offset, scale_sources_offset, row_links_offset, row_weights_offset,
      expert_outputs_offset;

  ArenaPart dispatch_recv, dispatch_counts, combine_recv, combine_counts, counters, count_table, row_of;
  ArenaPart row_memory, src_info;                              // direct
  ArenaPart reopened_offsets;                                  // direct: of reopen_step(), which nobody reads
  ArenaPart parts_done;                                        // direct: of RowCompletion
  ArenaPart kept_seats, kept_weights, rank_ids, rank_weights;  // rows per rank: KeptChoices
  ArenaPart send;          // slotted: messages for the shared expert, and for the wire
  ArenaPart combine_send;  // slotted, with a wire
  // Direct, with a wire: FarDispatchPart; combine_recv is FarCombinePart's.
  ArenaPart counts_ready, kept_rows, kept_scales, kept_sources, kept_scale_sources, kept_links,
      kept_row_weights, arrived_scales;
  ArenaPart reduce_values, reduce_cells;  // of all_reduce()
  ArenaPart expert_scales;                // of NVFP4 by expert: [expert], or [seat] if there is a table
  ArenaPart seat_table;                   // int32 [expert]: EpShape::seat_of_id; 0 bytes: there is none
  ArenaPart expert_counts;                // int64 [seat]: DispatchStep::expert_counts
  ArenaPart narrowed_ids;                 // int32 [token][top_k]: of a step with 64-bit ids
  ArenaPart poison;
  uint64_t arena_bytes = 0;

  static Result<ExchangeLayout> of(const ExpertParallelConfig& config, int n_ranks, bool has_wire);
};

// Which settings would need less memory than the configuration does, and how much; empty: none that this
// knows. The configuration must be valid, and its protocol chosen.
std::string memory_advice(const ExpertParallelConfig& config, int n_ranks);

// The bytes of a token as it comes and as it travels, with its header if it is a message.
uint32_t token_bytes(const ExpertParallelConfig& config);
uint32_t encoded_bytes(const ExpertParallelConfig& config);
uint32_t message_bytes(const ExpertParallelConfig& config);
// The bytes of an expert's row on its way back.
uint32_t combine_bytes(const ExpertParallelConfig& config);

}  // namespace switchyard

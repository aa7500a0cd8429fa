// What follows from an ExpertParallelConfig before anything is allocated.
#pragma once

#include "switchyard/detail/ep/group_layout.hpp"
#include "switchyard/detail/ep/shape.hpp"
#include "switchyard/detail/launch/own_format.hpp"
#include "switchyard/expert_parallel.hpp"

namespace switchyard {

Status validate(const ExpertParallelConfig& config, int n_ranks);
// The deadline of the first step's waits.
uint64_t first_timeout_ns(const ExpertParallelConfig& config);

// The seats of every rank: as many as its placement needs, or are asked for.
int num_seats_per_rank(const ExpertParallelConfig& config, int n_ranks);
// Whether kernels look seats up in a table; else they divide the ids evenly among the ranks.
bool has_seat_table(const ExpertParallelConfig& config, int n_ranks);
// The placement, or the even one if none is given. The configuration must be valid.
ExpertPlacement placement_of(const ExpertParallelConfig& config, int n_ranks);
// Checks a placement against what else the configuration says.
Status check_placement(const ExpertPlacement& placement, int n_experts, int n_ranks);
// Whether some ranks are far, or too many for a kernel's parameters.
bool needs_wire(const ExpertParallelConfig& config, int n_ranks);

// Whether a token can have several rows on a rank.
bool has_siblings(const ExpertParallelConfig& config);
// Whether they are alike, so that the receiver could lay them out.
bool has_equal_siblings(const ExpertParallelConfig& config);
// Whether ranks tell each other which rows are siblings. The delivery must have been chosen.
bool links_rows(const ExpertParallelConfig& config);

// Whether senders store scales where they belong although rows interleave there. The protocol and the
// delivery must have been chosen.
bool sends_scales(const ExpertParallelConfig& config, int n_ranks);

// The layout of what tokens are sent as: one of the library's formats, or the caller's own.
FormatLayout format_layout(const ExpertParallelConfig& config);
CheckedSize scale_tensor_bytes(const ExpertParallelConfig& config, uint32_t max_rows);

// How the rows of a rank's groups lie; the configuration must be valid.
GroupLayout group_layout(const ExpertParallelConfig& config, int n_ranks);

// If the all-to-all is skipped, each rank is a world of its own; the caller fills in first_expert.
EpShape shape_of(const ExpertParallelConfig& config, int n_ranks);
// The same as the kernels of dispatch and combine know it: per rank, ranks are their experts.
EpShape exchange_shape(const ExpertParallelConfig& config, int n_ranks);
// Whether the rows of tokens begin behind a group: the shared expert's, or other sets of rows.
bool has_group_in_front(const ExpertParallelConfig& config);
// The groups of a rank's rows, without that one.
int num_expert_groups(const ExpertParallelConfig& config, int n_ranks);
// Both together.
uint64_t num_groups(const ExpertParallelConfig& config, int n_ranks);
// The number of ranks that send each other rows.
int num_exchanging_ranks(const ExpertParallelConfig& config, int n_ranks);
// The number of ranks whose partial outputs are added up, if the all-to-all is skipped.
int num_reducing_ranks(const ExpertParallelConfig& config, int n_ranks);

// The most blocks that a kernel which starts before dispatch_wait may have, where each rank has so many
// multiprocessors for itself; 0: none.
int early_block_limit(const ExpertParallelConfig& config, int multiprocessors_per_rank);

// The most rows a rank can receive: every token of every rank, top_k times (per rank, once), and the padding
// of their groups.
uint64_t worst_case_rows(const ExpertParallelConfig& config, int n_ranks);
// The rows that row_buffers() and the direct protocol have memory for, on each rank.
uint64_t row_capacity(const ExpertParallelConfig& config, int n_ranks);

}  // namespace switchyard

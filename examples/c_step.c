/* A step in C: two ranks send each other's experts their tokens, the experts return what they got, and
 * combine sums it with weights that add up to 1. So every token comes back as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "switchyard/switchyard.h"

enum { kRanks = 2, kTokens = 4, kTopK = 2, kHidden = 64, kExperts = 4 };

static void need(switchyard_status status, const char* call) {
  if (status == SWITCHYARD_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, switchyard_status_name(status), switchyard_last_error());
  exit(1);
}
#define NEED(call) need(call, #call)

typedef struct {
  switchyard_stream stream;
  void *tokens, *ids, *weights, *row_offsets, *expert_ids, *output;
  switchyard_row_buffers rows;
} rank_memory;

static void* upload(switchyard_world* world, int rank, const void* values, size_t bytes) {
  void* memory = NULL;
  NEED(switchyard_allocate(world, rank, bytes, &memory));
  if (values != NULL) NEED(switchyard_copy(world, rank, memory, values, bytes));
  return memory;
}

static void prepare(switchyard_world* world, switchyard_ep* ep, int rank, uint16_t tokens[kTokens][kHidden],
                    rank_memory* memory) {
  int32_t ids[kTokens][kTopK];
  float weights[kTokens][kTopK];
  for (int token = 0; token < kTokens; ++token) {
    for (int i = 0; i < kHidden; ++i)
      tokens[token][i] = (uint16_t)(0x3f80 + 16 * rank + token); /* bf16, about 1 */
    for (int k = 0; k < kTopK; ++k) {
      ids[token][k] = (token + rank + 2 * k) % kExperts;
      weights[token][k] = 0.5f;
    }
  }
  NEED(switchyard_stream_create(world, rank, &memory->stream));
  memory->tokens = upload(world, rank, tokens, sizeof(uint16_t[kTokens][kHidden]));
  memory->ids = upload(world, rank, ids, sizeof(ids));
  memory->weights = upload(world, rank, weights, sizeof(weights));
  memory->row_offsets = upload(world, rank, NULL, (kExperts / kRanks + 1) * sizeof(uint32_t));
  memory->expert_ids = upload(world, rank, NULL, kExperts / kRanks * sizeof(int32_t));
  memory->output = upload(world, rank, NULL, sizeof(uint16_t[kTokens][kHidden]));
  memory->rows.size = sizeof(memory->rows);
  NEED(switchyard_ep_row_buffers(ep, rank, &memory->rows));
}

static void enqueue_dispatch(switchyard_ep* ep, int rank, const rank_memory* memory) {
  const switchyard_dispatch_input input = {sizeof(input), memory->tokens, memory->ids, kTokens};
  switchyard_dispatch_output output = {sizeof(output)};
  output.rows = memory->rows.rows;
  output.src_info = memory->rows.src_info;
  output.max_rows = memory->rows.max_rows;
  output.scales = memory->rows.scales;
  output.row_offsets = memory->row_offsets;
  output.expert_ids = memory->expert_ids;
  NEED(switchyard_ep_dispatch(ep, rank, &input, &output, memory->stream));
}

/* The experts would run here, on the same stream. */
static void enqueue_combine(switchyard_ep* ep, int rank, const rank_memory* memory) {
  const switchyard_combine_input input = {sizeof(input), memory->rows.rows, memory->rows.src_info};
  switchyard_combine_output output = {sizeof(output)};
  output.topk_ids = memory->ids;
  output.topk_weights = memory->weights;
  output.output = memory->output;
  output.num_tokens = kTokens;
  NEED(switchyard_ep_combine(ep, rank, &input, &output, memory->stream));
}

int main(void) {
  switchyard_world_options options = {sizeof(options)};
  options.n_ranks = kRanks;
  switchyard_world* world = NULL;
  NEED(switchyard_world_create(&options, &world));
  switchyard_ep_config config = {sizeof(config)};
  config.n_experts = kExperts;
  config.top_k = kTopK;
  config.hidden = kHidden;
  config.max_tokens_per_rank = kTokens;
  config.n_sms = 2;
  config.counts_experts = 1;
  switchyard_ep* ep = NULL;
  NEED(switchyard_ep_create(world, &config, &ep));
  NEED(switchyard_ep_warm_up(ep));

  static uint16_t tokens[kRanks][kTokens][kHidden];
  rank_memory memory[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) prepare(world, ep, rank, tokens[rank], &memory[rank]);
  for (int rank = 0; rank < kRanks; ++rank) enqueue_dispatch(ep, rank, &memory[rank]);
  for (int rank = 0; rank < kRanks; ++rank) enqueue_combine(ep, rank, &memory[rank]);
  for (int rank = 0; rank < kRanks; ++rank) {
    NEED(switchyard_ep_synchronize(ep, rank, memory[rank].stream));
    uint16_t output[kTokens][kHidden];
    NEED(switchyard_copy(world, rank, output, memory[rank].output, sizeof(output)));
    if (memcmp(output, tokens[rank], sizeof(output)) != 0) {
      fprintf(stderr, "rank %d: tokens came back changed\n", rank);
      return 1;
    }
  }
  int64_t counts[kExperts], num_rows = 0;
  NEED(switchyard_ep_expert_counts(ep, 0, counts, kExperts));
  for (int expert = 0; expert < kExperts; ++expert) num_rows += counts[expert];
  printf("Switchyard %s: %d ranks, %d tokens each, all back as they were; rank 0 sent %d rows\n",
         switchyard_version(), kRanks, kTokens, (int)num_rows);
  switchyard_ep_destroy(ep);
  switchyard_world_destroy(world);
  return 0;
}

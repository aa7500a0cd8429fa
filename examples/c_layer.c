/* A whole layer in C: router, dispatch, experts and combine in one call of each rank. The weights are chosen
 * so that every expert makes of a token what a line of C can: a gate and an up are the token's first number,
 * and each output is silu(gate) * up. The weights of a token's experts add up to 1, so that is the output. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "switchyard/switchyard.h"

enum { kRanks = 2, kTokens = 4, kTopK = 2, kHidden = 64, kWidth = 64, kExperts = 4 };

static void need(switchyard_status status, const char* call) {
  if (status == SWITCHYARD_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, switchyard_status_name(status), switchyard_last_error());
  exit(1);
}
#define NEED(call) need(call, #call)

static uint16_t bf16_of(float value) { /* of a number that bf16 holds */
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)(bits >> 16);
}
static float value_of(uint16_t bf16) {
  const uint32_t bits = (uint32_t)bf16 << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

static void* upload(switchyard_world* world, int rank, const void* values, size_t bytes) {
  void* memory = NULL;
  NEED(switchyard_allocate(world, rank, bytes, &memory));
  if (values != NULL) NEED(switchyard_copy(world, rank, memory, values, bytes));
  return memory;
}

/* Of one rank's experts: each gate and up reads the first number, and each output is the first activation. */
static void make_weights(switchyard_world* world, int rank, switchyard_expert_weights* weights) {
  static uint16_t gate_up[kExperts / kRanks][2 * kWidth][kHidden], down[kExperts / kRanks][kHidden][kWidth];
  for (int expert = 0; expert < kExperts / kRanks; ++expert) {
    for (int row = 0; row < 2 * kWidth; ++row) gate_up[expert][row][0] = bf16_of(1);
    for (int row = 0; row < kHidden; ++row) down[expert][row][0] = bf16_of(1);
  }
  weights->size = sizeof(*weights);
  weights->gate_up = upload(world, rank, gate_up, sizeof(gate_up));
  weights->down = upload(world, rank, down, sizeof(down));
}

static void check_output(switchyard_world* world, int rank, const void* memory) {
  uint16_t output[kTokens][kHidden];
  NEED(switchyard_copy(world, rank, output, memory, sizeof(output)));
  for (int token = 0; token < kTokens; ++token) {
    const float first = 1 + 0.25f * (float)(token + rank), right = first / (1 + expf(-first)) * first;
    for (int i = 0; i < kHidden; ++i)
      if (!(fabsf(value_of(output[token][i]) - right) <= 0.02f * right)) {
        fprintf(stderr, "rank %d, token %d: %g instead of %g\n", rank, token, value_of(output[token][i]),
                right);
        exit(1);
      }
  }
}

int main(void) {
  switchyard_world_options options = {sizeof(options)};
  options.n_ranks = kRanks;
  switchyard_world* world = NULL;
  NEED(switchyard_world_create(&options, &world));
  switchyard_expert_weights weights[kRanks] = {{0}};
  const switchyard_expert_weights* of_rank[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    make_weights(world, rank, &weights[rank]);
    of_rank[rank] = &weights[rank];
  }
  switchyard_ep_config ep_config = {sizeof(ep_config)};
  ep_config.n_experts = kExperts;
  ep_config.top_k = kTopK;
  ep_config.hidden = kHidden;
  ep_config.max_tokens_per_rank = kTokens;
  ep_config.n_sms = 2;
  switchyard_moe_layer_config config = {sizeof(config)};
  config.ep = &ep_config;
  config.expert_width = kWidth;
  switchyard_moe_layer* layer = NULL;
  switchyard_ep* ep = NULL;
  NEED(switchyard_moe_layer_create(world, &config, of_rank, &layer));
  NEED(switchyard_moe_layer_ep(layer, &ep));

  void* outputs[kRanks];
  for (int rank = 0; rank < kRanks; ++rank) {
    uint16_t tokens[kTokens][kHidden] = {{0}};
    float logits[kTokens][kExperts];
    for (int token = 0; token < kTokens; ++token) {
      tokens[token][0] = bf16_of(1 + 0.25f * (float)(token + rank));
      for (int expert = 0; expert < kExperts; ++expert)
        logits[token][expert] = (float)((token + rank + 3 * expert) % kExperts);
    }
    switchyard_moe_layer_step step = {sizeof(step)};
    step.tokens = upload(world, rank, tokens, sizeof(tokens));
    step.logits = upload(world, rank, logits, sizeof(logits));
    step.output = outputs[rank] = upload(world, rank, NULL, sizeof(tokens));
    step.num_tokens = kTokens;
    NEED(switchyard_moe_layer_run(layer, rank, &step, SWITCHYARD_RANK_STREAM));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    NEED(switchyard_ep_synchronize(ep, rank, SWITCHYARD_RANK_STREAM));
    check_output(world, rank, outputs[rank]);
  }
  printf("Switchyard %s: a layer of %d experts on %d ranks, all tokens right\n", switchyard_version(),
         kExperts, kRanks);
  switchyard_ep_destroy(ep);
  switchyard_moe_layer_destroy(layer);
  switchyard_world_destroy(world);
  return 0;
}

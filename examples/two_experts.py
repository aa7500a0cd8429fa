"""A complete program: four ranks, each token goes to two experts and comes back as their weighted sum. The experts here
return what they get, so every token must come back as it was."""

import ml_dtypes
import numpy as np

import switchyard_ep as sy

RANKS, EXPERTS, TOP_K, HIDDEN, TOKENS = 4, 8, 2, 256, 16

world = sy.World(n_ranks=RANKS, target="host")
ep = sy.ExpertParallel(world, n_experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, max_tokens_per_rank=TOKENS)

random = np.random.default_rng(0)
tokens = [random.standard_normal((TOKENS, HIDDEN)).astype(ml_dtypes.bfloat16) for _ in range(RANKS)]
topk_ids = [random.integers(0, EXPERTS, (TOKENS, TOP_K), dtype=np.int32) for _ in range(RANKS)]
weights = np.full((TOKENS, TOP_K), 0.5, np.float32)

outputs = []
for rank in range(RANKS):
    sent = ep.dispatch(rank, tokens[rank], topk_ids[rank])
    # Here a model would run its experts on sent.rows, grouped by sent.row_offsets, on the rank's stream, and leave what
    # they make in sent.expert_outputs.
    outputs.append(ep.combine(rank, sent.rows, topk_ids[rank], weights))
ep.synchronize()  # a dead peer, a bad id or a full buffer raises here, and is named

for rank in range(RANKS):
    np.testing.assert_array_equal(outputs[rank].numpy(), tokens[rank])
print(f"{RANKS} ranks, {TOKENS} tokens each, to {TOP_K} of {EXPERTS} experts and back: right")

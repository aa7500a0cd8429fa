"""A layer of experts behind vLLM's prepare and finalize, without vLLM: two ranks in this process, a thread each. The experts
multiply by their number plus one, so that it is easy to say what must come out."""

import concurrent.futures

import ml_dtypes
import numpy as np

import switchyard_ep as sy
from switchyard_ep.vllm import Exchange, PrepareAndFinalize

RANKS, EXPERTS, TOP_K, HIDDEN, TOKENS = 2, 4, 2, 256, 8
BF16 = ml_dtypes.bfloat16


class Unquantised:
    """What vLLM's FusedMoEQuantConfig says of experts that take bfloat16."""

    quant_dtype = block_shape = None


def run_layer(layer, tokens, topk_ids, topk_weights):
    rows, _, counts, _, _ = layer.prepare(tokens, topk_weights, topk_ids, EXPERTS, None, False, Unquantised)
    outputs = layer.expert_outputs(like=tokens)  # what is left here is sent without a copy
    for local, expert in enumerate(layer.exchange.local_expert_ids):
        count = counts.expert_num_tokens[local]
        outputs[local, :count] = rows[local, :count] * BF16(expert + 1)
    combined = np.empty_like(tokens)
    layer.finalize(combined, outputs, topk_weights, topk_ids, False, None)
    return combined


world = sy.World(n_ranks=RANKS, target="host")
exchange = Exchange(
    world,
    n_experts=EXPERTS,
    top_k=TOP_K,
    hidden=HIDDEN,
    max_tokens_per_rank=TOKENS,
    activation_format="batched_experts",
)


def run_rank(rank):
    random = np.random.default_rng(rank)
    tokens = random.standard_normal((TOKENS, HIDDEN)).astype(BF16)
    topk_ids = np.argsort(random.random((TOKENS, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int32)
    topk_weights = np.full((TOKENS, TOP_K), 0.5, np.float32)
    combined = run_layer(PrepareAndFinalize(exchange.of_rank(rank)), tokens, topk_ids, topk_weights)
    expected = tokens.astype(np.float32) * (0.5 * (topk_ids + 1)).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(combined.astype(np.float32), expected, rtol=0.02, atol=0.02)
    return f"rank {rank}: {TOKENS} tokens through {TOP_K} of {EXPERTS} experts each: right"


with concurrent.futures.ThreadPoolExecutor(RANKS) as pool:
    for line in pool.map(run_rank, range(RANKS)):
        print(line)
world.close()

"""Attention and grouped matmul against NumPy."""

import numpy as np
import pytest

import switchyard_ep as sy
from conftest import BF16


def random_bf16(random, *shape):
    return random.standard_normal(shape).astype(BF16)


@pytest.fixture
def one():
    with sy.World(n_ranks=1, target="host") as world:
        yield world


def reference(queries, keys, values, causal):
    q, k, v = (x.astype(np.float64) for x in (queries, keys, values))
    scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool), k.shape[0] - q.shape[0]), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(one, causal):
    random = np.random.default_rng(1)
    q, k, v = (random_bf16(random, 40, 2, 64) for _ in range(3))
    attention = sy.Attention(
        one, 0, head_dim=64, num_heads=2, num_kv_heads=2, max_query_len=40, max_key_len=40, causal=causal
    )
    lse = np.zeros((40, 2), np.float32)
    out = attention.run(q, k, v, lse=lse)
    one.synchronize()
    np.testing.assert_allclose(out.numpy().astype(np.float64), reference(q, k, v, causal), atol=0.03)
    assert np.isfinite(lse).all() and "blocks" in attention.choice()


def test_attention_over_a_ragged_batch(one):
    random = np.random.default_rng(2)
    q, k, v = (random_bf16(random, 30, 1, 64) for _ in range(3))
    offsets = np.array([0, 10, 30], np.uint32)
    attention = sy.Attention(
        one,
        0,
        head_dim=64,
        num_heads=1,
        num_kv_heads=1,
        batch_size=2,
        max_query_len=20,
        max_key_len=20,
        num_query_rows=30,
        num_key_rows=30,
    )
    out = attention.run(q, k, v, query_offsets=offsets, key_offsets=offsets)
    one.synchronize()
    for begin, end in ((0, 10), (10, 30)):
        expected = reference(q[begin:end], k[begin:end], v[begin:end], False)
        np.testing.assert_allclose(out.numpy()[begin:end].astype(np.float64), expected, atol=0.03)
    with pytest.raises(sy.InvalidArgument, match=r"query_offsets\[2\] is 31; it must be 0\.\.30"):
        attention.run(q, k, v, query_offsets=np.array([0, 10, 31], np.uint32), key_offsets=offsets)
    with pytest.raises(sy.InvalidArgument, match=r"key_offsets\[2\] is 9, less than the value before it"):
        attention.run(q, k, v, query_offsets=offsets, key_offsets=np.array([0, 10, 9], np.uint32))


def test_grouped_matmul(one):
    random = np.random.default_rng(3)
    rows, weights = random_bf16(random, 24, 64), random_bf16(random, 3, 128, 64)
    offsets = np.array([0, 5, 5, 20], np.uint32)
    matmul = sy.GroupedMatmul(one, 0, num_groups=3, inner=64, columns=128, max_rows=24)
    out = matmul.run(rows, weights, offsets)
    one.synchronize()
    for expert in range(3):
        begin, end = offsets[expert], offsets[expert + 1]
        expected = rows[begin:end].astype(np.float32) @ weights[expert].astype(np.float32).T
        np.testing.assert_allclose(out.numpy()[begin:end].astype(np.float32), expected, rtol=0.02, atol=0.05)


def test_bad_groups_are_refused(one):
    rows, weights = np.zeros((24, 64), BF16), np.zeros((3, 128, 64), BF16)
    matmul = sy.GroupedMatmul(one, 0, num_groups=3, inner=64, columns=128, max_rows=24)
    with pytest.raises(sy.InvalidArgument, match=r"row_offsets\[3\] is 25; it must be 0\.\.24"):
        matmul.run(rows, weights, np.array([0, 5, 5, 25], np.uint32))
    with pytest.raises(sy.InvalidArgument, match=r"expert_ids\[1\] is 3; it must be 0\.\.2"):
        matmul.run(rows, weights, np.array([0, 5, 5, 20], np.uint32), expert_ids=np.array([0, 3, 1], np.int32))
    with pytest.raises(
        sy.InvalidArgument, match=r"weights has shape \(3, 64, 128\); it must be \(num_experts, columns"
    ):
        matmul.run(rows, weights.reshape(3, 64, 128), np.array([0, 5, 5, 20], np.uint32))
    with pytest.raises(sy.InvalidArgument, match="row_offsets"):
        matmul.run(rows, weights)
    with pytest.raises(sy.InvalidArgument, match="activation is 'relu'"):
        sy.GroupedMatmul(one, 0, num_groups=1, inner=64, columns=128, max_rows=8, activation="relu")


def test_formats_are_listed():
    formats = sy.token_formats()
    assert formats["fp8"]["scale_placement"] == "transposed" and formats["nvfp4"]["num_bits"] == 4
    assert formats["fp8-ue8m0"]["scale_placement"] == "packed"

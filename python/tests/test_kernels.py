"""Attention and grouped matmul against NumPy."""

import ml_dtypes
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


def test_attention_with_sinks_and_a_soft_cap(one):
    random = np.random.default_rng(4)
    q, k, v = (random_bf16(random, 20, 2, 64) for _ in range(3))
    sizes = dict(head_dim=64, num_heads=2, num_kv_heads=2, max_query_len=20, max_key_len=20)
    sinks = np.array([2.0, -np.inf], np.float32)
    out = sy.Attention(one, 0, **sizes).run(q, k, v, sinks=sinks)
    capped = sy.Attention(one, 0, soft_cap=0.5, **sizes).run(q, k, v)
    one.synchronize()
    scores = np.einsum("qhd,khd->hqk", q.astype(np.float64), k.astype(np.float64)) / 8
    weights = np.exp(scores)
    weights /= weights.sum(-1, keepdims=True) + np.exp(sinks.astype(np.float64))[:, None, None]
    expected = np.einsum("hqk,khd->qhd", weights, v.astype(np.float64))
    np.testing.assert_allclose(out.numpy().astype(np.float64), expected, atol=0.03)
    weights = np.exp(0.5 * np.tanh(scores / 0.5))
    expected = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v.astype(np.float64))
    np.testing.assert_allclose(capped.numpy().astype(np.float64), expected, atol=0.03)
    with pytest.raises(sy.InvalidArgument, match=r"sinks has shape \(1,\); it must be \(num_heads,\)"):
        sy.Attention(one, 0, **sizes).run(q, k, v, sinks=sinks[:1])


@pytest.mark.parametrize("as_bytes", [False, True])
def test_attention_decodes_codes(one, as_bytes):
    random = np.random.default_rng(5)
    q = random_bf16(random, 3, 4, 64)
    codes = [random.standard_normal((50, 2, 64)).astype(ml_dtypes.float8_e4m3fn) for _ in range(2)]
    scales = np.array([0.5, 2], np.float32), np.array([3, 1], np.float32)
    sizes = dict(head_dim=64, num_heads=4, num_kv_heads=2, max_query_len=3, max_key_len=50)
    attention = sy.Attention(one, 0, kv_format="fp8", **sizes)
    given = [one_of.view(np.uint8) if as_bytes else one_of for one_of in codes]
    out = attention.run(q, *given, key_scales=scales[0], value_scales=scales[1])
    one.synchronize()
    # Each K/V head is seen by two query heads.
    k, v = (
        (of.astype(np.float64) * scale[:, None].astype(np.float64)).repeat(2, 1) for of, scale in zip(codes, scales)
    )
    np.testing.assert_allclose(out.numpy().astype(np.float64), reference(q, k, v, False), atol=0.1)
    # With such a cap all scores are about 0, and a sink of ln(50) weighs as much as the 50 keys.
    out = sy.Attention(one, 0, kv_format="fp8", soft_cap=1e-3, **sizes).run(
        q, *given, key_scales=scales[0], value_scales=scales[1], sinks=np.full(4, np.log(50), np.float32)
    )
    one.synchronize()
    expected = np.broadcast_to(v.mean(0) / 2, out.numpy().shape)
    np.testing.assert_allclose(out.numpy().astype(np.float64), expected, atol=0.03)
    with pytest.raises(sy.InvalidArgument, match="keys has dtype bfloat16; it must be float8_e4m3fn or uint8"):
        attention.run(q, *(of.astype(BF16) for of in codes), key_scales=scales[0], value_scales=scales[1])
    with pytest.raises(sy.InvalidArgument, match="key_scales is null; kv_format is fp8"):
        attention.run(q, *codes)
    for given, name in (((None, codes[1]), "keys"), ((codes[0],), "values")):
        with pytest.raises(sy.InvalidArgument, match=f"{name} is None"):
            attention.run(q, *given, key_scales=scales[0], value_scales=scales[1])
    with pytest.raises(sy.InvalidArgument, match="kv_format is 'fp4'; it must be one of: bf16, fp8"):
        sy.Attention(one, 0, kv_format="fp4", **sizes)


def test_attention_decodes_latents(one):
    random = np.random.default_rng(6)
    q, latents = random_bf16(random, 2, 16, 576), random_bf16(random, 40, 1, 576)
    sizes = dict(head_dim=576, value_dim=512, num_heads=16, num_kv_heads=1, max_query_len=2, max_key_len=40)
    attention = sy.Attention(one, 0, scale=1 / 24, **sizes)
    out = attention.run(q, latents)
    one.synchronize()
    k = latents.repeat(16, 1)
    np.testing.assert_allclose(out.numpy().astype(np.float64), reference(q, k, k[:, :, :512], False), atol=0.03)
    for values in (latents, latents[:, :, :512].copy()):
        with pytest.raises(sy.InvalidArgument, match="values is given; it must be None with value_dim"):
            attention.run(q, latents, values)
    with pytest.raises(sy.InvalidArgument, match="scale is 0; it must be given with value_dim"):
        sy.Attention(one, 0, **sizes)


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


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


# Codes as floats, and the same as the bytes of the weights.
def random_codes(random, weight_format, *shape):
    if weight_format == "mxfp8":
        codes = random.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn)
        return codes.astype(np.float64), codes
    codes = random.integers(0, 16, shape).astype(np.uint8)
    return E2M1[codes], codes[..., ::2] | codes[..., 1::2] << 4


@pytest.mark.parametrize("weight_format, group", [("mxfp4", 32), ("nvfp4", 16), ("mxfp8", 32)])
@pytest.mark.parametrize("as_bytes", [False, True])
def test_grouped_matmul_of_codes(one, weight_format, group, as_bytes):
    random = np.random.default_rng(7)
    rows = random_bf16(random, 24, 128)
    values, weights = random_codes(random, weight_format, 3, 64, 128)
    scale_type = ml_dtypes.float8_e4m3fn if weight_format == "nvfp4" else ml_dtypes.float8_e8m0fnu
    scales = (2.0 ** random.integers(-3, 3, (3, 64, 128 // group))).astype(scale_type)
    tensor_scales = np.array([1, 0.5, 3], np.float32)
    offsets = np.array([0, 5, 5, 20], np.uint32)
    matmul = sy.GroupedMatmul(
        one, 0, num_groups=3, inner=128, columns=64, max_rows=24, weight_format=weight_format
    )
    given = [of.view(np.uint8) if as_bytes else of for of in (weights, scales)]
    out = matmul.run(rows, given[0], offsets, weight_scales=given[1], weight_tensor_scales=tensor_scales)
    one.synchronize()
    for expert in range(3):
        begin, end = offsets[expert], offsets[expert + 1]
        decoded = values[expert] * scales[expert].astype(np.float64).repeat(group, -1) * tensor_scales[expert]
        expected = rows[begin:end].astype(np.float64) @ decoded.T
        np.testing.assert_allclose(out.numpy()[begin:end].astype(np.float64), expected, rtol=0.02, atol=0.1)
    with pytest.raises(sy.InvalidArgument, match="weights has shape"):
        matmul.run(rows, given[0][:, :, :-1], offsets, weight_scales=given[1])
    with pytest.raises(sy.InvalidArgument, match="weight_scales"):
        matmul.run(rows, given[0], offsets)


def test_codes_need_rows_of_bfloat16(one):
    sizes = dict(num_groups=1, inner=128, columns=64, max_rows=8)
    with pytest.raises(sy.InvalidArgument, match="weight_format is 'fp4'; it must be one of: as-rows, mxfp4"):
        sy.GroupedMatmul(one, 0, weight_format="fp4", **sizes)
    with pytest.raises(sy.InvalidArgument, match="weight_format is 'mxfp4'; element must be 'bf16' with it"):
        sy.GroupedMatmul(one, 0, weight_format="mxfp4", element="fp8", **sizes)
    with pytest.raises(sy.InvalidArgument, match="row_scale_format is 'packed-e8m0'; element must be 'fp8'"):
        sy.GroupedMatmul(one, 0, row_scale_format="packed-e8m0", **sizes)


@pytest.mark.parametrize(
    "row_scale_format, dispatch_format",
    [("float32", "fp8"), ("packed-e8m0", "fp8-ue8m0"), ("float32-by-row", "fp8-by-row")],
)
def test_grouped_matmul_of_what_a_dispatch_in_fp8_writes(one, row_scale_format, dispatch_format):
    random = np.random.default_rng(8)
    tokens, ids = random_bf16(random, 10, 256), random.integers(0, 4, (10, 2)).astype(np.int32)
    weights = random.standard_normal((4, 128, 256)).astype(ml_dtypes.float8_e4m3fn)
    weight_scales = (random.random((4, 1, 2)) + 0.5).astype(np.float32)
    ep = sy.ExpertParallel(
        one,
        n_experts=4,
        top_k=2,
        hidden=256,
        max_tokens_per_rank=10,
        protocol="direct",
        dispatch_format=dispatch_format,
    )
    sent = ep.dispatch(0, tokens, ids)
    matmul = sy.GroupedMatmul(
        one,
        0,
        num_groups=4,
        inner=256,
        columns=128,
        max_rows=sent.rows.shape[0],
        element="fp8",
        row_scale_format=row_scale_format,
    )
    out = matmul.run(sent.rows, weights, sent.row_offsets, row_scales=sent.scales, weight_scales=weight_scales)
    ep.synchronize()
    one.synchronize()
    offsets, counts, sources = (part.numpy() for part in (sent.row_offsets, sent.row_counts, sent.src_info))
    assert counts.sum() > 10
    for expert in range(4):
        scaled = weights[expert].astype(np.float64) * weight_scales[expert].repeat(128, -1)
        for row in range(offsets[expert], offsets[expert] + counts[expert]):
            expected = tokens[sources[row, 0]].astype(np.float64) @ scaled.T
            error = np.abs(out.numpy()[row].astype(np.float64) - expected).max()
            assert error < 0.05 * np.abs(expected).max(), (expert, row)


# Rows of a dispatch as floats, without tensor scales.
def decode(sent, dispatch_format, hidden):
    rows, scales = sent.rows.numpy(), sent.scales.numpy()
    group = sy.token_formats()[dispatch_format]["group_size"]
    if sy.token_formats()[dispatch_format]["element"] == "e2m1":
        rows = E2M1[np.stack([rows & 15, rows >> 4], -1).reshape(len(rows), hidden)]
    if sy.token_formats()[dispatch_format]["scale_placement"] == "tiled":
        # Tiles of 128 rows by 4 columns; docs/formats.md has their order.
        row, column = np.arange(len(rows))[:, None], np.arange(hidden // group)
        tile = row // 128 * -(-hidden // group // 4) + column // 4
        scales = scales[tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + column % 4].view(ml_dtypes.float8_e4m3fn)
    return rows.astype(np.float64) * scales.astype(np.float64).repeat(group, -1)


def dispatch_and_matmul(world, dispatch_format, **options):
    """Returns what was sent, a matmul over it, its weights, and the rows as floats."""
    random = np.random.default_rng(10)
    tokens, ids = random_bf16(random, 10, 256), random.integers(0, 4, (10, 2)).astype(np.int32)
    ep = sy.ExpertParallel(
        world,
        n_experts=4,
        top_k=2,
        hidden=256,
        max_tokens_per_rank=10,
        protocol="direct",
        dispatch_format=dispatch_format,
        **options,
    )
    sent = ep.dispatch(0, tokens, ids)
    ep.synchronize()
    matmul = sy.GroupedMatmul(
        world, 0, num_groups=4, inner=256, columns=64, max_rows=sent.rows.shape[0], row_format=dispatch_format
    )
    return sent, matmul, random_bf16(random, 4, 64, 256), decode(sent, dispatch_format, 256)


# `out` is what a matmul in bf16 makes of the rows, times a tensor scale for each expert.
def expect_product(sent, out, weights, rows, tensor_scales=(1, 1, 1, 1)):
    offsets, counts = sent.row_offsets.numpy(), sent.row_counts.numpy()
    assert counts.min() > 0
    for expert in range(4):
        of_expert = slice(offsets[expert], offsets[expert] + counts[expert])
        decoded = (rows[of_expert] * tensor_scales[expert]).astype(BF16).astype(np.float64)
        expected = decoded @ weights[expert].astype(np.float64).T
        error = np.abs(out.numpy()[of_expert].astype(np.float64) - expected).max()
        assert error < 0.005 * np.abs(expected).max(), expert


@pytest.mark.parametrize("dispatch_format", ["mxfp8", "fp8-by-row"])
def test_grouped_matmul_decodes_rows(one, dispatch_format):
    sent, matmul, weights, rows = dispatch_and_matmul(one, dispatch_format)
    out = matmul.run(sent.rows, weights, sent.row_offsets, row_scales=sent.scales)
    one.synchronize()
    expect_product(sent, out, weights, rows)
    assert sent.expert_tensor_scales is None


def test_grouped_matmul_decodes_rows_in_nvfp4(one):
    sent, matmul, weights, rows = dispatch_and_matmul(one, "nvfp4", input_scale=0.01)
    for scale in (0.01, np.float32(0.01), np.array([0.01], np.float32)):
        out = matmul.run(sent.rows, weights, sent.row_offsets, row_scales=sent.scales, row_tensor_scale=scale)
        one.synchronize()
        expect_product(sent, out, weights, rows, [0.01] * 4)
    # Those of the last groups.
    of_groups = np.array([0.5, 2], np.float32)
    out = matmul.run(
        sent.rows,
        weights,
        sent.row_offsets,
        row_scales=sent.scales,
        row_tensor_scale=0.01,
        row_tensor_scales=of_groups,
    )
    one.synchronize()
    expect_product(sent, out, weights, rows, [0.01, 0.01, 0.5, 2])


def test_grouped_matmul_decodes_rows_in_nvfp4_by_expert(one):
    scales = [0.01, 0.02, 0.005, 0.03]
    sent, matmul, weights, rows = dispatch_and_matmul(one, "nvfp4-by-expert", expert_input_scales=scales)
    np.testing.assert_array_equal(sent.expert_tensor_scales.numpy(), np.array(scales, np.float32))
    out = matmul.run(
        sent.rows,
        weights,
        sent.row_offsets,
        row_scales=sent.scales,
        row_tensor_scales=sent.expert_tensor_scales,
    )
    one.synchronize()
    expect_product(sent, out, weights, rows, scales)


def test_rows_that_are_not_of_the_row_format_are_refused(one):
    sizes = dict(num_groups=1, inner=128, columns=64, max_rows=8)
    with pytest.raises(sy.InvalidArgument, match="row_format is 'fp5'; it must be one of: bf16, fp8, "):
        sy.GroupedMatmul(one, 0, row_format="fp5", **sizes)
    with pytest.raises(sy.InvalidArgument, match="row_format is 'mxfp8'; element must be 'bf16' with it"):
        sy.GroupedMatmul(one, 0, row_format="mxfp8", element="fp8", **sizes)
    weights, offsets = np.zeros((1, 64, 128), BF16), np.array([0, 8], np.uint32)
    codes, scales = np.zeros((8, 64), np.uint8), np.zeros(128 * 8, np.uint8)
    matmul = sy.GroupedMatmul(one, 0, row_format="nvfp4", **sizes)
    matmul.run(codes, weights, offsets, row_scales=scales)
    one.synchronize()
    refused = {
        r"rows has shape \(8, 128\); it must be \(max_rows, bytes of the codes of a row\) = \(8, 64\)": dict(
            rows=np.zeros((8, 128), np.uint8)
        ),
        "rows has dtype bfloat16; it must be uint8": dict(rows=codes.astype(BF16)),
        r"row_scales has shape \(8, 8\); it must be \(bytes of all scale tiles,\) = \(1024,\)": dict(
            row_scales=scales[:64].reshape(8, 8)
        ),
        "row_scales: must not be null": dict(row_scales=None),
        "row_tensor_scale has dtype float64": dict(row_tensor_scale=np.ones(1)),
        r"row_tensor_scale has shape \(2,\)": dict(row_tensor_scale=np.ones(2, np.float32)),
        r"row_tensor_scales has shape \(2,\); it must have 1\.\.1": dict(row_tensor_scales=np.ones(2, np.float32)),
        r"row_tensor_scales has shape \(0,\); it must have 1\.\.1": dict(row_tensor_scales=np.ones(0, np.float32)),
    }
    for message, wrong in refused.items():
        given = dict(dict(rows=codes, weights=weights, row_offsets=offsets, row_scales=scales), **wrong)
        with pytest.raises(sy.InvalidArgument, match=message):
            matmul.run(**given)
    with pytest.raises(TypeError, match="row_tensor_scale is a str; it must be a number or an array"):
        matmul.run(codes, weights, offsets, row_scales=scales, row_tensor_scale="1")
    matmul, rows = sy.GroupedMatmul(one, 0, **sizes), np.zeros((8, 128), BF16)
    ones = np.ones(1, np.float32)
    for name, value in (("row_scales", scales), ("row_tensor_scale", 2.0), ("row_tensor_scales", ones)):
        with pytest.raises(sy.InvalidArgument, match=f"{name} must be None: rows are bf16, which has no"):
            matmul.run(rows, weights, offsets, **{name: value})


def test_grouped_matmul_writes_what_a_combine_in_fp8_reads(one):
    random = np.random.default_rng(9)
    tokens = random_bf16(random, 10, 256)
    ids = np.stack([random.permutation(4)[:2] for _ in range(10)]).astype(np.int32)
    topk_weights = random.random((10, 2)).astype(np.float32)
    weights = random_bf16(random, 4, 256, 256)
    sizes = dict(n_experts=4, top_k=2, hidden=256, max_tokens_per_rank=10)
    ep = sy.ExpertParallel(one, protocol="direct", combine_format="fp8", **sizes)
    sent = ep.dispatch(0, tokens, ids)
    matmul = sy.GroupedMatmul(
        one, 0, num_groups=4, inner=256, columns=256, max_rows=sent.rows.shape[0], output="fp8-rows"
    )
    matmul.run(sent.rows, weights, sent.row_offsets, out=sent.expert_outputs)
    output = ep.combine(0, sent.expert_outputs, ids, topk_weights)
    ep.synchronize()
    for token in range(10):
        expected = sum(
            topk_weights[token, k] * (weights[ids[token, k]].astype(np.float64) @ tokens[token].astype(np.float64))
            for k in range(2)
        )
        error = output.numpy()[token].astype(np.float64) - expected
        assert np.linalg.norm(error) < 0.05 * np.linalg.norm(expected), token
    with pytest.raises(sy.InvalidArgument, match=r"out has shape .* it must be \(max_rows, combine_message_bytes\)"):
        matmul.run(sent.rows, weights, sent.row_offsets, out=sent.expert_outputs.numpy()[:, :256].copy())


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

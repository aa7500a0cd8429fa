"""Arrays of CuPy on a GPU, in and out without a copy. CuPy has no bfloat16: integers of its size serve as its bits."""

import numpy as np
import pytest

import switchyard_ep as sy

cupy = pytest.importorskip("cupy")
pytestmark = pytest.mark.skipif(
    not (cupy.is_available() and sy.has_cuda()), reason="no GPU, or built without the CUDA target"
)
TOKENS, EXPERTS, TOP_K, HIDDEN = 16, 8, 2, 256


def make_inputs():
    """The upper halves of floats (which bfloat16 keeps), ids and weights."""
    random = np.random.default_rng(0)
    tokens = (random.standard_normal((TOKENS, HIDDEN)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    ids = np.argsort(random.random((TOKENS, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int32)
    return cupy.asarray(tokens), cupy.asarray(ids), cupy.full((TOKENS, TOP_K), 0.5, cupy.float32)


@pytest.mark.parametrize("protocol", ["direct", "slotted"])
def test_a_step_on_cupys_stream(protocol):
    with sy.World(n_ranks=1, target="cuda") as world:
        ep = sy.ExpertParallel(
            world, n_experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, max_tokens_per_rank=TOKENS, protocol=protocol
        )
        tokens, ids, weights = make_inputs()
        output = cupy.zeros((TOKENS, HIDDEN), cupy.uint16)
        stream = cupy.cuda.Stream(non_blocking=True)
        cupy.cuda.Device().synchronize()
        sent = ep.dispatch(0, tokens, ids, stream=stream.ptr)
        ep.combine(0, sent.rows, ids, weights, out=output, stream=stream.ptr)
        stream.synchronize()
        ep.poll(0)
        assert cupy.array_equal(output, tokens)


def test_a_tensor_and_an_array_of_cupy_share_memory():
    with sy.World(n_ranks=1, target="cuda") as world:
        tensor = world.rank(0).array(np.arange(6, dtype=np.int32).reshape(2, 3), "int32")
        array = cupy.from_dlpack(tensor)
        assert array.shape == (2, 3) and array.dtype == cupy.int32
        array *= 2
        assert cupy.array_equal(cupy.from_dlpack(tensor), cupy.arange(0, 12, 2, dtype=cupy.int32).reshape(2, 3))
    del tensor  # the array keeps the memory
    assert int(array.sum()) == 30


def test_an_array_of_the_wrong_type_is_refused():
    with sy.World(n_ranks=1, target="cuda") as world:
        ep = sy.ExpertParallel(world, n_experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, max_tokens_per_rank=TOKENS)
        _, ids, _ = make_inputs()
        with pytest.raises(sy.InvalidArgument, match="tokens has dtype float32; it must be bfloat16"):
            ep.dispatch(0, cupy.zeros((TOKENS, HIDDEN), cupy.float32), ids)

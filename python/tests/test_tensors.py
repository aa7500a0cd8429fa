"""Arrays in and out: no copies, and errors that name the argument and its limit."""

import gc
import re
import weakref

import ml_dtypes
import numpy as np
import pytest

import switchyard_ep as sy
from conftest import BF16, SHAPE


def test_rank_memory_is_shared_with_numpy(world):
    tensor = world.rank(0).empty((3, 8), "float32")
    tensor.numpy()[1] = 5
    assert tensor.numpy()[1].sum() == 40
    assert np.shares_memory(tensor.numpy(), np.from_dlpack(tensor))
    assert (tensor.shape, tensor.dtype, tensor.device) == ((3, 8), "float32", "cpu")
    assert tensor.__dlpack_device__() == (1, 0)
    assert not hasattr(tensor, "__cuda_array_interface__")


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_types_of_ml_dtypes_are_shared(world, name):
    values = np.array([0.5, 1, 2, 4] * 4).astype(getattr(ml_dtypes, name))
    tensor = world.rank(1).array(values, name)
    assert tensor.numpy().dtype == values.dtype
    np.testing.assert_array_equal(np.asarray(tensor).view("u1"), values.view("u1"))


def test_memory_outlives_everything_else():
    world = sy.World(n_ranks=1, target="host")
    array = world.rank(0).array(np.arange(8), "int32").numpy()
    world.close()
    del world
    gc.collect()
    np.testing.assert_array_equal(array, np.arange(8))


def test_no_copy_is_made_of_what_is_passed(world, ep, step):
    """Combine writes to the caller's own memory."""
    outputs = [np.zeros((16, 256), BF16) for _ in range(4)]
    for r in range(4):
        sent = ep.dispatch(r, step.tokens[r], step.topk_ids[r])
        ep.combine(r, sent.rows, step.topk_ids[r], step.weights[r], out=outputs[r])
    ep.synchronize()
    np.testing.assert_array_equal(outputs[2], step.tokens[2])


def unaligned(array):
    memory = np.empty(array.nbytes + 32, np.uint8)
    offset = -memory.ctypes.data % 16 + 2
    view = memory[offset : offset + array.nbytes].view(np.uint16).reshape(array.shape)
    view[:] = array.view(np.uint16)
    return view.view(array.dtype)


class OnGpu:
    """An array that says it is on a GPU."""

    def __init__(self, array, device=0):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.__cuda_array_interface__ = dict(
            shape=array.shape, typestr="<V2", data=(array.ctypes.data, False), version=3
        )


BAD_TOKENS = [
    (lambda x: x.astype(np.float32), "tokens has dtype float32; it must be bfloat16"),
    (lambda x: x[:, :128], "tokens has shape (16, 128); it must be (num_tokens, hidden) = (any, 256)"),
    (lambda x: x[0], "tokens has shape (256,); it must be (num_tokens, hidden)"),
    (
        lambda x: np.concatenate([x, x[:, :1]], axis=1)[:, :256],
        "tokens has strides (257, 1) for shape (16, 256); its rows must be contiguous (C order), and a multiple of 16 "
        "bytes apart",
    ),
    (lambda x: np.concatenate([x, x], axis=1)[:, ::2], "its rows must be contiguous"),
    (lambda x: np.concatenate([x, x]), "tokens has 32 rows; max_tokens_per_rank is 16"),
    (unaligned, "it must be aligned to 16 bytes"),
    (OnGpu, "tokens is on cuda:0; rank 0 is on the host"),
]


@pytest.mark.parametrize("change,message", BAD_TOKENS)
def test_bad_tokens_are_refused_by_name(ep, step, change, message):
    with pytest.raises(sy.InvalidArgument, match=re.escape(message)):
        ep.dispatch(0, change(step.tokens[0]), step.topk_ids[0])
    # Nothing was enqueued: the right calls may follow.
    outputs = step.run(ep)
    ep.synchronize()
    np.testing.assert_array_equal(outputs[0].numpy(), step.tokens[0])


@pytest.mark.parametrize("tokens", [[1, 2], "tokens", 3, None])
def test_what_is_no_array_is_a_type_error(ep, step, tokens):
    with pytest.raises(TypeError, match="tokens is a .*it must be an array"):
        ep.dispatch(0, tokens, step.topk_ids[0])


def test_other_arguments_are_checked_as_well(ep, step):
    with pytest.raises(sy.InvalidArgument, match="topk_ids has dtype int16; it must be int32 or int64"):
        ep.dispatch(0, step.tokens[0], step.topk_ids[0].astype(np.int16))
    with pytest.raises(sy.InvalidArgument, match="topk_ids has strides .* it must be contiguous"):
        ep.dispatch(0, step.tokens[0], np.concatenate([step.topk_ids[0]] * 2, axis=1)[:, :2])
    with pytest.raises(TypeError, match="stream is a str; it must be None, 'current', an int, or have cuda_stream"):
        ep.dispatch(0, step.tokens[0], step.topk_ids[0], stream="mine")
    with pytest.raises(sy.InvalidArgument, match="stream"):
        ep.dispatch(0, step.tokens[0], step.topk_ids[0], stream=12345)
    with pytest.raises(sy.InvalidArgument, match=r"topk_ids has shape \(15, 2\); it must be \(num_tokens, top_k\)"):
        ep.dispatch(0, step.tokens[0], step.topk_ids[0][:15])
    with pytest.raises(sy.InvalidArgument, match=r"rank is 4; it must be 0\.\.3"):
        ep.dispatch(4, step.tokens[0], step.topk_ids[0])
    with pytest.raises(sy.InvalidArgument, match="unwritten is 'gone'; it must be one of: left, marked, zeroed"):
        ep.dispatch(0, step.tokens[0], step.topk_ids[0], unwritten="gone")
    sent = [ep.dispatch(r, step.tokens[r], step.topk_ids[r]) for r in range(4)]
    output = np.zeros((16, 256), BF16)
    output.flags.writeable = False
    with pytest.raises(sy.InvalidArgument, match="out is read-only"):
        ep.combine(0, sent[0].rows, step.topk_ids[0], step.weights[0], out=output)
    with pytest.raises(sy.InvalidArgument, match="topk_weights has dtype float64; it must be float32"):
        ep.combine(0, sent[0].rows, step.topk_ids[0], step.weights[0].astype(np.float64))


def test_options_are_checked(world):
    with pytest.raises(TypeError, match="unexpected option 'experts'; options are n_experts"):
        sy.ExpertParallel(world, experts=3, **SHAPE)
    with pytest.raises(TypeError, match="top_k is a str; it must be an int"):
        sy.ExpertParallel(world, **{**SHAPE, "top_k": "2"})
    with pytest.raises(ValueError, match="protocol is 'fast'; it must be one of: auto, slotted, direct"):
        sy.ExpertParallel(world, protocol="fast", **SHAPE)
    with pytest.raises(sy.InvalidArgument, match="hidden"):
        sy.ExpertParallel(world, **{**SHAPE, "hidden": 7})
    with pytest.raises(sy.InvalidArgument, match=r"n_ranks is 0; it must be 1\.\.512"):
        sy.World(n_ranks=0)
    with pytest.raises(sy.InvalidArgument, match="timeout is -1 s"):
        sy.ExpertParallel(world, timeout=-1, **SHAPE)


def test_torch_shares_memory(world, ep, step):
    torch = pytest.importorskip("torch")
    sent = [
        ep.dispatch(
            r, torch.from_numpy(step.tokens[r].view(np.int16)).view(torch.bfloat16), torch.from_numpy(step.topk_ids[r])
        )
        for r in range(4)
    ]
    ep.synchronize()
    rows = torch.from_dlpack(sent[0].rows)
    assert rows.dtype == torch.bfloat16 and rows.data_ptr() == sent[0].rows.data_ptr


def test_a_part_shares_the_memory_and_ends_a_weak_reference():
    with sy.World(n_ranks=1, target="host") as world:
        tensor = world.rank(0).array(np.arange(12, dtype=np.int32).reshape(4, 3), "int32")
        part = tensor.part(1, 3)
        array, reference = part.numpy(), weakref.ref(part)
        del part
        array[0, 0] = 50
        assert array.shape == (2, 3) and tensor.numpy()[1, 0] == 50 and reference() is not None
        del array
        assert reference() is None
        assert tensor.part(4, 4).shape == (0, 3)
        with pytest.raises(ValueError, match=r"part: 2\.\.5 is asked for; it must be within 0\.\.4"):
            tensor.part(2, 5)

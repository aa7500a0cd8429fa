"""Worlds over an allocator of the caller's."""

import gc
import os
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import switchyard_ep as sy
from conftest import SHAPE, Step


class Memory:
    """Allocates from NumPy, and knows what has been taken and not been given back."""

    def __init__(self):
        self.arrays, self.threads, self.most = {}, set(), 0

    def allocate(self, num_bytes, gpu, stream):
        assert num_bytes > 0 and gpu == 0 and stream >= 0
        array = np.full(num_bytes + 256, 0xAA, np.uint8)
        address = (array.ctypes.data + 255) // 256 * 256
        self.arrays[address] = (array, num_bytes)
        self.threads.add(threading.get_ident())
        self.most = max(self.most, sum(size for _, size in self.arrays.values()))
        return address

    def deallocate(self, address, num_bytes, gpu, stream):
        assert self.arrays.pop(address)[1] == num_bytes and gpu == 0 and stream >= 0

    def functions(self):
        return self.allocate, self.deallocate


def test_everything_comes_from_the_allocator_and_goes_back():
    memory, step = Memory(), Step(2)
    world = sy.World(n_ranks=2, target="host", memory=memory.functions())
    ep = sy.ExpertParallel(world, **SHAPE)
    outputs = step.run(ep)
    ep.synchronize()
    for output, tokens in zip(outputs, step.tokens):
        assert (output.numpy() == tokens).all()
    needed = sy.ExpertParallel.memory_needed(2, **SHAPE)["total"]
    assert memory.most >= 2 * needed
    assert any(address == outputs[0].data_ptr for address in memory.arrays)
    shared = outputs[0].numpy()
    del outputs, output, ep
    world.close()
    del world
    gc.collect()
    assert len(memory.arrays) == 1 and (shared == step.tokens[0]).all()  # as long as an array shares it
    del shared
    gc.collect()
    assert not memory.arrays


def test_tensors_are_dropped_while_kernels_run():
    """Threads of the library give memory back behind a launch: none of them may need the GIL for that, which
    closing the world, a long call of C, or the interpreter's end holds."""
    for _ in range(40):
        memory, step = Memory(), Step(2)
        world = sy.World(n_ranks=2, target="host", memory=memory.functions())
        ep = sy.ExpertParallel(world, timeout=5.0, **SHAPE)
        sent = [ep.dispatch(rank, step.tokens[rank], step.topk_ids[rank]) for rank in range(2)]
        for rank in range(2):
            ep.combine(rank, sent[rank].rows, step.topk_ids[rank], step.weights[rank])  # its output is dropped at once
            world.rank(rank).empty((1000,))
        del sent, ep, world
        gc.collect()
        assert not memory.arrays


def test_threads_of_ranks_allocate():
    memory = Memory()
    with sy.World(n_ranks=4, target="host", memory=memory.functions()) as world:

        begin = threading.Barrier(4)

        def work(rank):
            begin.wait()
            for size in range(1, 200):
                world.rank(rank).empty((size,), "uint8")

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(memory.threads) >= 4 and len(memory.arrays) < 100


@pytest.mark.parametrize(
    "allocate, text",
    [
        (lambda *_: 1 / 0, "ZeroDivisionError"),
        (lambda *_: None, "it returned None; it must return an address"),
        (lambda *_: 0, "returned null"),
        (lambda: 256, "takes 0 positional arguments"),
    ],
)
def test_an_allocator_that_fails_is_named(allocate, text):
    given_back = []
    with sy.World(n_ranks=1, target="host", memory=(allocate, lambda *piece: given_back.append(piece))) as world:
        with pytest.raises(sy.ResourceExhausted, match=text):
            world.rank(0).empty((16,))
        with pytest.raises(sy.ResourceExhausted, match=text):
            sy.ExpertParallel(world, **SHAPE)
    assert not given_back


def test_unaligned_memory_is_refused_and_given_back():
    memory = Memory()
    unaligned = {}

    def allocate(*wanted):
        address = memory.allocate(*wanted) + 16
        unaligned[address] = address - 16
        return address

    def deallocate(address, *rest):
        memory.deallocate(unaligned.pop(address), *rest)

    with sy.World(n_ranks=1, target="host", memory=(allocate, deallocate)) as world:
        with pytest.raises(sy.InvalidArgument, match="it must be aligned to 256 bytes"):
            world.rank(0).empty((16,))
    assert not memory.arrays


def test_what_deallocate_raises_is_reported(monkeypatch):
    memory, seen = Memory(), []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)

    def deallocate(*piece):
        memory.deallocate(*piece)
        raise ValueError("no way back")

    with sy.World(n_ranks=1, target="host", memory=(memory.allocate, deallocate)) as world:
        tensor = world.rank(0).empty((16,))
        del tensor
        gc.collect()
    assert any("no way back" in str(one.exc_value) for one in seen) and not memory.arrays


@pytest.mark.parametrize("memory", [1, (1, 2), (print,), (print, print, print), [print, print, 3]])
def test_what_is_no_allocator_is_refused(memory):
    with pytest.raises(TypeError, match=r"memory must be two functions, \(allocate, deallocate\)"):
        sy.World(n_ranks=1, target="host", memory=memory)


def test_a_world_that_is_joined_has_one_too():
    memory = Memory()
    with sy.World.join(0, 1, all_gather=lambda mine: [mine], target="host", memory=memory.functions()) as world:
        tensor = world.rank(0).empty((16,))
        assert tensor.data_ptr in memory.arrays


def test_the_interpreter_may_end_before_its_memory_goes_back():
    program = """
        import sys
        from test_memory import Memory, SHAPE, Step, sy
        memory, step = Memory(), Step(2)
        world = sy.World(n_ranks=2, target="host", memory=memory.functions())
        ep = sy.ExpertParallel(world, **SHAPE)
        outputs = step.run(ep)  # in flight
        for rank in range(2):
            world.rank(rank).empty((1000,))
        sys.modules["kept"] = (world, ep, outputs)
    """
    for _ in range(5):
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            cwd=os.path.dirname(__file__),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr

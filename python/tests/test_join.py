"""Worlds whose ranks are in several processes."""

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
import time

import numpy as np
import pytest

import switchyard_ep as sy
from conftest import SHAPE, Step

CONTEXT = multiprocessing.get_context("spawn")


def run_step(world, rank, n_ranks):
    ep = sy.ExpertParallel(world, **SHAPE)
    step = Step(n_ranks=n_ranks)
    sent = ep.dispatch(rank, step.tokens[rank], step.topk_ids[rank])
    output = ep.combine(rank, sent.rows, step.topk_ids[rank], step.weights[rank])
    ep.synchronize()
    np.testing.assert_array_equal(output.numpy(), step.tokens[rank])
    return [len(part) for part in world.all_gather(b"x" * (rank + 1))]


def by_rendezvous(rank, n_ranks, address, _, results):
    with sy.World.join(rank, n_ranks, rendezvous=address, target="host", num_workers=1) as world:
        results.put((rank, world.transport, run_step(world, rank, n_ranks)))


def by_all_gather(rank, n_ranks, _, pipes, results):
    def all_gather(mine):
        """Rank 0 collects what each sends, and sends all of it to each."""
        if rank == 0:
            parts = [mine] + [pipe.recv() for pipe in pipes]
            for pipe in pipes:
                pipe.send(parts)
            return parts
        pipes.send(mine)
        return pipes.recv()

    with sy.World.join(rank, n_ranks, all_gather=all_gather, target="host", num_workers=1) as world:
        results.put((rank, world.transport, run_step(world, rank, n_ranks)))


@pytest.mark.parametrize("work", [by_rendezvous, by_all_gather])
def test_processes_run_a_step(work, n_ranks=2):
    results = CONTEXT.Queue()
    mine, others = zip(*[CONTEXT.Pipe() for _ in range(n_ranks - 1)])
    address = f"unix:@switchyard-test-{os.getpid()}"
    processes = [
        CONTEXT.Process(
            target=work, args=(rank, n_ranks, address, list(mine) if rank == 0 else others[rank - 1], results)
        )
        for rank in range(n_ranks)
    ]
    for process in processes:
        process.start()
    try:
        seen = sorted(results.get(timeout=60) for _ in processes)
    except queue.Empty:
        seen = []
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    assert seen == [(rank, "process", [1, 2]) for rank in range(n_ranks)]


def gather_with_an_interrupt(rank, address, results):
    with sy.World.join(rank, 2, rendezvous=address, target="host", num_workers=1) as world:
        if rank == 1:
            time.sleep(1)
            results.put((rank, [world.all_gather(b"a"), world.all_gather(b"b")]))
            return
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            world.all_gather(b"x")
        with pytest.raises(sy.FailedPrecondition, match="all_gather: a call of this process is still under way"):
            world.all_gather(b"y")
        while True:
            with contextlib.suppress(sy.FailedPrecondition):
                gathered = world.all_gather(b"z")
                break
            time.sleep(0.05)
        results.put((rank, [gathered]))


def test_an_all_gather_behind_one_that_was_interrupted_waits_its_turn():
    results, address = CONTEXT.Queue(), f"unix:@switchyard-gather-{os.getpid()}"
    processes = [CONTEXT.Process(target=gather_with_an_interrupt, args=(rank, address, results)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        seen = dict(results.get(timeout=60) for _ in processes)
    finally:
        for process in processes:
            process.join(30)
            process.kill()
    assert seen == {0: [[b"z", b"b"]], 1: [[b"x", b"a"], [b"z", b"b"]]}


def test_what_all_gather_raises_is_raised():
    def all_gather(mine):
        raise LookupError("no such group")

    with pytest.raises(LookupError, match="no such group"):
        sy.World.join(0, 2, all_gather=all_gather, target="host")


def test_what_all_gather_returns_is_checked():
    with pytest.raises(sy.InvalidArgument, match="list of bytes"):
        sy.World.join(0, 2, all_gather=lambda mine: [1, 2], target="host")


def test_join_needs_one_way():
    with pytest.raises(sy.InvalidArgument, match="one of all_gather and rendezvous; none is"):
        sy.World.join(0, 2, target="host")
    with pytest.raises(sy.InvalidArgument, match="both are"):
        sy.World.join(0, 2, target="host", rendezvous="unix:@x", all_gather=lambda mine: [mine])


def test_processes_that_do_not_come_are_late():
    with pytest.raises(sy.DeadlineExceeded):
        sy.World.join(0, 2, target="host", rendezvous=f"unix:@switchyard-late-{os.getpid()}", timeout=0.3)

"""Calls of the stand-in for DeepEP that Ctrl-C breaks off, other threads beside them, and forks."""

import functools
import os
import queue
import signal
import threading
import time

import numpy as np
import pytest

import processes
from switchyard_ep import FailedPrecondition, deep_ep
from test_deep_ep import BF16, EXPERTS, HIDDEN, RANKS, Alone, Tokens, check_dispatch, dispatch_alone, layout_of


class Interrupted:
    """An ExpertParallel of which the next call of this name is interrupted, in front of it or behind it."""

    def __init__(self, ep, name, is_behind=False):
        self._ep, self._name, self._is_behind = ep, name, is_behind
        self.is_interrupted = False

    def __getattr__(self, name):
        return functools.partial(self._interrupt, name) if name == self._name else getattr(self._ep, name)

    def _interrupt(self, name, *arguments, **options):
        is_first, self.is_interrupted = not self.is_interrupted, True
        if is_first and not self._is_behind:
            raise KeyboardInterrupt
        result = getattr(self._ep, name)(*arguments, **options)
        if is_first:
            raise KeyboardInterrupt
        return result


def test_a_step_may_be_called_off_again_after_an_interrupt():
    buffer = deep_ep.Buffer(Alone(), target="host")
    dispatch_alone(buffer, 10)
    (exchange,) = buffer._exchanges.values()
    exchange.ep = Interrupted(exchange.ep, "synchronize")
    exchange.check = lambda: None
    with pytest.raises(KeyboardInterrupt):
        dispatch_alone(buffer, 40)
    assert exchange.ep.is_interrupted
    dispatch_alone(buffer, 40)


def interrupt(exchange, name, is_behind, call):
    ep = exchange.ep
    exchange.ep = Interrupted(ep, name, is_behind)
    with pytest.raises(KeyboardInterrupt):
        call()
    exchange.ep = ep


@pytest.mark.parametrize("is_behind", [False, True], ids=["in front", "behind"])
@pytest.mark.parametrize("name", ["dispatch", "cached dispatch", "combine", "reopen_step", "call_off_step"])
def test_steps_go_on_behind_an_interrupt(name, is_behind):
    buffer = deep_ep.Buffer(Alone(), target="host")
    received, handle = dispatch_alone(buffer, 10)[::4]
    (exchange,) = buffer._exchanges.values()
    combine = functools.partial(buffer.combine, received, handle)
    calls = {
        "dispatch": lambda: dispatch_alone(buffer, 9),
        "cached dispatch": lambda: buffer.dispatch(np.zeros((10, HIDDEN), BF16), handle=handle),
        "call_off_step": lambda: dispatch_alone(buffer, 40),
    }
    if name == "reopen_step":
        combine()
    if name == "cached dispatch":
        dispatch_alone(buffer, 9)
    interrupt(exchange, name.split()[-1], is_behind, calls.get(name, combine))
    if name == "call_off_step":  # the next call is told of it
        dispatch_alone(buffer, 40)
    for _ in range(2):  # of rows that may have been combined, or over which others may have been dispatched
        np.testing.assert_array_equal(combine()[0], received)
    rows, handle = dispatch_alone(buffer, 12)[::4]
    np.testing.assert_array_equal(buffer.combine(rows, handle)[0], rows)
    dispatch_alone(buffer, 40)


HALVES = ["dispatch_async", "dispatch_wait", "combine_async", "combine_wait"]


@pytest.mark.parametrize("is_behind", [False, True], ids=["in front", "behind"])
@pytest.mark.parametrize("name", ["dispatch", "combine", *HALVES])
def test_low_latency_steps_go_on_behind_an_interrupt(name, is_behind):
    buffer, has_hook = deep_ep.Buffer(Alone(), target="host"), name in HALVES
    x, ids = np.arange(8 * HIDDEN).reshape(8, HIDDEN).astype(BF16), np.arange(16).reshape(8, 2) % EXPERTS
    weights = np.ones((8, 2), np.float32)

    def dispatch():
        rows, _, handle, _, hook = buffer.low_latency_dispatch(
            x, ids, 8, EXPERTS, use_fp8=False, return_recv_hook=has_hook
        )
        received.append((rows, handle))
        if has_hook:
            hook()

    def combine():
        rows, handle = received[-1]
        sums, _, hook = buffer.low_latency_combine(rows, ids, weights, handle, return_recv_hook=has_hook)
        if has_hook:
            hook()
        np.testing.assert_array_equal(sums, x * BF16(2))

    received = []
    for _ in range(2):  # both Exchanges of the pair
        dispatch()
        combine()
    if name.startswith("dispatch"):
        interrupt(received[-2][1].exchange, name, is_behind, dispatch)
        if name == "dispatch_wait":
            combine()
    else:
        dispatch()
        interrupt(received[-1][1].exchange, name, is_behind, combine)
        combine()
    for _ in range(4):
        dispatch()
        combine()


def wait_until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def wait_for_a_late_rank(group):
    """Rank 1 comes to the second dispatch when rank 0 no longer waits for it: another thread of rank 0 has called
    meanwhile, and Ctrl-C has ended the wait. The steps behind it are whole."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank, every = group.rank(), [Tokens(of) for of in range(RANKS)]
    mine, buffer = every[rank], deep_ep.Buffer(group, target="host")
    layout = layout_of(buffer, mine)

    def dispatch():
        return buffer.dispatch(mine.x, topk_idx=mine.ids, topk_weights=mine.weights, **layout)

    received = dispatch()
    buffer.combine(received[0], check_dispatch(rank, every, received))
    (exchange,) = buffer._exchanges.values()
    assert exchange.state == "closed" and not buffer._gate.holder
    if rank == 1:
        group.all_gather(b"")
        dispatch()
    else:
        refused = []

        def call_beside():
            try:
                wait_until(lambda: buffer._gate.holder and exchange.state == "open")
                for call in (dispatch, lambda: buffer._run_hook(exchange, None, None)):
                    try:
                        call()
                    except FailedPrecondition as error:
                        refused.append(str(error))
            finally:
                os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=call_beside)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            dispatch()
        thread.join()
        beside = "is called while another thread is in a call of this Buffer"
        assert refused == [f"dispatch {beside}", f"a hook {beside}"]
        group.all_gather(b"")
    for _ in range(2):
        received = dispatch()
        handle = check_dispatch(rank, every, received)
        combined, _, _ = buffer.combine(received[0], handle)
        times = mine.in_rank.sum(1, keepdims=True)
        np.testing.assert_array_equal(combined, (mine.x.astype(np.float32) * times).astype(BF16))
    buffer.destroy()


def test_a_late_rank_a_second_thread_and_ctrl_c():
    processes.run(wait_for_a_late_rank, RANKS)


def in_a_thread(function):
    results = queue.Queue()
    thread = threading.Thread(target=lambda: results.put(function()))
    thread.start()
    thread.join()
    return results.get(timeout=1)


def test_an_interrupt_leaves_no_gate_shut():
    buffer = deep_ep.Buffer(Alone(), target="host")
    assert buffer._gate.enter()  # and Ctrl-C comes before the call begins
    assert not in_a_thread(buffer._gate.enter)
    buffer._gate.holder["thread"] += 1
    with pytest.raises(FailedPrecondition, match="low_latency_query_mask_buffer is called"):
        buffer.low_latency_query_mask_buffer(np.zeros(1, np.int32))
    buffer._gate.holder["thread"] -= 1
    dispatch_alone(buffer, 10)
    assert not buffer._gate.holder and buffer._gate.depth == 0
    in_a_thread(lambda: dispatch_alone(buffer, 10))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python's, of a fork with threads
def test_a_fork_beside_a_call_leaves_no_gate_shut():
    buffer = deep_ep.Buffer(Alone(), target="host")
    assert in_a_thread(buffer._gate.enter)
    assert not buffer._gate.enter()
    child = os.fork()
    if child == 0:
        os._exit(0 if buffer._gate.enter() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not buffer._gate.enter()

"""Calls that wait release the GIL: a thread for another rank goes on meanwhile, and ends the wait."""

import gc
import threading

import numpy as np
import pytest

import switchyard_ep as sy
from conftest import BF16, SHAPE, Step

TIMEOUT = 20.0  # of a wait that nobody could end, so that a test fails instead of hanging


@pytest.fixture
def pair():
    with sy.World(n_ranks=2, target="host") as world:
        yield world


class OtherThread(threading.Thread):
    """Runs a function, and raises in join() what it has raised."""

    def __init__(self, function):
        super().__init__(daemon=True)
        self.function, self.error = function, None
        self.has_begun = threading.Event()
        self.start()
        self.has_begun.wait()

    def run(self):
        try:
            self.has_begun.set()
            self.function()
        except BaseException as error:
            self.error = error

    def join(self, timeout=None):
        super().join(timeout)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def test_counts_are_cleared_behind_a_step_of_another_thread(pair):
    step = Step(2)
    ep = sy.ExpertParallel(pair, counts_experts=True, timeout=TIMEOUT, first_timeout=TIMEOUT, **SHAPE)
    ep.dispatch(0, step.tokens[0], step.topk_ids[0])
    thread = OtherThread(lambda: ep.clear_expert_counts(0))  # waits for the rank's stream, which waits for rank 1
    ep.dispatch(1, step.tokens[1], step.topk_ids[1])
    thread.join(TIMEOUT)
    assert ep.expert_counts(0) == [0] * 8


def drop_behind_a_step(pair, make):
    """Drops what make() has enqueued on a stream of the caller's, behind a dispatch that waits for rank 1."""
    step = Step(2)
    ep = sy.ExpertParallel(pair, timeout=TIMEOUT, first_timeout=TIMEOUT, **SHAPE)
    stream = pair.rank(0).create_stream()
    sent = ep.dispatch(0, step.tokens[0], step.topk_ids[0], stream=stream)
    kept = [make(sent, stream)]

    def drop():
        kept.clear()
        gc.collect()

    thread = OtherThread(drop)
    ep.dispatch(1, step.tokens[1], step.topk_ids[1])
    thread.join(TIMEOUT)
    ep.synchronize()


def test_a_matmul_is_dropped_behind_a_step_of_another_thread(pair):
    weights = np.zeros((4, 64, 256), BF16)

    def make(sent, stream):
        matmul = sy.GroupedMatmul(pair, 0, num_groups=4, inner=256, columns=64, max_rows=len(sent.rows))
        matmul.run(sent.rows, weights, sent.row_offsets, stream=stream)
        return matmul

    drop_behind_a_step(pair, make)


def test_an_attention_is_dropped_behind_a_step_of_another_thread(pair):
    rows = np.zeros((8, 1, 64), BF16)

    def make(sent, stream):
        sizes = dict(head_dim=64, num_heads=1, num_kv_heads=1, max_query_len=8, max_key_len=8)
        attention = sy.Attention(pair, 0, **sizes)
        attention.run(rows, rows, rows, stream=stream)
        return attention

    drop_behind_a_step(pair, make)


def test_a_graph_is_dropped_behind_a_step_of_another_thread(pair):
    step = Step(2)
    ep = sy.ExpertParallel(pair, protocol="direct", timeout=TIMEOUT, first_timeout=TIMEOUT, **SHAPE)
    ep.warm_up()

    def step_of(rank, out):
        sent = ep.dispatch(rank, step.tokens[rank], step.topk_ids[rank])
        ep.combine(rank, sent.rows, step.topk_ids[rank], step.weights[rank], out=out)

    outputs = [pair.rank(rank).empty(step.tokens[rank].shape) for rank in range(2)]
    graphs = [pair.capture(lambda: step_of(0, outputs[0]))]
    graphs[0].launch()
    thread = OtherThread(graphs.clear)
    step_of(1, outputs[1])
    thread.join(TIMEOUT)
    ep.synchronize()
    for output, tokens in zip(outputs, step.tokens):
        assert (output.numpy() == tokens).all()

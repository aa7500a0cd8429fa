"""Bad input of every kind, where calls, threads, signals, forks and ends of the interpreter meet: an exception each."""

import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

import switchyard_ep as sy
from conftest import BF16, SHAPE, Step
from test_robustness import interrupt_after, run_python
from test_tensors import OnGpu, unaligned


def wait_for_child(child):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


def in_child(function):
    """Calls a function in a fork; what it raises is a failure."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            function()
            status = 0
        finally:
            os._exit(status)
    return wait_for_child(child)


# Arrays of the kernels other than dispatch, whose are in test_tensors.py.

BAD_ARRAYS = [
    (lambda x: x.astype(np.float32), "has dtype float32; it must be bfloat16"),
    (lambda x: x[:, :1], "has shape"),
    (lambda x: np.repeat(x, 2, axis=-1)[..., ::2], "must be contiguous"),
    (unaligned, "aligned to 16 bytes"),
    (OnGpu, "is on cuda:0; rank 0 is on the host"),
]


BAD_ROUTINGS = [
    (dict(topk_ids=np.zeros((3, 2), np.int32)), "topk_ids has dtype int32; it must be int64"),
    (dict(topk_ids=np.zeros(6, np.int64)), "topk_ids has shape"),
    (dict(topk_ids=np.zeros((3, 4), np.int64)[:, ::2]), "topk_ids"),
    (dict(n_experts=7, choices_of_expert=np.zeros(7, np.int32)), "n_experts"),
    (dict(n_experts=0, choices_of_expert=np.zeros(0, np.int32)), "n_experts"),
    (dict(tokens_of_rank=np.zeros(3, np.int32)), "tokens_of_rank has shape"),
    (dict(choices_of_expert=np.zeros(8, np.int64)), "choices_of_expert has dtype int64"),
    (dict(is_token_in_rank=np.zeros((2, 2), np.uint8)), "is_token_in_rank has shape"),
]


@pytest.mark.parametrize("change,message", BAD_ROUTINGS)
def test_counting_refuses_bad_arrays(change, message):
    with sy.World(n_ranks=2, target="host") as world:
        good = dict(
            topk_ids=np.zeros((3, 2), np.int64),
            n_experts=8,
            tokens_of_rank=np.zeros(2, np.int32),
            choices_of_expert=np.zeros(8, np.int32),
            is_token_in_rank=np.zeros((3, 2), np.uint8),
        )

        def count(arguments):
            ids, n_experts = arguments.pop("topk_ids"), arguments.pop("n_experts")
            world.count_routing(0, ids, n_experts, **arguments)

        count(dict(good))
        with pytest.raises(sy.InvalidArgument, match=message):
            count({**good, **change})


@pytest.mark.parametrize("change,message", BAD_ARRAYS)
def test_other_kernels_refuse_bad_arrays(change, message):
    with sy.World(n_ranks=1, target="host") as world:
        attention = sy.Attention(world, 0, head_dim=64, num_heads=2, num_kv_heads=2, max_query_len=16, max_key_len=16)
        good = np.zeros((16, 2, 64), BF16)
        with pytest.raises(sy.InvalidArgument, match="keys .*" + message):
            attention.run(good, change(good), good)
        attention.run(good, good, good)
        matmul = sy.GroupedMatmul(world, 0, num_groups=1, inner=64, columns=64, max_rows=16)
        rows, weights, offsets = np.zeros((16, 64), BF16), np.zeros((1, 64, 64), BF16), np.array([0, 16], np.uint32)
        with pytest.raises(sy.InvalidArgument, match="rows .*" + message):
            matmul.run(change(rows), weights, offsets)
        with pytest.raises(sy.InvalidArgument, match="row_offsets has dtype float32"):
            matmul.run(rows, weights, offsets.astype(np.float32))
        matmul.run(rows, weights, offsets)
        world.synchronize()


class Broken:
    """An array whose description is nonsense."""

    def __init__(self, interface):
        self.__cuda_array_interface__ = interface


@pytest.mark.parametrize(
    "interface", [5, {}, {"data": None}, dict(data=(1,), shape=(1,)), dict(data=(16, False), shape="x", typestr="<u2")]
)
def test_an_array_that_describes_itself_wrongly_is_a_type_error(ep, step, interface):
    with pytest.raises(TypeError, match="tokens .*__cuda_array_interface__"):
        ep.dispatch(0, Broken(interface), step.topk_ids[0])


def test_an_array_that_raises_is_a_type_error(ep, step):
    class Raises:
        def __dlpack__(self, **_):
            raise OSError("gone")

        def __dlpack_device__(self):
            return (1, 0)

    with pytest.raises(TypeError, match="tokens is a .*Raises"):
        ep.dispatch(0, Raises(), step.topk_ids[0])


def test_arrays_may_be_dropped_at_once(world):
    """The extension keeps what a step uses until it has ended."""
    ep, outputs = sy.ExpertParallel(world, **SHAPE), []
    for rank in range(4):
        sent = ep.dispatch(rank, Step().tokens[rank], Step().topk_ids[rank])
        outputs.append(ep.combine(rank, sent.rows, Step().topk_ids[rank], Step().weights[rank]))
        del sent
    gc.collect()
    noise = [np.full((16, 256), 9, BF16) for _ in range(64)]  # where freed memory would be reused
    ep.synchronize()
    np.testing.assert_array_equal(outputs[3].numpy(), Step().tokens[3])
    assert len(noise) == 64


# Callbacks.

BAD_GATHERS = [
    (lambda mine: [], "returned nothing"),
    (lambda mine: [mine], "rank 1 has no process"),
    (lambda mine: [mine] * 3, "the bytes of 3 processes; there are 2 ranks"),
    (lambda mine: [mine, mine], "rank 0 is claimed by"),
    (lambda mine: [mine, b""], "not one of this library"),
    (lambda mine: ["a", "b"], "list of bytes"),
]


@pytest.mark.parametrize("all_gather,message", BAD_GATHERS)
def test_bytes_of_the_wrong_processes_are_refused(all_gather, message):
    with pytest.raises(sy.InvalidArgument, match=message):
        sy.World.join(0, 2, all_gather=all_gather, target="host", timeout=0.5)


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt, SystemExit, StopIteration])
@pytest.mark.parametrize("is_main", [True, False])
def test_what_a_callback_raises_is_raised_on_every_thread(error, is_main):
    seen = []

    def all_gather(mine):
        raise error("no")

    def join():
        try:
            sy.World.join(0, 2, all_gather=all_gather, target="host")
        except BaseException as raised:
            seen.append(type(raised))

    if is_main:
        join()
    else:
        thread = threading.Thread(target=join)
        thread.start()
        thread.join(20)
    assert seen == [error]


def test_ctrl_c_interrupts_a_callback():
    interrupt_after(0.1)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sy.World.join(0, 2, all_gather=lambda mine: time.sleep(20), target="host")
    assert time.monotonic() - begin < 5


def test_what_cannot_be_captured_says_so(world, ep, step):
    for call in (lambda: world.capture(lambda: None), world.close, ep.synchronize, ep.reset):
        with pytest.raises(sy.FailedPrecondition, match="capture|recorded"):
            world.capture(call)
    step.run(ep)
    ep.synchronize()


# Threads.


def test_one_of_many_threads_gets_to_make_a_call(world, step):
    ep, results = sy.ExpertParallel(world, timeout=0.3, **SHAPE), []

    def dispatch():
        for _ in range(20):
            try:
                ep.dispatch(0, step.tokens[0], step.topk_ids[0])
                results.append("sent")
            except sy.FailedPrecondition as error:
                results.append(str(error))

    threads = [threading.Thread(target=dispatch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("sent") == 1 and len(results) == 80
    assert all("next must come combine" in result for result in results if result != "sent")
    with pytest.raises(sy.DeadlineExceeded):
        ep.synchronize()
    ep.reset()


def test_a_world_is_closed_while_another_thread_waits(step):
    world, seen = sy.World(n_ranks=4, target="host"), []
    ep = sy.ExpertParallel(world, timeout=0.3, **SHAPE)
    ep.dispatch(0, step.tokens[0], step.topk_ids[0])

    def wait():
        try:
            ep.synchronize(0)
        except sy.SwitchyardError as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    world.close()
    thread.join(20)
    assert isinstance(seen[0], (sy.DeadlineExceeded, sy.FailedPrecondition))
    with pytest.raises(sy.FailedPrecondition, match="closed"):
        ep.synchronize(0)


def test_questions_while_another_thread_resets_are_answered_or_refused(world):
    ep, stop, answers, refusals = sy.ExpertParallel(world, **SHAPE), threading.Event(), [], []

    def ask():
        while not stop.is_set():
            try:
                answers.append((ep.n_ranks, len(ep.placement), ep.config["n_experts"], ep.fault(0)))
            except sy.FailedPrecondition as error:
                refusals.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(5):
        ep.reset(survivors=[0, 1, 2])
        ep.reset_to([0, 1, 2, 3])
    stop.set()
    thread.join()
    assert {answer[2:] for answer in answers} == {(8, None)}
    assert {answer[0] for answer in answers} <= {3, 4}
    assert all("under way on another thread" in refusal for refusal in refusals)


# Signals.


def test_ctrl_c_interrupts_every_wait(world, step):
    ep = sy.ExpertParallel(world, timeout=1.2, **SHAPE)
    ep.dispatch(0, step.tokens[0], step.topk_ids[0])  # waits for ranks that never come
    for wait in (world.synchronize, world.rank(0).synchronize, ep.synchronize):
        interrupt_after(0.1)
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - begin < 1.0
    with pytest.raises(sy.DeadlineExceeded):
        ep.synchronize()
    ep.reset()
    outputs = step.run(ep)
    ep.synchronize()
    np.testing.assert_array_equal(outputs[0].numpy(), step.tokens[0])


# Forks.


def test_a_fork_with_kernels_in_flight_has_no_world(world, step):
    ep = sy.ExpertParallel(world, timeout=0.3, **SHAPE)
    ep.dispatch(0, step.tokens[0], step.topk_ids[0])
    thread = threading.Thread(target=lambda: pytest.raises(sy.DeadlineExceeded, ep.synchronize, 0))
    thread.start()

    def use_all():
        calls = [ep.synchronize, ep.reset, lambda: ep.fault(0), lambda: ep.config, world.synchronize]
        calls += [lambda: world.n_ranks, lambda: ep.combine(0, None, step.topk_ids[0], step.weights[0])]
        for call in calls:
            with pytest.raises(sy.FailedPrecondition, match="fork"):
                call()
        world.close()  # nothing of it is here to be closed

    assert in_child(use_all) == 0
    thread.join()
    ep.reset()
    outputs = step.run(ep)
    ep.synchronize()
    np.testing.assert_array_equal(outputs[1].numpy(), step.tokens[1])


# The interpreter's end.

ENDS = {
    "a thread waits for a rank": "threading.Thread(target=lambda: ep.synchronize(0), daemon=True).start()",
    "threads wait for the world": """
for _ in range(3): threading.Thread(target=world.synchronize, daemon=True).start()""",
    "a thread waits, and the names are gone": """
threading.Thread(target=ep.synchronize, daemon=True).start()
del ep, world""",
    "a thread joins": """
join = lambda: sy.World.join(0, 2, rendezvous=address, target="host", timeout=1)
threading.Thread(target=join, daemon=True).start()""",
    "a callback sleeps": """
gather = lambda mine: time.sleep(30)
threading.Thread(target=lambda: sy.World.join(0, 2, all_gather=gather, target="host"), daemon=True).start()""",
    "a thread calls without end": """
def call():
    while True:
        try: world.synchronize()
        except sy.SwitchyardError: pass
threading.Thread(target=call, daemon=True).start()""",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_ends_while_threads_of_its_wait(end):
    program = """
import os, threading, time
import switchyard_ep as sy
threading.excepthook = lambda _: None  # Python itself aborts if a daemon thread prints at its end
address = f"unix:@switchyard-end-{os.getpid()}"
world = sy.World(n_ranks=4, target="host")
ep = sy.ExpertParallel(world, n_experts=8, top_k=2, hidden=256, max_tokens_per_rank=16, timeout=0.2)
tokens, ids = world.rank(0).empty((16, 256)), world.rank(0).empty((16, 2), "int32")
ep.dispatch(0, tokens, ids)  # will wait for the others until its deadline
"""
    ended = run_python(program + ENDS[end] + "\ntime.sleep(0.05)\n", timeout=20)
    assert ended.returncode == 0, ended.stderr

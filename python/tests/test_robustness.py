"""What goes wrong around a step: an exception each, never a crash or a hang."""

import ast
import inspect
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import switchyard_ep as sy
from conftest import BF16, SHAPE, Step


def run_python(code, timeout=60):
    """Runs a program of its own, beside this file, and returns how it ended."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=os.path.dirname(__file__),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def test_a_late_rank_is_named(world, step):
    ep = sy.ExpertParallel(world, timeout=0.2, **SHAPE)
    for rank in (0, 1, 2):
        ep.dispatch(rank, step.tokens[rank], step.topk_ids[rank])
    with pytest.raises(sy.DeadlineExceeded, match="rank 3") as caught:
        ep.synchronize(0)
    error = caught.value
    assert error.code == "deadline exceeded"
    assert error.late_rank == 3 and error.waiting_rank in (0, 1, 2)
    assert error.phase in ("dispatch_async", "dispatch_wait")
    assert 0.2 <= error.elapsed < 30
    assert error.fault.kind == "timeout"
    with pytest.raises(sy.FailedPrecondition, match="call reset"):
        ep.combine(0, None, step.topk_ids[0], step.weights[0])
    ep.reset()
    outputs = step.run(ep)
    ep.synchronize()
    np.testing.assert_array_equal(outputs[1].numpy(), step.tokens[1])


def test_a_bad_expert_id_is_named(ep, step):
    step.topk_ids[2][5, 1] = 99
    step.run(ep)
    with pytest.raises(sy.InvalidArgument, match="99") as caught:
        ep.synchronize()
    assert caught.value.fault.kind == "bad expert id" and caught.value.fault.seen == 99
    ep.reset()


def test_ranks_go_on_without_one_that_left(world, step):
    ep = sy.ExpertParallel(world, **SHAPE)
    step.run(ep)
    ep.synchronize()
    rows = ep.dispatch(0, step.tokens[0], step.topk_ids[0])
    for r in (1, 2, 3):
        ep.dispatch(r, step.tokens[r], step.topk_ids[r])
    ep.synchronize()
    with pytest.raises(sy.FailedPrecondition, match="still referenced"):
        ep.reset(survivors=[0, 1, 3])
    del rows
    ep.reset(survivors=[0, 1, 3])
    assert ep.n_ranks == 3
    three = Step(n_ranks=3)
    outputs = three.run(ep)
    ep.synchronize()
    np.testing.assert_array_equal(outputs[2].numpy(), three.tokens[2])


def test_calls_out_of_order_say_what_must_come(ep, step):
    with pytest.raises(sy.FailedPrecondition, match="next must come dispatch"):
        ep.combine(0, None, step.topk_ids[0], step.weights[0])


def test_a_closed_world_refuses_every_call(step):
    world = sy.World(n_ranks=4, target="host")
    rank, ep = world.rank(0), sy.ExpertParallel(world, **SHAPE)
    outputs = step.run(ep)
    graph = world.capture(lambda: None)
    attention = sy.Attention(world, 0, head_dim=64, num_heads=1, num_kv_heads=1, max_query_len=16, max_key_len=16)
    world.close()
    world.close()
    np.testing.assert_array_equal(outputs[0].numpy(), step.tokens[0])  # memory lives on
    calls = [
        lambda: world.rank(0),
        lambda: world.synchronize(),
        lambda: rank.empty((1,)),
        lambda: ep.dispatch(0, step.tokens[0], step.topk_ids[0]),
        lambda: ep.synchronize(),
        lambda: ep.reset(),
        lambda: ep.config,
        lambda: graph.launch(),
        lambda: attention.run(None, None, None),
        lambda: sy.ExpertParallel(world, **SHAPE),
    ]
    for call in calls:
        with pytest.raises(sy.FailedPrecondition, match="the world has been closed"):
            call()


def test_a_fork_has_no_world(world, ep, step):
    step.run(ep)
    ep.synchronize()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ep.dispatch(0, step.tokens[0], step.topk_ids[0])
        except sy.FailedPrecondition as error:
            # A world of the child's own works; what it inherited is not destroyed.
            if "fork" in str(error):
                with sy.World(n_ranks=1, target="host") as own:
                    status = 0 if own.rank(0).array([1.0], "float32").numpy()[0] == 1 else 2
        os._exit(status)
    deadline = time.monotonic() + 30
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_fork_ends_like_any_process():
    ended = run_python("""
        import os
        import switchyard_ep as sy
        from conftest import Step, SHAPE
        world = sy.World(n_ranks=4, target="host")
        ep = sy.ExpertParallel(world, **SHAPE)
        outputs = Step().run(ep)
        if os.fork() == 0:
            raise SystemExit(0)  # with all destructors and atexit
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
        ep.synchronize()
        """)
    assert ended.returncode == 0, ended.stderr


def test_two_threads_in_one_rank_are_refused(world, step):
    ep = sy.ExpertParallel(world, timeout=1.0, **SHAPE)
    ep.dispatch(0, step.tokens[0], step.topk_ids[0])  # waits for the others, which never come
    seen = []

    def wait():
        try:
            ep.synchronize(0)
        except sy.SwitchyardError as error:
            seen.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)  # the other thread is in its wait, and the GIL is free
    with pytest.raises(sy.FailedPrecondition, match="rank 0 is in synchronize on another thread"):
        ep.synchronize(0)
    thread.join()
    assert isinstance(seen[0], sy.DeadlineExceeded)
    ep.reset()


def test_the_gil_is_free_while_a_call_waits(world, step):
    ep = sy.ExpertParallel(world, timeout=0.5, **SHAPE)
    ep.dispatch(0, step.tokens[0], step.topk_ids[0])
    turns, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0.001)

    thread = threading.Thread(target=count)
    thread.start()
    with pytest.raises(sy.DeadlineExceeded):
        ep.synchronize(0)
    stop.set()
    thread.join()
    assert turns[0] > 20


def interrupt_after(seconds):
    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    return timer


def test_ctrl_c_interrupts_a_wait(world, step):
    ep = sy.ExpertParallel(world, timeout=2.0, **SHAPE)
    ep.dispatch(0, step.tokens[0], step.topk_ids[0])
    interrupt_after(0.2)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ep.synchronize(0)
    assert time.monotonic() - begin < 1.5
    # The next call waits for the interrupted one, which ends at its deadline.
    with pytest.raises(sy.DeadlineExceeded):
        ep.synchronize(0)
    ep.reset()
    outputs = step.run(ep)
    ep.synchronize()
    np.testing.assert_array_equal(outputs[0].numpy(), step.tokens[0])


def test_ctrl_c_interrupts_a_join():
    interrupt_after(0.2)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        sy.World.join(rank=0, n_ranks=2, rendezvous=f"unix:@switchyard-{os.getpid()}", target="host", timeout=2.0)
    assert time.monotonic() - begin < 1.5


ENDS = {
    "in flight": "",
    "in flight, and the names are gone": "del ep, world, outputs",
    "in flight, in a cycle": "cycle = [ep, world]; cycle.append(cycle); del ep, world, cycle",
    "in flight, and an exception ends it": "raise SystemExit(0)",
    "in flight, and arrays outlive the rest": "import builtins; builtins.kept = outputs[0].numpy(); del ep, world, outputs",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_ends_with_kernels(end):
    ended = run_python(f"""
        import switchyard_ep as sy
        from conftest import Step, SHAPE
        world = sy.World(n_ranks=4, target="host")
        ep = sy.ExpertParallel(world, timeout=0.5, **SHAPE)
        outputs = Step().run(ep)
        step = Step(seed=1)
        ep.dispatch(0, step.tokens[0], step.topk_ids[0])  # will wait for the others until its deadline
        {ENDS[end]}
        """)
    assert ended.returncode == 0, ended.stderr


def test_an_interrupted_program_ends():
    ended = run_python("""
        import os, signal, threading
        import switchyard_ep as sy
        from conftest import Step, SHAPE
        world = sy.World(n_ranks=4, target="host")
        ep = sy.ExpertParallel(world, timeout=1.0, **SHAPE)
        step = Step()
        ep.dispatch(0, step.tokens[0], step.topk_ids[0])
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        ep.synchronize()
        """)
    assert ended.returncode in (1, 130, -signal.SIGINT), ended.stderr
    assert "KeyboardInterrupt" in ended.stderr


def test_import_is_quick_and_needs_no_numpy():
    ended = run_python("""
        import sys, time
        begin = time.perf_counter()
        import switchyard_ep
        elapsed = time.perf_counter() - begin
        assert "numpy" not in sys.modules and "torch" not in sys.modules
        assert elapsed < 0.3, elapsed
        """)
    assert ended.returncode == 0, ended.stderr


def test_the_package_is_typed():
    folder = os.path.dirname(sy.__file__)
    assert os.path.exists(os.path.join(folder, "py.typed"))
    stubs = open(os.path.join(folder, "_core.pyi")).read()
    compile(stubs, "_core.pyi", "exec")
    for name in ("World", "ExpertParallel", "Attention", "GroupedMatmul", "Tensor", "FaultRecord"):
        assert f"class {name}" in stubs
        assert getattr(sy, name).__doc__


MUST_BE_GIVEN = object()


def keywords_of(function):
    """The options that a stub takes as keywords, and their defaults."""
    arguments = function.args
    assert arguments.kwarg is None
    defaults = zip((one.arg for one in arguments.kwonlyargs), arguments.kw_defaults)
    return {name: MUST_BE_GIVEN if default is None else ast.literal_eval(default) for name, default in defaults}


def test_stubs_have_all_options_and_their_defaults(world):
    with open(os.path.join(os.path.dirname(sy.__file__), "_core.pyi")) as stubs:
        classes = {node.name: node for node in ast.parse(stubs.read()).body if isinstance(node, ast.ClassDef)}
    weights = [sy.ExpertWeights(*(np.zeros(shape, BF16) for shape in ((2, 16, 256), (2, 256, 8))))] * 4
    layer_shape = dict(SHAPE, expert_width=8)
    makers = {
        "ExpertParallel.__init__": (SHAPE, lambda **options: sy.ExpertParallel(world, **options)),
        "ExpertParallel.memory_needed": (SHAPE, lambda **options: sy.ExpertParallel(world, **options)),
        "MoeLayer.__init__": (layer_shape, lambda **options: sy.MoeLayer(world, weights, **options)),
    }
    for name, (shape, make) in makers.items():
        of_class, method = name.split(".")
        functions = {node.name: node for node in classes[of_class].body if isinstance(node, ast.FunctionDef)}
        defaults = keywords_of(functions[method])
        config = make(**shape).config
        assert set(defaults) == set(config), name
        assert {option for option, value in defaults.items() if value is MUST_BE_GIVEN} == set(shape), name
        values = {option: value for option, value in defaults.items() if value not in (MUST_BE_GIVEN, ...)}
        assert make(**shape, **values).config == config, name


def words_of(text):
    """A docstring without the signatures in front."""
    return "\n".join(line for line in text.splitlines() if not re.match(r"(\d+\. )?`*(\w+\(|\(self)", line)).strip()


def test_everything_public_says_what_it_does():
    for name in sy.__all__:
        of_class = getattr(sy, name)
        if not inspect.isclass(of_class) or issubclass(of_class, Exception):
            continue
        assert (of_class.__doc__ or "").strip(), name
        for member in (one for one in dir(of_class) if not one.startswith("_")):
            assert words_of(getattr(of_class, member).__doc__ or ""), f"{name}.{member}"

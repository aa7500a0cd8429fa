"""The adapter to SGLang against its contract, between processes and in one."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import processes
import switchyard_ep as sy
from conftest import BF16
from engine_contracts import SglangDispatcher, assert_dispatched, assert_implements
from libraries import InNumpy, library  # noqa: F401 (a fixture)
from switchyard_ep import sglang

EXPERTS, TOP_K, HIDDEN, MAX_TOKENS = 6, 2, 256, 16
SHAPE = dict(router_topk=TOP_K, num_experts=EXPERTS, hidden_size=HIDDEN)
OPTIONS = dict(num_max_dispatch_tokens_per_rank=MAX_TOKENS, target="host")


class Alone:
    """The group of one process."""

    def rank(self):
        return 0

    def size(self):
        return 1

    def all_gather(self, mine):
        return [mine]


class Tokens:
    """What a rank has, and what should become of it: expert e multiplies by 1, 2 or 4."""

    def __init__(self, rank, seed=0):
        random = np.random.default_rng((seed, rank))
        count = (9, 0, 16)[rank]
        self.x = random.standard_normal((count, HIDDEN)).astype(BF16)
        self.ids = np.argsort(random.random((count, EXPERTS)), axis=1)[:, :TOP_K].astype(np.int32)
        self.ids[random.random(self.ids.shape) < 0.2] = -1
        self.weights = random.random((count, TOP_K)).astype(np.float32)
        factor = np.where(self.ids >= 0, self.weights * factor_of(self.ids), 0).sum(axis=1)
        self.expected = self.x.astype(np.float32) * factor[:, None]

    def topk_output(self, library):
        return SimpleNamespace(topk_ids=library.array(self.ids), topk_weights=library.array(self.weights))

    def check(self, library, output, tolerance=0.03):
        found = library.numpy(output).astype(np.float32)
        np.testing.assert_allclose(found, self.expected, rtol=tolerance, atol=tolerance)


def factor_of(experts):
    return 2.0 ** (experts % 3)


def quantize(hidden_states):
    groups = np.asarray(hidden_states).astype(np.float32).reshape(len(hidden_states), HIDDEN // 128, 128)
    scales = np.maximum(np.abs(groups).max(axis=2), 1e-6) / 448
    codes = (groups / scales[:, :, None]).astype(ml_dtypes.float8_e4m3fn)
    return codes.reshape(hidden_states.shape), scales.astype(np.float32)


def run_experts(library, output, rank, num_local):
    """The experts of a rank, in NumPy: the input of combine."""
    rows = library.numpy(output.hidden_states).astype(np.float32)
    if output.hidden_states_scale is not None:
        rows = rows * np.repeat(library.numpy(output.hidden_states_scale), 128, axis=-1)
    first = rank * num_local
    if output.format.is_deepep_ll():
        for local, count in enumerate(library.numpy(output.masked_m)):
            rows[local, count:] = np.nan  # nobody may read them
        rows = rows * factor_of(first + np.arange(num_local))[:, None, None]
        kind = sglang.LowLatencyCombineInput
    else:
        ids, weights = library.numpy(output.topk_ids), library.numpy(output.topk_weights)
        rows = rows * np.where(ids >= 0, weights * factor_of(first + ids), 0).sum(axis=1)[:, None]
        kind = sglang.NormalCombineInput
    return kind(library.array(rows.astype(BF16)), output.topk_ids, output.topk_weights)


def check_steps(group, library, modes=("normal", "low_latency", "auto")):
    mine, num_local, is_extend = Tokens(group.rank()), EXPERTS // group.size(), [True]
    num_rows = group.size() * MAX_TOKENS
    for use_fp8 in (False, True):
        for mode in modes:
            dispatcher = sglang.Dispatcher(
                group,
                **SHAPE,
                **OPTIONS,
                deepep_mode=mode,
                use_fp8=use_fp8,
                is_extend_in_batch=lambda: is_extend[0],
                quantize=quantize,
            )
            for is_extend[0] in (True, False):
                output = dispatcher.dispatch(library.array(mine.x), mine.topk_output(library))
                is_normal = mode == "normal" or mode == "auto" and is_extend[0]
                assert output.format.value == ("deepep_normal" if is_normal else "deepep_ll")
                assert_dispatched(output, num_local, num_rows, HIDDEN, use_fp8)
                combined = dispatcher.combine(run_experts(library, output, group.rank(), num_local))
                mine.check(library, combined, 0.3 if use_fp8 else 0.03)


def check_overlap(group):
    """Two batches, the halves of which alternate."""
    library, num_local = InNumpy(), EXPERTS // group.size()
    batches = [Tokens(group.rank(), seed) for seed in (1, 2)]
    for mode in ("normal", "low_latency"):
        both = [
            sglang.Dispatcher(group, **SHAPE, **OPTIONS, deepep_mode=mode, microbatch=index, num_microbatches=2)
            for index in (0, 1)
        ]
        for dispatcher, tokens in zip(both, batches):
            dispatcher.dispatch_a(tokens.x, tokens.topk_output(library))
        for dispatcher in both:
            output = dispatcher.dispatch_b()
            dispatcher.combine_a(run_experts(library, output, group.rank(), num_local))
        for dispatcher, tokens in zip(both, batches):
            tokens.check(library, dispatcher.combine_b())


def work_in_processes(group):
    check_steps(group, InNumpy())
    check_overlap(group)
    sglang.release(group)


def test_steps_of_several_processes():
    processes.run(work_in_processes, 3)


def test_the_dispatcher_is_what_sglang_asks_for():
    assert_implements(sglang.Dispatcher, SglangDispatcher)


def test_a_step_of_one_rank(library):
    library.need("bfloat16")
    group = Alone()
    mine = Tokens(0)
    for mode in ("normal", "low_latency"):
        dispatcher = sglang.Dispatcher(group, **SHAPE, **OPTIONS, deepep_mode=mode)
        output = dispatcher.dispatch(library.array(mine.x), mine.topk_output(library))
        assert_dispatched(output, EXPERTS, MAX_TOKENS, HIDDEN)
        combined = dispatcher.combine(run_experts(library, output, 0, EXPERTS))
        assert type(combined) is type(library.array(mine.x))
        mine.check(library, combined)
    sglang.release(group)
    sglang.release(group)


def test_bad_calls_are_named():
    group, mine, library = Alone(), Tokens(0), InNumpy()
    with pytest.raises(sy.InvalidArgument, match="one of: normal, low_latency, auto"):
        sglang.Dispatcher(group, **SHAPE, deepep_mode="fast")
    with pytest.raises(sy.InvalidArgument, match="num_local_experts is 4; 6 experts on 1 ranks are 6 each"):
        sglang.Dispatcher(group, **SHAPE, num_local_experts=4)
    with pytest.raises(sy.InvalidArgument, match=r"microbatch is 1; it must be 0\.\.0"):
        sglang.Dispatcher(group, **SHAPE, microbatch=1)
    dispatcher = sglang.Dispatcher(group, **SHAPE, **OPTIONS, deepep_mode="low_latency")
    with pytest.raises(sy.FailedPrecondition, match="combine_b has been called; next must come dispatch_a"):
        dispatcher.combine_b()
    with pytest.raises(sy.InvalidArgument, match="tokens has dtype float32; it must be bfloat16"):
        dispatcher.dispatch_a(mine.x.astype(np.float32), mine.topk_output(library))
    output = dispatcher.dispatch(mine.x, mine.topk_output(library))  # nothing was sent: the right call may follow
    with pytest.raises(sy.InvalidArgument, match=r"expert_rows has shape \(96, 256\) and dtype float32"):
        dispatcher.combine_a((output.hidden_states.astype(np.float32), None, None))
    dispatcher.reset()
    output = dispatcher.dispatch(mine.x, mine.topk_output(library))
    mine.check(library, dispatcher.combine(run_experts(library, output, 0, EXPERTS)))
    sglang.release(group)


def test_the_module_needs_no_engine():
    code = """
        import sys
        import switchyard_ep.sglang
        assert not {"numpy", "torch", "sglang"} & set(sys.modules)
        """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_with_sglang_the_classes_are_its_own():
    code = f"""
        import sys, types
        sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
        import engine_contracts
        base = "sglang.srt.layers.moe.token_dispatcher"
        for name in ("sglang", "sglang.srt", "sglang.srt.layers", "sglang.srt.layers.moe", base):
            sys.modules[name] = types.ModuleType(name)
        of_base = sys.modules[base + ".base"] = types.ModuleType("base")
        of_deepep = sys.modules[base + ".deepep"] = types.ModuleType("deepep")
        of_base.BaseDispatcher = engine_contracts.SglangDispatcher
        of_base.CombineInputFormat = of_base.DispatchOutputFormat = object
        for kind in ("LLCombineInput", "LLDispatchOutput", "NormalCombineInput", "NormalDispatchOutput"):
            setattr(of_deepep, "DeepEP" + kind, type(kind, (), {{}}))
        from switchyard_ep import sglang
        assert sglang.LowLatencyDispatchOutput is of_deepep.DeepEPLLDispatchOutput
        assert issubclass(sglang.Dispatcher, engine_contracts.SglangDispatcher)
        left = sglang.Dispatcher.__abstractmethods__
        assert left == {{"set_quant_config"}}, left  # which SGLang's base has itself
        """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr

"""The adapter to vLLM against its contract, on ranks of one process and of several."""

import subprocess
import sys
import textwrap
from types import SimpleNamespace

import numpy as np
import pytest

import processes
import switchyard_ep as sy
from conftest import BF16
from engine_contracts import (
    VLLM_MANAGER_ATTRIBUTES,
    VllmAll2AllManager,
    VllmPrepareAndFinalize,
    assert_implements,
    assert_prepared,
)
from libraries import InNumpy, library  # noqa: F401 (a fixture)
from switchyard_ep.vllm import ActivationFormat, All2AllManager, Exchange, PrepareAndFinalize

EXPERTS, TOP_K, HIDDEN, MAX_TOKENS = 8, 3, 256, 16
SHAPE = dict(n_experts=EXPERTS, top_k=TOP_K, hidden=HIDDEN, max_tokens_per_rank=MAX_TOKENS)
PLAIN = SimpleNamespace(quant_dtype=None, block_shape=None)
FP8 = SimpleNamespace(quant_dtype="fp8", block_shape=[128, 128])
FORMATS = ["standard", "batched_experts"]


class TopKWeightAndReduceDelegate:
    """As vLLM's experts say that finalize does it all."""


class Tokens:
    """What a rank has, and what should become of it: expert e multiplies by 1, 2 or 4."""

    def __init__(self, rank, seed=0, num_tokens=None, n_experts=EXPERTS, top_k=TOP_K):
        random = np.random.default_rng((seed, rank))
        count = (11, 0, 16, 5)[rank] if num_tokens is None else num_tokens
        self.x = random.standard_normal((count, HIDDEN)).astype(BF16)
        self.ids = np.argsort(random.random((count, n_experts)), axis=1)[:, :top_k].astype(np.int32)
        self.ids[random.random(self.ids.shape) < 0.2] = -1
        self.weights = random.random((count, top_k)).astype(np.float32)
        factor = np.where(self.ids >= 0, self.weights * factor_of(self.ids), 0).sum(axis=1)
        self.expected = self.x.astype(np.float32) * factor[:, None]

    def check(self, output, tolerance=0.02):
        np.testing.assert_allclose(output.astype(np.float32), self.expected, rtol=tolerance, atol=tolerance)


def factor_of(experts):
    return 2.0 ** (experts % 3)


def run_experts(adapter, library, prepared):
    """The experts of a rank, in NumPy: what finalize takes."""
    rows, scales, counts, ids, _ = prepared
    held = np.array(adapter.exchange.local_expert_ids)
    if scales is not None:
        values = library.numpy(rows).astype(np.float32) * np.repeat(library.numpy(scales), 128, axis=-1)
    else:
        values = library.numpy(rows).astype(np.float32)
    if adapter.activation_format is ActivationFormat.BatchedExperts:
        for local, count in enumerate(library.numpy(counts.expert_num_tokens)):
            values[local, count:] = np.nan  # nobody may read them
        return library.array((values * factor_of(held)[:, None, None]).astype(BF16))
    experts = library.numpy(ids)[:, 0]
    return library.array((values * np.where(experts >= 0, factor_of(experts), np.nan)[:, None]).astype(BF16))


def prepare_arguments(tokens, library, quant_config=PLAIN, n_experts=EXPERTS):
    arrays = [library.array(values) for values in (tokens.x, tokens.weights, tokens.ids)]
    return [*arrays, n_experts, None, False, quant_config, False]


def finalize_arguments(tokens, library, output, expert_rows, prepared, impl=TopKWeightAndReduceDelegate()):
    ids, weights = prepared[3:]
    own = [library.array(tokens.weights), library.array(tokens.ids)]
    return [output, expert_rows, *([weights, ids] if ids is not None else own), False, impl]


def adapters_of(world, **options):
    exchange = Exchange(world, **{**SHAPE, **options})
    return [PrepareAndFinalize(exchange.of_rank(rank)) for rank in world.local_ranks]


def run_step(adapters, every, library, is_fp8=False, impl=TopKWeightAndReduceDelegate()):
    """A step of all ranks from one thread, by halves. Returns what finalize writes."""
    quant_config = FP8 if is_fp8 else PLAIN
    begun = [a.prepare_async(*prepare_arguments(t, library, quant_config)) for a, t in zip(adapters, every)]
    for hook, _ in begun:
        hook()
    prepared = [receiver() for _, receiver in begun]
    for adapter, got in zip(adapters, prepared):
        is_batched = adapter.activation_format is ActivationFormat.BatchedExperts
        num_rows = adapter.num_dispatchers() * adapter.max_num_tokens_per_rank()
        assert_prepared(got, len(adapter.exchange.local_expert_ids), num_rows, HIDDEN, is_batched, is_fp8)
    outputs = [library.array(np.full_like(t.x, 7)) for t in every]
    ended = [
        a.finalize_async(*finalize_arguments(t, library, o, run_experts(a, library, p), p, impl))
        for a, t, o, p in zip(adapters, every, outputs, prepared)
    ]
    for hook, receiver in ended:
        hook()
        receiver()
    return [library.numpy(output) for output in outputs]


def test_the_adapter_is_what_vllm_asks_for(world):
    assert_implements(PrepareAndFinalize, VllmPrepareAndFinalize)
    adapter = adapters_of(world, activation_format="batched_experts")[2]
    assert adapter.activation_format is ActivationFormat.BatchedExperts
    assert adapter.num_dispatchers() == 4 and adapter.max_num_tokens_per_rank() == MAX_TOKENS
    assert adapter.output_is_reduced() and adapter.supports_async()
    assert str(adapter.topk_indices_dtype()).endswith("int32")


@pytest.mark.parametrize("activation_format", FORMATS)
def test_a_step_of_ranks_in_one_process(world, library, activation_format):
    adapters = adapters_of(world, activation_format=activation_format)
    for seed in (0, 1):
        every = [Tokens(rank, seed) for rank in range(4)]
        for tokens, output in zip(every, run_step(adapters, every, library)):
            tokens.check(output)


@pytest.mark.parametrize("activation_format", FORMATS)
def test_rows_travel_as_fp8(world, library, activation_format):
    library.need("float8_e4m3fn")
    adapters = adapters_of(world, activation_format=activation_format, dispatch_format="fp8", max_tokens_per_rank=18)
    assert adapters[0].max_num_tokens_per_rank() == (20 if activation_format == "batched_experts" else 18)
    every = [Tokens(rank) for rank in range(4)]
    for tokens, output in zip(every, run_step(adapters, every, library, is_fp8=True)):
        tokens.check(output, tolerance=0.3)
    with pytest.raises(sy.InvalidArgument, match="use dispatch_format='bf16'"):
        _, receiver = adapters[0].prepare_async(*prepare_arguments(every[0], InNumpy()))
        for rank in (1, 2, 3):
            adapters[rank].prepare_async(*prepare_arguments(every[rank], InNumpy()))
        receiver()


@pytest.mark.parametrize("activation_format", FORMATS)
def test_two_micro_batches_are_under_way_at_once(world, activation_format):
    now, library = [0], InNumpy()
    exchange = Exchange(world, **SHAPE, activation_format=activation_format, num_microbatches=2)
    adapters = [PrepareAndFinalize(exchange.of_rank(rank), microbatch=lambda: now[0]) for rank in range(4)]
    every = [[Tokens(rank, seed) for rank in range(4)] for seed in (0, 1)]
    begun, outputs, ended = [], [[np.zeros_like(t.x) for t in batch] for batch in every], []
    for now[0] in (0, 1):
        begun.append([a.prepare_async(*prepare_arguments(t, library)) for a, t in zip(adapters, every[now[0]])])
    for now[0] in (0, 1):
        prepared = [receiver() for _, receiver in begun[now[0]]]
        ended += [
            a.finalize_async(*finalize_arguments(t, library, o, run_experts(a, library, p), p))
            for a, t, o, p in zip(adapters, every[now[0]], outputs[now[0]], prepared)
        ]
    for hook, _ in ended:
        hook()
    for batch, tokens in zip(outputs, every):
        for output, one in zip(batch, tokens):
            one.check(output)


def test_experts_may_apply_the_weights_that_they_get(world):
    """In the standard format those are ones, since combine has the tokens' own."""

    class Contiguous:
        def apply(self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input):
            assert output is None and topk_weights.shape == topk_ids.shape == (len(fused_expert_output), 1)
            return (fused_expert_output.astype(np.float32) * topk_weights).astype(BF16)

    every = [Tokens(rank) for rank in range(4)]
    for tokens, output in zip(every, run_step(adapters_of(world), every, InNumpy(), impl=Contiguous())):
        tokens.check(output)


def test_experts_may_live_anywhere(world):
    placement = [[7, 0], [1, 2, 3], [5], [6, 4]]
    every = [Tokens(rank) for rank in range(4)]
    adapters = adapters_of(world, placement=placement)
    assert adapters[3].exchange.local_expert_ids == [6, 4, -1]
    for tokens, output in zip(every, run_step(adapters, every, InNumpy())):
        tokens.check(output)


def test_weights_may_be_applied_to_the_input():
    tokens, library = Tokens(0, top_k=1), InNumpy()
    tokens.weights = 2.0 ** np.random.default_rng(0).integers(-2, 2, tokens.weights.shape).astype(np.float32)
    with sy.World(n_ranks=1, target="host") as world:
        adapter = PrepareAndFinalize(Exchange(world, **{**SHAPE, "top_k": 1}))
        arguments = prepare_arguments(tokens, library)
        arguments[5] = True
        prepared = adapter.prepare(*arguments)
        output = adapter.expert_outputs(tokens.x)
        output[:] = run_experts(adapter, library, prepared)  # no copy is made of what is there already
        result = np.zeros_like(tokens.x)
        adapter.finalize(result, output, prepared[4], prepared[3], True, None)
        factor = np.where(tokens.ids >= 0, tokens.weights * factor_of(tokens.ids), 0)
        np.testing.assert_array_equal(result, (tokens.x.astype(np.float32) * factor).astype(BF16))
        with pytest.raises(sy.InvalidArgument, match="top-k of 1; it is 3"):
            PrepareAndFinalize(Exchange(world, **SHAPE)).prepare(
                *prepare_arguments(Tokens(0), library)[:5], True, PLAIN
            )


def test_what_experts_want_quantised_is_quantised_here(world):
    calls = []

    def quantize(rows, quant_config):
        calls.append(quant_config)
        return rows, np.ones((1, 1), np.float32)

    exchange = Exchange(world, **SHAPE)
    adapters = [PrepareAndFinalize(exchange.of_rank(rank), quantize=quantize) for rank in range(4)]
    config = SimpleNamespace(quant_dtype="fp8", block_shape=None)
    begun = [a.prepare_async(*prepare_arguments(Tokens(r), InNumpy(), config)) for r, a in enumerate(adapters)]
    assert begun[0][1]()[1].shape == (1, 1) and calls == [config]


def work_in_processes(group):
    library, mine = InNumpy(), Tokens(group.rank())
    manager = All2AllManager(group, target="host")
    for activation_format in FORMATS:
        exchange = manager.get_handle({**SHAPE, "activation_format": activation_format})
        assert manager.get_handle({**SHAPE, "activation_format": activation_format}) is exchange
        layers = [PrepareAndFinalize(exchange) for _ in range(2)]
        for adapter in layers:
            prepared = adapter.prepare(*prepare_arguments(mine, library))
            output = np.zeros_like(mine.x)
            rows = run_experts(adapter, library, prepared)
            adapter.finalize(*finalize_arguments(mine, library, output, rows, prepared))
            mine.check(output)
    manager.destroy()
    with pytest.raises(sy.FailedPrecondition, match="destroyed"):
        manager.get_handle(SHAPE)


def test_steps_of_several_processes():
    processes.run(work_in_processes, 4)


def test_bad_calls_are_named(world):
    adapter, tokens, library = adapters_of(world)[0], Tokens(0), InNumpy()
    arguments = prepare_arguments(tokens, library)
    with pytest.raises(sy.InvalidArgument, match="num_experts is 9; the exchange has 8"):
        adapter.prepare(*prepare_arguments(tokens, library, n_experts=9))
    with pytest.raises(sy.InvalidArgument, match="topk_ids has dtype int64; it must be int32"):
        adapter.prepare(*arguments[:2], tokens.ids.astype(np.int64), *arguments[3:])
    with pytest.raises(sy.InvalidArgument, match="tokens has dtype float32; it must be bfloat16"):
        adapter.prepare(tokens.x.astype(np.float32), *arguments[1:])
    with pytest.raises(sy.FailedPrecondition, match="micro-batch 0 has not been prepared"):
        adapter.finalize(tokens.x, tokens.x, None, None, False, None)
    with pytest.raises(sy.InvalidArgument, match="one of: standard, batched_experts"):
        Exchange(world, **SHAPE, activation_format="masked")
    with pytest.raises(sy.InvalidArgument, match="one of: bf16, fp8"):
        Exchange(world, **SHAPE, dispatch_format="nvfp4")
    with pytest.raises(sy.InvalidArgument, match="num_microbatches is 0"):
        Exchange(world, **SHAPE, num_microbatches=0)
    with pytest.raises(sy.InvalidArgument, match=r"rank is 4; ranks of this process are \[0, 1, 2, 3\]"):
        adapter.exchange.of_rank(4)


class Alone:
    rank = staticmethod(lambda: 0)
    size = staticmethod(lambda: 1)
    all_gather = staticmethod(lambda mine: [mine])


def test_a_manager_says_what_vllm_asks(monkeypatch):
    assert_implements(All2AllManager, VllmAll2AllManager)
    manager = All2AllManager(Alone(), target="host")
    assert all(hasattr(manager, name) for name in VLLM_MANAGER_ATTRIBUTES)
    assert (manager.rank, manager.world_size, manager.internode, manager.support_fault_tolerance) == (0, 1, False, False)
    handle = manager.get_handle(SHAPE)
    assert manager.get_handle(dict(reversed(SHAPE.items()))) is handle
    assert manager.max_sms_used() is None and manager.set_num_sms(4) is None
    assert manager.query_active_mask().tolist() == [0] and not bool(manager.query_fault())
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr(handle, "poll", lambda: (_ for _ in ()).throw(sy.DeadlineExceeded("rank 0")))
        patch.setattr(handle, "reset", lambda: calls.append("reset"))
        assert bool(manager.query_fault())
        manager.clean_buffers()
    assert calls == ["reset"] and not bool(manager.query_fault())
    manager.destroy()
    assert not bool(manager.query_fault())


def test_a_rank_that_does_not_come_is_named(world):
    adapters = adapters_of(world, timeout=0.2)
    every = [Tokens(rank) for rank in range(4)]
    begun = [a.prepare_async(*prepare_arguments(t, InNumpy())) for a, t in zip(adapters[:3], every)]
    with pytest.raises(sy.DeadlineExceeded, match="rank 3"):
        begun[0][0]()
    with pytest.raises(sy.DeadlineExceeded, match="rank 3"):
        adapters[0].exchange.poll()
    adapters[0].exchange.reset()
    for tokens, output in zip(every, run_step(adapters, every, InNumpy())):
        tokens.check(output)


def run_python(code):
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=sys.path[0], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_the_module_needs_no_engine():
    run_python("""
        import sys
        import switchyard_ep.vllm
        assert not {"numpy", "torch", "vllm"} & set(sys.modules)
        """)


def test_with_vllm_the_classes_are_its_own():
    run_python(f"""
        import sys, types
        sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
        import engine_contracts
        name = ""
        for part in "vllm.model_executor.layers.fused_moe.modular_kernel".split("."):
            name = name + "." + part if name else part
            sys.modules[name] = types.ModuleType(name)
        class Format:
            Standard, BatchedExperts = "standard", "batched"
        for part in ("vllm.distributed", "vllm.distributed.device_communicators",
                     "vllm.distributed.device_communicators.base_device_communicator"):
            sys.modules[part] = types.ModuleType(part)
        class ManagerBase:
            def __init__(self, cpu_group, *stores):
                self.given, self.internode = (cpu_group, *stores), cpu_group == "far"
        sys.modules[part].All2AllManagerBase = ManagerBase
        module = sys.modules[name]
        module.FusedMoEPrepareAndFinalizeModular = engine_contracts.VllmPrepareAndFinalize
        module.FusedMoEActivationFormat, module.ExpertTokensMetadata = Format, dict
        from switchyard_ep import vllm
        assert issubclass(vllm.PrepareAndFinalize, engine_contracts.VllmPrepareAndFinalize)
        assert vllm.ActivationFormat is Format and vllm.ExpertTokensMetadata is dict
        vllm.PrepareAndFinalize(None)  # nothing is left abstract
        assert issubclass(vllm.All2AllManager, ManagerBase)
        for given in (("far",), ("far", "store")):
            try:
                vllm.All2AllManager(*given)
            except NotImplementedError as error:
                assert "several machines" in str(error)
            else:
                raise AssertionError
        class Group:
            rank, size = staticmethod(lambda: 0), staticmethod(lambda: 1)
            all_gather = staticmethod(lambda mine: [mine])
        group = Group()
        manager = vllm.All2AllManager(group, "store", target="host")
        assert manager.given == (group, "store") and vllm.All2AllManager(group, target="host").given == (group,)
        """)

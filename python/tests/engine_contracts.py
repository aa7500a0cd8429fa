"""What engines ask of an adapter, as abstract bases: names, arguments, and a check of shapes and dtypes.

Read from vLLM at a014e35f38c (August 2026, after 0.26.0): vllm/model_executor/layers/fused_moe/modular_kernel.py and
prepare_finalize/deepep_{ht,ll,v2}.py; and from SGLang at cce0a1244b5 (August 2026):
python/sglang/srt/layers/moe/token_dispatcher/base.py and deepep.py.
"""

import abc
import inspect


class VllmPrepareAndFinalize(abc.ABC):
    @property
    @abc.abstractmethod
    def activation_format(self):
        """An enumerator, Standard or BatchedExperts."""

    @abc.abstractmethod
    def topk_indices_dtype(self):
        """The dtype that topk_ids must have."""

    @abc.abstractmethod
    def max_num_tokens_per_rank(self):
        """The most tokens of a rank in one call, or None."""

    @abc.abstractmethod
    def num_dispatchers(self):
        """How many ranks send."""

    @abc.abstractmethod
    def output_is_reduced(self):
        """Whether finalize leaves the sum over all ranks."""

    @abc.abstractmethod
    def supports_async(self):
        """Whether there are prepare_async and finalize_async."""

    @abc.abstractmethod
    def prepare(
        self,
        a1,
        topk_weights,
        topk_ids,
        num_experts,
        expert_map,
        apply_router_weight_on_input,
        quant_config,
        defer_input_quant,
    ):
        """Returns (rows, scales, ExpertTokensMetadata, ids, weights), any but the first of which may be None."""

    @abc.abstractmethod
    def prepare_async(
        self,
        a1,
        topk_weights,
        topk_ids,
        num_experts,
        expert_map,
        apply_router_weight_on_input,
        quant_config,
        defer_input_quant,
    ):
        """Returns (hook, receiver): once hook() has returned, receiver() returns what prepare does."""

    @abc.abstractmethod
    def finalize(
        self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input, weight_and_reduce_impl
    ):
        """Writes output, (tokens, hidden), in place."""

    @abc.abstractmethod
    def finalize_async(
        self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input, weight_and_reduce_impl
    ):
        """Returns (hook, receiver), after which output is valid."""


class VllmAll2AllManager(abc.ABC):
    """vllm/distributed/device_communicators/base_device_communicator.py: what is called around modular kernels."""

    @abc.abstractmethod
    def get_handle(self, kwargs):
        """Returns what the layers of these options share; the same for the same options."""

    @abc.abstractmethod
    def set_num_sms(self, num_sms):
        """Limits the multiprocessors, where max_sms_used() is a number."""

    @abc.abstractmethod
    def max_sms_used(self):
        """A number, or None for all."""

    @abc.abstractmethod
    def query_active_mask(self):
        """(ranks,) of int32: 1 for each rank that is masked."""

    @abc.abstractmethod
    def query_fault(self):
        """A bool on the device."""

    @abc.abstractmethod
    def clean_buffers(self):
        """Behind a fault."""

    @abc.abstractmethod
    def destroy(self):
        """Frees everything."""


VLLM_MANAGER_ATTRIBUTES = ("cpu_group", "rank", "world_size", "internode", "support_fault_tolerance")


class SglangDispatcher(abc.ABC):
    @abc.abstractmethod
    def dispatch(self, hidden_states, topk_output):
        """dispatch_a, then dispatch_b."""

    @abc.abstractmethod
    def dispatch_a(self, hidden_states, topk_output):
        """Begins; returns nothing."""

    @abc.abstractmethod
    def dispatch_b(self):
        """Returns a tuple with a format, whose fields SGLANG_OUTPUTS names."""

    @abc.abstractmethod
    def combine(self, combine_input):
        """combine_a, then combine_b."""

    @abc.abstractmethod
    def combine_a(self, combine_input):
        """Takes (hidden_states, topk_ids, topk_weights)."""

    @abc.abstractmethod
    def combine_b(self):
        """Returns (tokens, hidden)."""

    @abc.abstractmethod
    def set_quant_config(self, quant_config):
        """Keeps what the experts say of their inputs."""


SGLANG_OUTPUTS = {
    "deepep_normal": ("hidden_states", "hidden_states_scale", "topk_ids", "topk_weights", "num_recv_tokens_per_expert"),
    "deepep_ll": ("hidden_states", "hidden_states_scale", "topk_ids", "topk_weights", "masked_m", "expected_m"),
}


def assert_implements(adapter, contract):
    """Every method is there and can be called as the engine does, by position or by name."""
    for name in contract.__abstractmethods__:
        wanted, found = getattr(contract, name), getattr(adapter, name, None)
        assert found is not None and not getattr(found, "__isabstractmethod__", False), name
        if isinstance(wanted, property):
            assert isinstance(found, property), name
            continue
        asked = list(inspect.signature(wanted).parameters)
        given = inspect.signature(found).parameters
        assert list(given)[: len(asked)] == asked, (name, asked, list(given))
        assert all(parameter.default is not parameter.empty for parameter in list(given.values())[len(asked) :]), name


def dtype_name(array):
    return str(array.dtype).split(".")[-1]


def assert_array(array, shape, dtype):
    assert tuple(array.shape) == tuple(shape) and dtype_name(array) == dtype, (array.shape, array.dtype, shape, dtype)


def assert_prepared(prepared, num_local, rows_of_expert, hidden, is_batched, is_fp8):
    """What prepare returns: shapes, dtypes, and ids of -1 behind the rows that arrived."""
    rows, scales, counts, ids, weights = prepared
    shape = (num_local, rows_of_expert, hidden) if is_batched else (len(rows), hidden)
    assert_array(rows, shape, "float8_e4m3fn" if is_fp8 else "bfloat16")
    if is_fp8:
        assert_array(scales, (*shape[:-1], hidden // 128), "float32")
    else:
        assert scales is None
    assert_array(counts.expert_num_tokens, (num_local,), "int32")
    if is_batched:
        assert ids is None and weights is None
        return
    assert_array(ids, (len(rows), 1), "int32")
    assert_array(weights, (len(rows), 1), "float32")
    assert int((ids >= 0).sum()) == int(counts.expert_num_tokens.sum())


def assert_dispatched(output, num_local, rows_of_expert, hidden, is_fp8=False):
    """What SGLang's dispatch returns: fields, shapes, dtypes."""
    form = output.format.value
    assert output._fields == SGLANG_OUTPUTS[form]
    is_masked = form == "deepep_ll"
    shape = (num_local, rows_of_expert, hidden) if is_masked else (len(output.hidden_states), hidden)
    assert_array(output.hidden_states, shape, "float8_e4m3fn" if is_fp8 else "bfloat16")
    if is_fp8:
        assert_array(output.hidden_states_scale, (*shape[:-1], hidden // 128), "float32")
    else:
        assert output.hidden_states_scale is None
    assert dtype_name(output.topk_ids) == "int64" and dtype_name(output.topk_weights) == "float32"
    if is_masked:
        assert_array(output.masked_m, (num_local,), "int32")
        assert isinstance(output.expected_m, int)
    else:
        counts = output.num_recv_tokens_per_expert
        assert isinstance(counts, list) and all(type(count) is int for count in counts) and len(counts) == num_local

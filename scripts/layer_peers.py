"""The layers of bench_layer.py's peers, DeepEP V1 and DeepGEMM, with the kernels in Triton between them, and with what
they are given: experts, tokens and a routing that any rank can make again, to verify outputs."""
import os

import torch
import torch.distributed as dist
import triton
import triton.language as tl

RANKS, HIDDEN, WIDTH, TOP_K = 8, 7168, 2048, 8
GROUP = 128  # elements that share a scale
FP8 = torch.float8_e4m3fn
NVLINK_BUFFER = int(1e9)


# Rows in [expert][row], with how many rows each expert has. Scales lie as DeepGEMM reads them: [expert][scale][row].


@triton.jit
def quantise_rows(values, codes, scales, HIDDEN: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr):
    row, group = tl.program_id(0), tl.arange(0, PADDED)
    offsets = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = group < HIDDEN // GROUP
    value = tl.load(values + row.to(tl.int64) * HIDDEN + offsets, mask=inside[:, None], other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(value), 1), 1e-4) / 448.0
    code = (value / scale[:, None]).to(tl.float8e4nv)
    tl.store(codes + row.to(tl.int64) * HIDDEN + offsets, code, mask=inside[:, None])
    tl.store(scales + row * (HIDDEN // GROUP) + group, scale, mask=inside)


@triton.jit
def permute_rows(rows, row_scales, experts, permuted, permuted_scales, counts, places, capacity, ROW: tl.constexpr,
                 NUM_SCALES: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """A program for each received token: a place among the rows of each of its experts here, and a copy of it there."""
    token = tl.program_id(0).to(tl.int64)
    for k in range(TOP_K):
        expert = tl.load(experts + token * TOP_K + k)
        if expert >= 0:
            row = tl.atomic_add(counts + expert, 1)
            place = expert * capacity + row
            tl.store(places + token * TOP_K + k, place)
            for begin in range(0, ROW, BLOCK):
                offsets = begin + tl.arange(0, BLOCK)
                tl.store(permuted + place * ROW + offsets, tl.load(rows + token * ROW + offsets))
            if NUM_SCALES > 0:
                scale = tl.arange(0, 64)
                value = tl.load(row_scales + token * NUM_SCALES + scale, mask=scale < NUM_SCALES)
                tl.store(permuted_scales + (expert * NUM_SCALES + scale) * capacity + row, value,
                         mask=scale < NUM_SCALES)


@triton.jit
def sum_rows(permuted, experts, places, weights, sums, HIDDEN: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Of each received token: its rows, weighted. Combine adds up those of all ranks."""
    token = tl.program_id(0).to(tl.int64)
    choice = tl.arange(0, TOP_K)
    if tl.max(tl.load(experts + token * TOP_K + choice), 0) >= 0:
        offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for k in range(TOP_K):
            if tl.load(experts + token * TOP_K + k) >= 0:
                place = tl.load(places + token * TOP_K + k)
                weight = tl.load(weights + token * TOP_K + k)
                total += weight * tl.load(permuted + place * HIDDEN + offsets).to(tl.float32)
        tl.store(sums + token * HIDDEN + offsets, total.to(tl.bfloat16))


@triton.jit
def activate_rows(gate_up, counts, activated, scales, capacity, WIDTH: tl.constexpr, GROUP: tl.constexpr,
                  IS_FP8: tl.constexpr):
    row, expert = tl.program_id(0), tl.program_id(1).to(tl.int64)
    if row < tl.load(counts + expert):
        group = tl.arange(0, WIDTH // GROUP)
        offsets = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
        place = expert * capacity + row
        gate = tl.load(gate_up + place * 2 * WIDTH + offsets).to(tl.float32)
        up = tl.load(gate_up + place * 2 * WIDTH + WIDTH + offsets).to(tl.float32)
        value = gate * tl.sigmoid(gate) * up
        if IS_FP8:
            scale = tl.maximum(tl.max(tl.abs(value), 1), 1e-4) / 448.0
            tl.store(activated + place * WIDTH + offsets, (value / scale[:, None]).to(tl.float8e4nv))
            tl.store(scales + (expert * (WIDTH // GROUP) + group) * capacity + row, scale)
        else:
            tl.store(activated + place * WIDTH + offsets, value.to(tl.bfloat16))


def quantised(tokens):
    codes = torch.empty_like(tokens, dtype=FP8)
    scales = torch.empty(tokens.shape[0], HIDDEN // GROUP, device=tokens.device)
    quantise_rows[(tokens.shape[0],)](tokens, codes, scales, HIDDEN, GROUP, 64)
    return codes, scales


def expert_weights(expert, element, device="cuda"):
    """Codes of gate_up and down, with scales (None in bf16), that any rank can make again."""
    generator = torch.Generator(device=device).manual_seed(expert)
    for columns, inner in (2 * WIDTH, HIDDEN), (HIDDEN, WIDTH):
        if element == "bf16":
            yield torch.randn(columns, inner, dtype=torch.bfloat16, device=device, generator=generator), None
            continue
        codes, signs = (torch.randint(0, end, (columns, inner), dtype=torch.uint8, device=device, generator=generator)
                        for end in (0x60, 2))
        scales = torch.rand(columns // GROUP, inner // GROUP, device=device, generator=generator) + 0.5
        yield (codes + signs * 0x80).view(FP8), scales * 0.1 / inner ** 0.5


def dequantised(codes, scales, group_rows):
    if scales is None:
        return codes.double()
    return codes.double() * scales.double().repeat_interleave(GROUP, -1).repeat_interleave(group_rows, 0)


class Experts:
    """The experts of a rank, and the buffers of their rows."""

    def __init__(self, rank, num_experts, element, capacity, expected_rows):
        import deep_gemm
        self.count, self.element, self.capacity = num_experts // RANKS, element, capacity
        self.expected_rows = max(1, expected_rows)
        self.multiply = getattr(deep_gemm, f"m_grouped_{element}_gemm_nt_masked")
        self.weights = self.empty_weights() if rank is None else [
            self.joined(list(part)) for part in
            zip(*(expert_weights(rank * self.count + i, element) for i in range(self.count)))]
        self.gate_up, self.output = self.rows(2 * WIDTH, "bf16")[0], self.rows(HIDDEN, "bf16")[0]
        self.activated = self.rows(WIDTH, element)

    def empty_weights(self):
        """To compile kernels with."""
        shapes = (2 * WIDTH, HIDDEN), (HIDDEN, WIDTH)
        return [(torch.empty(self.count, *shape, dtype=torch.bfloat16 if self.element == "bf16" else FP8, device="cuda"),
                 torch.empty(self.count, shape[0] // GROUP, shape[1] // GROUP, device="cuda")) for shape in shapes]

    def joined(self, weights):
        codes = torch.stack([codes.view(torch.uint8) for codes, _ in weights]).view(weights[0][0].dtype)
        return codes, None if self.element == "bf16" else torch.stack([scales for _, scales in weights])

    def rows(self, inner, element):
        if element == "bf16":
            return torch.empty(self.count, self.capacity, inner, dtype=torch.bfloat16, device="cuda"), None
        return (torch.empty(self.count, self.capacity, inner, dtype=FP8, device="cuda"),
                torch.empty(self.count, inner // GROUP, self.capacity, device="cuda").transpose(1, 2))

    def run(self, rows, counts):
        pairs = (lambda pair: pair[0]) if self.element == "bf16" else (lambda pair: pair)
        self.multiply(pairs(rows), pairs(self.weights[0]), self.gate_up, counts, self.expected_rows)
        codes, scales = self.activated
        activate_rows[(self.capacity, self.count)](self.gate_up, counts, codes, scales, self.capacity, WIDTH, GROUP,
                                                   self.element == "fp8")
        self.multiply(pairs(self.activated), pairs(self.weights[1]), self.output, counts, self.expected_rows)
        return self.output


class NormalLayer:
    """DeepEP's intranode kernels, whose rows come by source rank, and a permutation by expert."""

    def __init__(self, buffer, experts, tokens, choices, weights, num_experts):
        self.buffer, self.experts, self.num_experts = buffer, experts, num_experts
        self.tokens, self.choices, self.weights = tokens, choices, weights
        self.permuted = experts.rows(HIDDEN, experts.element)
        self.counts = torch.zeros(experts.count, dtype=torch.int32, device="cuda")
        self.places = torch.zeros(RANKS * tokens.shape[0], TOP_K, dtype=torch.int64, device="cuda")
        self.sums = torch.zeros(RANKS * tokens.shape[0], HIDDEN, dtype=torch.bfloat16, device="cuda")

    def dispatch(self):
        per_rank, _, per_expert, is_in_rank, _ = self.buffer.get_dispatch_layout(self.choices, self.num_experts)
        tokens = self.tokens if self.experts.element == "bf16" else quantised(self.tokens)
        rows, choices, weights, _, handle, _ = self.buffer.dispatch(
            tokens, num_tokens_per_rank=per_rank, is_token_in_rank=is_in_rank, num_tokens_per_expert=per_expert,
            topk_idx=self.choices, topk_weights=self.weights, num_worst_tokens=RANKS * self.tokens.shape[0])
        return rows if isinstance(rows, tuple) else (rows, None), choices, weights, handle

    def permute(self, rows, choices):
        self.counts.zero_()
        (codes, scales), (permuted, permuted_scales) = rows, self.permuted
        bytes_of_row = HIDDEN * codes.element_size()
        permute_rows[(codes.shape[0],)](
            codes.view(torch.int32), scales, choices, permuted.view(torch.int32), permuted_scales, self.counts,
            self.places, self.experts.capacity, bytes_of_row // 4, 0 if scales is None else HIDDEN // GROUP, TOP_K, 256)

    def sum(self, choices, weights):
        sum_rows[(self.places.shape[0], HIDDEN // 1024)](self.experts.output, choices, self.places, weights, self.sums,
                                                         HIDDEN, TOP_K, 1024)

    def step(self):
        rows, choices, weights, handle = self.dispatch()
        self.permute(rows, choices)
        self.experts.run(self.permuted, self.counts)
        self.sum(choices, weights)
        return self.buffer.combine(self.sums, handle)[0]

    def permutation(self):
        """A call that only does what stands between DeepEP and DeepGEMM, with rows that are there."""
        rows, choices, weights, _ = self.dispatch()

        def both():
            self.permute(rows, choices)
            self.sum(choices, weights)
        return both

    def recover(self):
        pass


class LowLatencyLayer:
    """DeepEP's low-latency kernels, whose rows come as DeepGEMM reads them."""

    def __init__(self, buffer, experts, tokens, choices, weights, num_experts):
        self.buffer, self.experts, self.num_experts = buffer, experts, num_experts
        self.tokens, self.choices, self.weights = tokens, choices, weights
        self.recover()

    def recover(self):
        """Call this when the last call was of another size, or was captured without success."""
        self.buffer.clean_low_latency_buffer(self.tokens.shape[0], HIDDEN, self.num_experts)

    def step(self):
        is_fp8 = self.experts.element == "fp8"
        rows, counts, handle, _, _ = self.buffer.low_latency_dispatch(
            self.tokens, self.choices, self.tokens.shape[0], self.num_experts, use_fp8=is_fp8)
        output = self.experts.run(rows if is_fp8 else (rows, None), counts)
        return self.buffer.low_latency_combine(output, self.choices, self.weights, handle)[0]

    def permutation(self):
        return None


def relative_error(output, tokens, choices, weights, token, element):
    """Of one token, against sums in fp64 that see the quantised token but not what is quantised later."""
    row = tokens[token:token + 1]
    if element == "fp8":
        codes, scales = quantised(row)
        row = dequantised(codes, scales, 1)
    expected = torch.zeros(HIDDEN, dtype=torch.float64, device="cuda")
    for expert, weight in zip(choices[token].tolist(), weights[token].tolist()):
        gate_up, down = (dequantised(*pair, GROUP) for pair in expert_weights(expert, element))
        gate, up = (row.double() @ gate_up.T)[0].split(WIDTH)
        expected += weight * (down @ (torch.nn.functional.silu(gate) * up))
    return float((output[token].double() - expected).norm() / expected.norm())


class Routing:
    """Of all ranks, as any rank can compute it: uniformly random experts."""

    def __init__(self, num_tokens, num_experts, rank):
        generator = torch.Generator(device="cuda").manual_seed(num_tokens)
        scores = torch.rand(RANKS, num_tokens, num_experts, device="cuda", generator=generator)
        all_choices = scores.topk(TOP_K, -1).indices
        self.choices = all_choices[rank].contiguous()
        self.weights = torch.softmax(scores[rank].gather(-1, self.choices), -1)
        rows = torch.bincount(all_choices.flatten(), minlength=num_experts)
        self.capacity = -(-int(rows.max()) // GROUP) * GROUP
        torch.manual_seed(rank)
        self.tokens = torch.randn(num_tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")


def expected_rows(num_tokens, num_experts):
    return -(-RANKS * num_tokens * TOP_K // num_experts)


def make_buffer(form, num_experts, tokens):
    from deep_ep import Buffer
    Buffer.set_num_sms(int(os.environ["EP_SMS"]))
    if form == "normal":
        return Buffer(dist.group.WORLD, NVLINK_BUFFER)
    size = Buffer.get_low_latency_rdma_size_hint(max(tokens), HIDDEN, RANKS, num_experts)
    return Buffer(dist.group.WORLD, num_rdma_bytes=size, low_latency_mode=True, num_qps_per_rank=num_experts // RANKS)

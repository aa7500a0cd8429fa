#!/usr/bin/env python3
"""Times `switchyard bench matmul` and the grouped matmuls of PyTorch and DeepGEMM on the same shapes in one run, and
prints one table.

Usage: scripts/bench_matmul.py [path to switchyard] [--weights bf16|fp8] [--rows 8,32,128,1024] [--json FILE]

DeepGEMM is timed where `import deep_gemm` works. All sides replay a CUDA graph that evicts the L2 and then multiplies,
with as many replays and numbers of the same distribution; the median counts. Scales are laid out beforehand. In fp8
DeepGEMM has scales as ours, and PyTorch has one for each row and each column. The limit is the longer of two times: the
one in which the GPU reads the bytes of the case, and the one in which it does the operations as a dense matmul of
PyTorch.
"""
import argparse
import json
import statistics
import subprocess
import sys

import torch

try:
    import deep_gemm
except ImportError:
    deep_gemm = None

GROUP = 128  # elements that share a scale, and the rows to which DeepGEMM's contiguous layout pads a group
FP8 = torch.float8_e4m3fn
SWEPT_BYTES = 256 << 20


def padded(tensor, multiple):
    """[group][row].. with so many rows of zeros behind those of each group that their number is a multiple."""
    num_missing = -tensor.shape[1] % multiple
    if num_missing == 0:
        return tensor
    if tensor.dtype == FP8:  # PyTorch does not join tensors of this type
        return padded(tensor.view(torch.uint8), multiple).view(FP8)
    zeros = torch.zeros(tensor.shape[0], num_missing, *tensor.shape[2:], dtype=tensor.dtype, device="cuda")
    return torch.cat([tensor, zeros], 1)


class BF16Operands:
    def __init__(self, case):
        sizes = case["experts"], case["rows_per_expert"], case["columns"], case["inner"]
        self.rows = torch.randn(sizes[0], sizes[1], sizes[3], dtype=torch.bfloat16, device="cuda")
        self.weights = torch.randn(sizes[0], sizes[2], sizes[3], dtype=torch.bfloat16, device="cuda")

    def rows_of(self, expert, places):
        return self.rows[expert, places].double()

    def weights_of(self, expert):
        return self.weights[expert].double()


class FP8Operands:
    """Codes with a scale for each `inner_group` elements of a row, and of each `column_group` columns of weights."""

    def __init__(self, case, inner_group, column_group):
        experts, columns, inner = case["experts"], case["columns"], case["inner"]
        self.inner_group, self.column_group = inner_group, column_group
        self.rows = self.codes(experts, case["rows_per_expert"], inner)
        self.weights = self.codes(experts, columns, inner)
        self.row_scales = self.scales(experts, case["rows_per_expert"], inner // inner_group)
        self.weight_scales = self.scales(experts, columns // column_group, inner // inner_group)

    @staticmethod
    def codes(*size):
        magnitudes = torch.randint(0, 0x60, size, dtype=torch.uint8, device="cuda")
        return (magnitudes + torch.randint(0, 2, size, dtype=torch.uint8, device="cuda") * 0x80).view(FP8)

    @staticmethod
    def scales(*size):
        return torch.rand(size, device="cuda") + 0.5

    def rows_of(self, expert, places):
        scales = self.row_scales[expert, places].repeat_interleave(self.inner_group, -1)
        return self.rows[expert, places].double() * scales.double()

    def weights_of(self, expert):
        scales = self.weight_scales[expert].repeat_interleave(self.inner_group, -1)
        return self.weights[expert].double() * scales.repeat_interleave(self.column_group, 0).double()


def torch_peers(case, element):
    """Of each peer a name, its operands, and a call that returns its output as [expert][row][column]."""
    experts, num_rows = case["experts"], case["rows_per_expert"]
    ends = (torch.arange(1, experts + 1, device="cuda") * num_rows).to(torch.int32)

    def by_expert(output):
        return output.view(experts, num_rows, -1)

    if element == "bf16":
        operands = BF16Operands(case)
        yield "torch", operands, lambda: by_expert(torch._grouped_mm(
            operands.rows.flatten(0, 1), operands.weights.transpose(1, 2), offs=ends))
        return
    operands = FP8Operands(case, case["inner"], 1)
    for name, is_fast in ("torch", False), ("torch, fast accumulation", True):
        yield name, operands, lambda is_fast=is_fast: by_expert(torch._scaled_grouped_mm(
            operands.rows.flatten(0, 1), operands.weights.transpose(1, 2), operands.row_scales.flatten(),
            operands.weight_scales.flatten(1), offs=ends, out_dtype=torch.bfloat16, use_fast_accum=is_fast))


def deep_gemm_peers(case, element):
    experts, num_rows, columns = case["experts"], case["rows_per_expert"], case["columns"]
    operands = BF16Operands(case) if element == "bf16" else FP8Operands(case, GROUP, GROUP)
    rows, weights = padded(operands.rows, GROUP), operands.weights
    output = torch.empty(experts, rows.shape[1], columns, dtype=torch.bfloat16, device="cuda")
    group_of_row = torch.full(rows.shape[:2], -1, dtype=torch.int32, device="cuda")
    group_of_row[:, :num_rows] = torch.arange(experts, device="cuda", dtype=torch.int32)[:, None]
    counts = torch.full((experts,), num_rows, dtype=torch.int32, device="cuda")
    contiguous, masked = rows.flatten(0, 1), rows
    if element == "fp8":
        scales = padded(operands.row_scales, GROUP)
        contiguous = contiguous, deep_gemm.get_mn_major_tma_aligned_tensor(scales.flatten(0, 1))
        masked = masked, deep_gemm.get_mn_major_tma_aligned_tensor(scales)
        weights = weights, operands.weight_scales
    multiply_contiguous = getattr(deep_gemm, f"m_grouped_{element}_gemm_nt_contiguous")
    multiply_masked = getattr(deep_gemm, f"m_grouped_{element}_gemm_nt_masked")

    def launch_contiguous():
        multiply_contiguous(contiguous, weights, output.flatten(0, 1), group_of_row.flatten())
        return output[:, :num_rows]

    def launch_masked():
        multiply_masked(masked, weights, output, counts, num_rows)
        return output[:, :num_rows]

    yield "DeepGEMM contiguous", operands, launch_contiguous
    yield "DeepGEMM masked", operands, launch_masked


def time_cold(launch, replays):
    """Median microseconds of a launch that finds nothing in the L2."""
    swept = torch.ones(SWEPT_BYTES // 4, device="cuda")
    for _ in range(2):
        launch()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True, external=True) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        swept.add_(1)
        begin.record()
        launch()
        end.record()
    times = []
    for _ in range(replays + 1):
        graph.replay()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1000)
    return statistics.median(times[1:])  # the first one warms up


def relative_error(output, operands):
    """Of the first and the last row of every expert, against sums in fp64."""
    squared_error = squared_value = 0.0
    for expert in range(output.shape[0]):
        expected = operands.rows_of(expert, [0, -1]) @ operands.weights_of(expert).T
        squared_error += float((output[expert, [0, -1]].double() - expected).square().sum())
        squared_value += float(expected.square().sum())
    return (squared_error / squared_value) ** 0.5


def time_peers(case, element, replays):
    """Microseconds and error of each peer that can."""
    timed = {}
    for peers in (torch_peers, deep_gemm_peers) if deep_gemm else (torch_peers,):
        try:
            for name, operands, launch in peers(case, element):
                error = relative_error(launch(), operands)
                timed[name] = {"us": time_cold(launch, replays), "relative_error": error}
        except (RuntimeError, AttributeError) as problem:
            print(f"  {peers.__name__}: {str(problem).splitlines()[0]}", file=sys.stderr)
        torch.cuda.empty_cache()
    return timed


class Limits:
    """What the GPU reads and multiplies in a second, as plain operations of PyTorch show."""

    SIZE = 8192

    def __init__(self, element, replays):
        memory = torch.zeros(1 << 30, device="cuda")
        self.read_rate = memory.numel() * 4 / time_cold(memory.sum, replays) * 1e6
        del memory
        size = self.SIZE
        if element == "bf16":
            left, right = (torch.randn(size, size, dtype=torch.bfloat16, device="cuda") for _ in range(2))
            microseconds = time_cold(lambda: left @ right.T, replays)
        else:
            left, right = FP8Operands.codes(size, size), FP8Operands.codes(size, size)
            one = torch.ones((), device="cuda")
            microseconds = time_cold(
                lambda: torch._scaled_mm(left, right.T, one, one, out_dtype=torch.bfloat16), replays)
        self.dense_rate = 2 * size ** 3 / microseconds * 1e6

    def microseconds(self, case):
        num_bytes = case["terabytes_per_second"] * case["median_us"] * 1e6
        flops = case["tflops"] * case["median_us"] * 1e6
        return max(num_bytes / self.read_rate, flops / self.dense_rate) * 1e6


def bench(arguments, num_rows):
    command = [arguments.switchyard, "bench", "matmul", "--target", "cuda", "--weights", arguments.weights,
               "--rows", num_rows, "--replays", str(arguments.replays), "--json", "-"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_case(case):
    peers = case["peers"]
    best = min(peers, key=lambda name: peers[name]["us"], default=None)
    ratio = f"{peers[best]['us'] / case['median_us']:5.2f} ({best})" if best else "    -"
    times = ", ".join(f"{name} {timed['us']:.0f}" for name, timed in peers.items())
    errors = " / ".join(f"{timed['relative_error']:.1e}" for timed in [case, *peers.values()])
    print(f"{case['shape']:8s} {case['rows_per_expert']:5d} {case['median_us']:8.1f} {case['limit_us']:8.1f}   {ratio}\n"
          f"    {times or 'no peer'}; errors {errors}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("switchyard", nargs="?", default="build/switchyard")
    parser.add_argument("--weights", choices=["bf16", "fp8"], default="bf16")
    parser.add_argument("--rows", default="8,32,128,1024", help="rows of each expert, a sweep")
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    limits = Limits(arguments.weights, arguments.replays)
    report = None
    for num_rows in arguments.rows.split(","):
        of_size = bench(arguments, num_rows)
        if report is None:
            report = of_size | {"results": [], "verified": True, "read_terabytes_per_second": limits.read_rate * 1e-12,
                                "dense_tflops": limits.dense_rate * 1e-12, "torch": torch.__version__,
                                "deep_gemm": getattr(deep_gemm, "__version__", None)}
            print(f"{report['device']}, {arguments.weights}; PyTorch {report['torch']}, DeepGEMM {report['deep_gemm']}; "
                  f"reads {report['read_terabytes_per_second']:.2f} TB/s, {report['dense_tflops']:.0f} TFLOP/s\n\n"
                  "shape     rows  ours us limit us   best peer over ours")
        report["verified"] &= of_size["verified"]
        for case in of_size["results"]:
            case["limit_us"] = limits.microseconds(case)
            case["peers"] = time_peers(case, arguments.weights, arguments.replays)
            print_case(case)
            report["results"].append(case)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times `switchyard bench attention` and PyTorch's SDPA on the same shapes in one run, and prints one table.

Usage: scripts/bench_attention.py [path to switchyard] [--head-dims 128,64] [--json FILE] [--fa3 FOLDER]
All sides are timed by replaying a CUDA graph of ten launches; the median of the replays counts. All have the same
inputs, except for ragged batches, and their errors are those of the same rows. With --fa3, FlashAttention-3 is timed,
too: FOLDER is where its flash_attn_interface lies (hopper/ of a build of it).
"""
import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile

import numpy
import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
LAUNCHES_PER_GRAPH = 10


def time_graph(launch, replays):
    """Median microseconds of one launch."""
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES_PER_GRAPH):
            launch()
    graph.replay()
    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1000 / LAUNCHES_PER_GRAPH)
    return statistics.median(times)


class Inputs:
    """The queries, keys and values that `switchyard bench attention` computes with."""

    def __init__(self, path, shifts):
        self.period = torch.from_numpy(numpy.load(path).view(numpy.int16)).view(torch.bfloat16).cuda()
        self.shifts = shifts

    def tensors_of(self, case):
        """Each as [sequence][head][row][element]; there they lie as [sequence][row][head][element]."""
        batch, num_queries, num_keys = len(case["seq_lens"]), case["seq_lens"][0], case["kv_lens"][0]

        def tensor(shift, length, heads):
            count = batch * length * heads * case["head_dim"]
            places = (torch.arange(count, device="cuda") + shift) % len(self.period)
            rows = self.period[places].view(batch, length, heads, case["head_dim"])
            return rows.transpose(1, 2).contiguous()

        return (tensor(self.shifts[0], num_queries, case["heads"]), tensor(self.shifts[1], num_keys, case["kv_heads"]),
                tensor(self.shifts[2], num_keys, case["kv_heads"]))


def relative_error(output, q, k, v, case):
    """Against fp64, on the rows of the last sequence that switchyard looks at: every so many of (query, head)."""
    squared_error = squared_value = 0.0
    num_keys, heads_per_kv_head = k.shape[2], case["heads"] // case["kv_heads"]
    for place in range(0, q.shape[2] * case["heads"], case["error_of_every"]):
        query, head = divmod(place, case["heads"])
        num_seen = num_keys - q.shape[2] + query + 1 if case["causal"] else num_keys
        keys, values = (t[-1, head // heads_per_kv_head, :num_seen].double() for t in (k, v))
        scores = keys @ q[-1, head, query].double() / q.shape[3] ** 0.5
        expected = scores.softmax(-1) @ values
        squared_error += float((output[-1, head, query].double() - expected).square().sum())
        squared_value += float(expected.square().sum())
    return (squared_error / squared_value) ** 0.5


def is_comparable(case):
    """Whether SDPA can be given the same batch: equal lengths, no pages, and as many queries as keys, or one."""
    seq_lens, kv_lens = set(case["seq_lens"]), set(case["kv_lens"])
    has_bf16 = case.get("kv_format", "bf16") == "bf16" and case["group"] != "mla"
    return has_bf16 and len(seq_lens) == 1 and len(kv_lens) == 1 and case["page_size"] == 0 and (seq_lens == kv_lens or seq_lens == {1})


def time_sdpa(case, inputs, backend, replays):
    """Microseconds and relative error, or None where PyTorch cannot."""
    q, k, v = inputs.tensors_of(case)

    def launch():
        return functional.scaled_dot_product_attention(
            q, k, v, is_causal=case["causal"], enable_gqa=case["heads"] != case["kv_heads"])

    try:
        with sdpa_kernel(BACKENDS[backend]):
            microseconds = time_graph(launch, replays)
            output = launch()
        return microseconds, relative_error(output, q, k, v, case)
    except (RuntimeError, torch.cuda.OutOfMemoryError) as problem:
        print(f"  {backend}: {str(problem).splitlines()[0]}", file=sys.stderr)
        return None
    finally:
        torch.cuda.empty_cache()


def ragged_tensors(case):
    """Random queries, keys and values of a ragged batch, as [row][head][element], and where its sequences begin."""
    ends = torch.tensor([0] + case["seq_lens"], device="cuda").cumsum(0).int()

    def tensor(heads):
        return torch.randn(int(ends[-1]), heads, case["head_dim"], device="cuda", dtype=torch.bfloat16)

    return tensor(case["heads"]), tensor(case["kv_heads"]), tensor(case["kv_heads"]), ends


def time_fa3(flash, case, inputs, replays):
    """Microseconds of FlashAttention-3, or None where it is not asked to: it has one query per key."""
    if case["seq_lens"] != case["kv_lens"] or case["page_size"] != 0:
        return None
    if case["group"] == "ragged":
        q, k, v, ends = ragged_tensors(case)
        longest = max(case["seq_lens"])
        return time_graph(lambda: flash.flash_attn_varlen_func(q, k, v, ends, ends, longest, longest,
                                                               causal=case["causal"]), replays)
    q, k, v = (tensor.transpose(1, 2).contiguous() for tensor in inputs.tensors_of(case))
    return time_graph(lambda: flash.flash_attn_func(q, k, v, causal=case["causal"]), replays)


def load_fa3(folder):
    sys.path.insert(0, folder)
    return importlib.import_module("flash_attn_interface")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("switchyard", nargs="?", default="build/switchyard")
    parser.add_argument("--head-dims", default="128,64,256")
    parser.add_argument("--replays", type=int, default=10)
    parser.add_argument("--json")
    parser.add_argument("--fa3", metavar="FOLDER")
    arguments = parser.parse_args()
    flash = load_fa3(arguments.fa3) if arguments.fa3 else None
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/inputs.npy"
        command = [arguments.switchyard, "bench", "attention", "--target", "cuda", "--head-dims", arguments.head_dims,
                   "--replays", str(arguments.replays), "--inputs", path, "--json", "-"]
        report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        inputs = Inputs(path, report["input_shifts"])
    print(f"{report['device']}; TFLOP/s (decode: TB/s of keys and values), and ours over the best of them\n")
    names = list(BACKENDS) + (["fa3"] if flash else [])
    print("head_dim  kind     shape              ours " + " ".join(f"{name:>9s}" for name in names) +
          "    ratio   error ours / cudnn")
    for case in report["results"]:
        is_decode = case["group"] == "decode"
        ours = case["kv_terabytes_per_second"] if is_decode else case["tflops"]
        theirs = {}
        if is_comparable(case):
            for backend in BACKENDS:
                timed = time_sdpa(case, inputs, backend, arguments.replays)
                if timed is not None:
                    theirs[backend] = (ours * case["median_us"] / timed[0], timed[1])
        microseconds = time_fa3(flash, case, inputs, arguments.replays) if flash else None
        if microseconds is not None:
            theirs["fa3"] = (ours * case["median_us"] / microseconds, None)
        case["peers"] = {name: value for name, (value, _) in theirs.items()}
        cells = [f"{theirs[name][0]:9.2f}" if name in theirs else "        -" for name in names]
        ratio = f"{ours / max(case['peers'].values()):8.3f}" if theirs else "       -"
        error = theirs.get("cudnn", (0, None))[1]
        print(f"{case['head_dim']:8d}  {case['group']:7s}  {case['label']:14s} {ours:8.2f} {' '.join(cells)} {ratio}"
              f"   {case['relative_error']:.2e} / {'-' if error is None else f'{error:.2e}'}", flush=True)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()

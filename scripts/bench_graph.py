#!/usr/bin/env python3
"""Times dispatch and combine called from PyTorch, with a process for each rank, beside the same step in C++.

    scripts/bench_graph.py build/switchyard --ranks 8 --n-sms 16 --tokens 16,128 [--json FILE]

A step is replayed by torch.cuda.graph and by the command's graphs, many replays one behind the other: time from the first
launch to the end of the last one, over their number, of the rank that began last. Tokens and outputs alternate between as
many sets as the command's, each with a graph of its own, so that no replay finds in the L2 what the last one left. Then
steps are enqueued without a graph: what each of the two calls takes of its thread. Ranks that share a GPU need MPS. It needs
PyTorch and switchyard_ep.
"""
import argparse
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

SAMPLES, REPLAYS = 5, 100


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("switchyard", help="the command")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--n-sms", type=int, default=16)
    parser.add_argument("--tokens", default="16", help="of each rank, a sweep")
    parser.add_argument("--hidden", type=int, default=7168)
    parser.add_argument("--experts", type=int, default=256)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--protocol", default="direct", choices=["direct", "slotted"])
    parser.add_argument("--json", help="also write the times here")
    return parser.parse_args()


def time_of(functions, samples=SAMPLES, count=REPLAYS):
    """Microseconds of one of `count` calls, of the functions in turns, and the GPU's work; the same of the thread alone. A
    list of `samples` each."""
    times, of_thread = [], []
    for _ in range(samples):
        calls = list(itertools.islice(itertools.cycle(functions), count))
        torch.cuda.synchronize()
        dist.barrier()
        begin, thread_begin = time.perf_counter(), time.thread_time()
        for function in calls:
            function()
        of_thread.append((time.thread_time() - thread_begin) / count * 1e6)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / count * 1e6)
    return times, of_thread


def last_rank(of_ranks):
    """The median of each sample's shortest time. Ranks end together, so the rank that began last has the shortest: what the
    others have waited for it is not the step's."""
    return statistics.median(min(times) for times in zip(*of_ranks))


def work(rank, arguments, num_sets, store, path):
    import switchyard_ep as sy
    import switchyard_ep.torch as sy_torch

    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=arguments.ranks)
    torch.manual_seed(rank)
    world = sy.World.from_process_group(dist.group.WORLD)
    rows = []
    for num_tokens in map(int, arguments.tokens.split(",")):
        layer = sy_torch.ExpertParallel(
            world, n_experts=arguments.experts, top_k=arguments.top_k, hidden=arguments.hidden,
            max_tokens_per_rank=num_tokens, protocol=arguments.protocol, n_sms=arguments.n_sms,
        )  # fmt: skip
        weights = torch.full((num_tokens, arguments.top_k), 1 / arguments.top_k, device="cuda")

        def make_step():
            tokens = torch.randn(num_tokens, arguments.hidden, device="cuda").bfloat16()
            ids = torch.rand(num_tokens, arguments.experts, device="cuda").topk(arguments.top_k).indices.int()
            return tokens, lambda: layer.combine(layer.dispatch(tokens, ids).rows, ids, weights)

        inputs, steps = zip(*(make_step() for _ in range(num_sets.get(num_tokens, 2))))
        for step in steps[:3]:
            step()
        layer.synchronize()
        graphs, outputs = [], []
        for step in steps:
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                outputs.append(step())
        replayed, _ = time_of([graph.replay for graph in graphs], count=max(REPLAYS, len(graphs)))
        for tokens, output in zip(inputs, outputs):
            assert torch.allclose(output.float(), tokens.float(), rtol=0.02, atol=0.02), "a replay's output is wrong"
        enqueued, of_thread = time_of(steps, count=20)
        layer.poll()
        every = [None] * arguments.ranks
        dist.all_gather_object(every, (replayed, enqueued, statistics.median(of_thread) / 2))
        replayed, enqueued, of_call = zip(*every)
        rows.append(
            dict(
                tokens=num_tokens,
                buffer_sets=len(steps),
                graph_us=last_rank(replayed),
                enqueued_us=last_rank(enqueued),
                call_thread_us=max(of_call),
            )
        )
    if rank == 0:
        pathlib.Path(path).write_text(json.dumps(rows))
    dist.barrier()
    world.close()
    dist.destroy_process_group()


def times_of_the_command(arguments):
    """By tokens: microseconds of one of many replays of the same step, by processes of C++; and how many sets of buffers
    alternate."""
    command = [
        arguments.switchyard, "bench", "ep", "--target", "cuda", "--transport", "process", "--mode", "fused",
        "--ranks", str(arguments.ranks), "--n-sms", str(arguments.n_sms), "--tokens", arguments.tokens,
        "--hidden", str(arguments.hidden), "--experts", str(arguments.experts), "--top-k", str(arguments.top_k),
        "--protocol", arguments.protocol, "--json", "-",
    ]  # fmt: skip
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    times = [entry for entry in report["times"] if entry["phase"] == "back to back"]
    num_sets = {size["tokens_per_rank"]: size["buffer_sets"] for size in report["sizes"] if "buffer_sets" in size}
    return {entry["tokens_per_rank"]: entry["process_us"] for entry in times}, num_sets


def main():
    arguments = parse_arguments()
    of_command, num_sets = times_of_the_command(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "times.json")
        store = os.path.join(folder, "store")
        multiprocessing.spawn(work, args=(arguments, num_sets, store, path), nprocs=arguments.ranks)
        rows = json.loads(pathlib.Path(path).read_text())
    print("tokens/rank | C++ graph us | torch.cuda.graph us | without a graph us | thread, per call us")
    for row in rows:
        row["command_graph_us"] = of_command.get(row["tokens"])  # None: it has skipped the size
        times = [row[name] for name in ("command_graph_us", "graph_us", "enqueued_us", "call_thread_us")]
        print(" | ".join([str(row["tokens"]), *("-" if time is None else f"{time:.1f}" for time in times)]))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Times `switchyard bench layer` and the same layer of DeepEP V1 and DeepGEMM, one part after the other, in one run, and
prints one table.

    scripts/bench_layer.py build/switchyard [--experts 256,32] [--formats bf16,fp8] [--tokens 16,128,1024] [--json FILE]

The peers' layer (layer_peers.py) has two forms, with a process for each rank, all of them on one GPU, and an MPS daemon
that this script starts. Both multiply DeepGEMM's masked layout, [expert][row], and neither waits for the host:

normal       layout, quantisation of the tokens (fp8), dispatch with num_worst_tokens, a kernel that permutes the rows by
             expert, gate_up, a kernel for SiLU, multiplication and quantisation, down, a kernel that weights and sums a
             token's rows, combine
low-latency  dispatch, which quantises and permutes, gate_up, the same kernel, down, combine

The permuting kernels are this script's, in Triton. The peers' step begins with the choices of experts; ours begins with the
router. Ours is the median of graph replays, from the first rank's begin to the last rank's end. The peers' is the mean of
replays that are enqueued one behind the other, of the rank that took longest. Two replays go in front of these, so that
the time has no part of how far apart the ranks left the barrier of the host. Should capturing fail, calls take the place
of replays, and the table says so. Both sides have as many experts, numbers of the same distribution, and two tokens
verified behind the last replay. A form of the peers that fails, or that does not fit, is left out, with the reason.

The exit status is 1 if DeepGEMM's kernels were not compiled, if an output was wrong, or if a run of ours failed. Of the
last two the JSON says "verified": false, and scripts/performance_tables.py makes no table of it.
It needs PyTorch, Triton, deep_ep and deep_gemm.
"""
import argparse
import contextlib
import faulthandler
import json
import math
import multiprocessing
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import torch
import torch.distributed as dist

from layer_peers import (GROUP, HIDDEN, RANKS, TOP_K, WIDTH, Experts, LowLatencyLayer, NormalLayer, Routing,
                         expected_rows, make_buffer, relative_error)

SPAWN = multiprocessing.get_context("spawn")
MAX_WARP_GROUPS = 14  # experts that a block of DeepEP's low-latency kernels can have
NUM_LEADING = 2  # calls in front of those that are timed
NUM_COMPILERS, COMPILE_SECONDS = 12, 600
FORMATS, FORMS = ["bf16", "fp8"], ["normal", "low-latency"]
ERROR_LIMITS = {"bf16": 0.01, "fp8": 0.04}


def first_line(error):
    """Never empty."""
    return (str(error).strip() or repr(error)).splitlines()[0]


def worst(errors):
    """The largest; NaN, if it is among them."""
    return max(errors, key=lambda error: (math.isnan(error), error))


def gathered(value):
    values = [None] * RANKS
    dist.all_gather_object(values, value)
    return values


def time_back_to_back(call, replays, recover=lambda: None):
    """Microseconds of the rank that took longest, the output of the last call, and why the calls were no replays of a
    graph, if so."""
    for _ in range(2):
        output = call()
    torch.cuda.synchronize()
    dist.barrier()
    graph, problem = torch.cuda.CUDAGraph(), None
    try:
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            output = call()
    except RuntimeError as error:
        problem = first_line(error)
    problem = next(filter(None, gathered(problem)), None)
    if problem:
        recover()
    if output is not None:
        output.fill_(math.nan)  # what no replay writes is not verified
    torch.cuda.synchronize()
    dist.barrier()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for idx in range(NUM_LEADING + replays):
        if idx == NUM_LEADING:
            begin.record()
        if problem:
            output = call()
        else:
            graph.replay()
    end.record()
    torch.cuda.synchronize()
    return max(gathered(begin.elapsed_time(end) * 1000 / replays)), output, problem


def time_case(buffer, form, num_experts, element, num_tokens, rank, replays):
    routing = Routing(num_tokens, num_experts, rank)
    capacity = routing.capacity if form == "normal" else RANKS * num_tokens
    experts = Experts(rank, num_experts, element, capacity, expected_rows(num_tokens, num_experts))
    kind = NormalLayer if form == "normal" else LowLatencyLayer
    layer = kind(buffer, experts, routing.tokens, routing.choices, routing.weights, num_experts)
    microseconds, output, not_captured = time_back_to_back(layer.step, replays, layer.recover)
    errors = []
    if rank in (0, RANKS - 1):
        token = 0 if rank == 0 else num_tokens - 1
        errors = [relative_error(output, routing.tokens, routing.choices, routing.weights, token, element)]
        torch.cuda.empty_cache()
    error = worst(sum(gathered(errors), []))
    result = {"experts": num_experts, "format": element, "tokens": num_tokens, "form": form, "us": microseconds,
              "relative_error": error, "verified": error <= ERROR_LIMITS[element], "not_captured": not_captured}
    permutation = layer.permutation()
    if permutation:
        result["permutation_us"], _, permutation_not_captured = time_back_to_back(permutation, replays)
        result["not_captured"] = not_captured or permutation_not_captured
    return result


def work(rank, form, num_experts, arguments, port, results):
    """A rank of the peers."""
    faulthandler.dump_traceback_later(arguments.seconds - 2)
    try:
        torch.cuda.set_device(0)
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
        import deep_ep
        deep_ep.buffer.check_nvlink_connections = lambda *_: None  # all ranks are on one GPU
        buffer = make_buffer(form, num_experts, arguments.tokens)
        for num_tokens in arguments.tokens:
            for element in arguments.formats:
                result = time_case(buffer, form, num_experts, element, num_tokens, rank, arguments.replays)
                torch.cuda.empty_cache()
                if rank == 0:
                    results.put(result)
        dist.barrier()
        status = 0
    except Exception:  # pylint: disable=broad-except  # whatever it is, the other forms go on
        print(f"{form}, {num_experts} experts, rank {rank}:", file=sys.stderr)
        traceback.print_exc()
        status = 1
    results.close()
    results.join_thread()
    os._exit(status)  # destroying buffers may wait for ranks that are gone


@contextlib.contextmanager
def mps():
    """Processes that share a GPU run at the same time."""
    folder = tempfile.mkdtemp()
    names = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
    for path in names.values():
        os.mkdir(path)
    os.environ.update(names)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
    try:
        yield
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False, stdout=subprocess.DEVNULL)
        for name in names:
            del os.environ[name]
        shutil.rmtree(folder, ignore_errors=True)


def run_processes(target, count, arguments, seconds, results):
    """What processes target(idx, *arguments) put into `results`, and whether all of them succeeded in time."""
    processes = [SPAWN.Process(target=target, args=(idx, *arguments)) for idx in range(count)]
    for process in processes:
        process.start()
    received, end = [], time.monotonic() + seconds
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        with contextlib.suppress(queue.Empty):
            received.append(results.get(timeout=0.5))
        if any(process.exitcode for process in processes):  # the others would wait for it
            end = min(end, time.monotonic() + 5)
    for process in processes:
        process.kill()
        process.join()
    with contextlib.suppress(queue.Empty):
        while True:
            received.append(results.get(timeout=0.1))
    return received, all(process.exitcode == 0 for process in processes)


def time_peers(form, num_experts, arguments, port):
    num_sms = int(os.environ["EP_SMS"])
    if form == "low-latency" and -(-num_experts // num_sms) > MAX_WARP_GROUPS:
        print(f"low-latency, {num_experts} experts: left out; a rank has {num_sms} multiprocessors, and needs one for "
              f"each {MAX_WARP_GROUPS} experts", file=sys.stderr)
        return []
    results = SPAWN.Queue()
    with mps():
        timed, is_complete = run_processes(work, RANKS, (form, num_experts, arguments, port, results),
                                           arguments.seconds, results)
    if not is_complete:
        print(f"{form}, {num_experts} experts: a rank failed or took more than {arguments.seconds} s", file=sys.stderr)
    return timed


def compile_kernels(worker, num_workers, arguments):
    """This worker's share of DeepGEMM's kernels; no rows are multiplied."""
    cases = [(num_experts, element, num_tokens) for num_experts in arguments.experts for element in arguments.formats
             for num_tokens in arguments.tokens]
    for num_experts, element, num_tokens in cases[worker::num_workers]:
        experts = Experts(None, num_experts, element, GROUP, expected_rows(num_tokens, num_experts))
        experts.run(experts.rows(HIDDEN, element), torch.zeros(experts.count, dtype=torch.int32, device="cuda"))
        torch.cuda.synchronize()


def time_ours(num_experts, element, arguments):
    command = [arguments.switchyard, "bench", "layer", "--target", "cuda", "--ranks", str(RANKS), "--hidden",
               str(HIDDEN), "--expert-width", str(WIDTH), "--top-k", str(TOP_K), "--experts", str(num_experts),
               "--format", element, "--tokens", ",".join(map(str, arguments.tokens)), "--replays",
               str(arguments.replays), "--json", "-"]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        print(ended.stderr, file=sys.stderr)
    return json.loads(ended.stdout) if ended.stdout else {"results": []}


def print_case(case):
    ours, peers = case["ours"], case["peers"]
    cells = [f"{ours['median_us']:9.1f} {ours['parts'].get('route', 0):7.1f}" if ours else f"{'-':>9} {'-':>7}"]
    for form in FORMS:
        peer = peers.get(form)
        cells.append(f"{peer['us']:9.1f}" if peer else f"{'-':>9}")
        if form == "normal":
            cells.append(f"{peer['permutation_us']:9.1f}" if peer else f"{'-':>9}")
    best = min((peer["us"] for peer in peers.values()), default=None)
    ratio = f"{best / ours['median_us']:6.2f}" if best and ours else f"{'-':>6}"
    notes = [f"{form} was not captured: {peer['not_captured']}" for form, peer in peers.items() if peer["not_captured"]]
    notes += [f"{name} NOT VERIFIED: error {timed['relative_error']}" for name, timed in {"ours": ours, **peers}.items()
              if timed and not timed["verified"]]
    print(f"{case['experts']:7d} {case['format']:>6} {case['tokens']:6d} {' '.join(cells)} {ratio}"
          + "".join(f"\n        {note}" for note in notes), flush=True)


def numbers(text):
    return [int(number) for number in text.split(",")]


def some_of(known):
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(known)}")
        return names
    return parse


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("switchyard", nargs="?", default="build/switchyard")
    parser.add_argument("--experts", type=numbers, default=[256, 32], help="of all ranks, a sweep")
    parser.add_argument("--formats", type=some_of(FORMATS), default=FORMATS)
    parser.add_argument("--tokens", type=numbers, default=[16, 128, 1024], help="of each rank, a sweep")
    parser.add_argument("--forms", type=some_of(FORMS), default=FORMS)
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=60, help="for each form and number of experts of the peers")
    parser.add_argument("--compile", action="store_true", help="only compile DeepGEMM's kernels, into its cache")
    parser.add_argument("--compiled", action="store_true", help="they are in its cache")
    parser.add_argument("--json")
    return parser.parse_args()


def time_experts(num_experts, first_port, arguments, report):
    """The cases with so many experts: ours, and the forms of the peers, each of which has a port."""
    cases = {}
    for element in arguments.formats:
        ours = time_ours(num_experts, element, arguments)
        if "device" in ours:
            report["device"] = ours["device"]
        of_tokens = {result["tokens"]: result for result in ours["results"]}
        for num_tokens in arguments.tokens:
            cases[element, num_tokens] = {"experts": num_experts, "format": element, "tokens": num_tokens,
                                          "ours": of_tokens.get(num_tokens), "peers": {}}
    for place, form in enumerate(arguments.forms):
        for timed in time_peers(form, num_experts, arguments, first_port + place):
            cases[timed["format"], timed["tokens"]]["peers"][form] = timed
    return cases.values()


def is_verified(case):
    return all(timed and timed["verified"] for timed in (case["ours"], *case["peers"].values()))


def main():
    arguments = parse_arguments()
    os.environ.setdefault("EP_SMS", "16")
    os.environ.setdefault("NVSHMEM_REMOTE_TRANSPORT", "none")
    os.environ.setdefault("NVSHMEM_QP_DEPTH", "4096")  # DeepEP wants twice the tokens
    if not arguments.compiled:
        _, is_complete = run_processes(compile_kernels, NUM_COMPILERS, (NUM_COMPILERS, arguments), COMPILE_SECONDS,
                                       SPAWN.Queue())
        if not is_complete:
            print(f"compiling DeepGEMM's kernels failed or took more than {COMPILE_SECONDS} s", file=sys.stderr)
            return 1
    if arguments.compile:
        return 0
    report = {"verified": True, "replays": arguments.replays, "results": []}
    for number, num_experts in enumerate(arguments.experts):
        cases = time_experts(num_experts, 20000 + (os.getpid() * 16 + number * 4) % 20000, arguments, report)
        if number == 0:
            print(f"{report.get('device', 'ours failed')}; us of a step\n\nexperts format tokens      ours of these    "
                  "normal of these low-latency   best peer\n"
                  "                               route           permutation           over ours")
        for case in cases:
            print_case(case)
            report["results"].append(case)
            report["verified"] &= is_verified(case)
        if arguments.json:
            with open(arguments.json, "w", encoding="utf-8") as file:
                json.dump(report, file, indent=1)
    return 0 if report["verified"] else 1


if __name__ == "__main__":
    sys.exit(main())

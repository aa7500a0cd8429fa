#!/usr/bin/env python3
"""Times what `switchyard` does on the host, and writes the times as JSON for scripts/performance_tables.py.

Usage: scripts/bench_host.py build/switchyard --json FILE [--runs N]

Each command runs N times, in alternation with the others; the JSON has the fastest run of each, in seconds, and the
processor time of that run. Steps of 4 ranks in one process, and in a process each, are timed as often: of these the JSON has
the median. Nothing else should run on the machine.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

COMMANDS = [
    ["run", "--target", "host"],
    ["simulate"],
    ["simulate", "--format", "bf16", "--combine-format", "bf16"],
]
# As many workers in all, one process after the other.
TRANSPORTS = ["bench", "ep", "--target", "host", "--ranks", "4", "--tokens", "1,8,32", "--replays", "20", "--mode", "fused",
              "--protocol", "both", "--transport", "process", "--json", "-"]


def timed(command):
    """The wall time and the processor time of one run, which must succeed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def times_of_transports(tool):
    """(tokens per rank, protocol) -> microseconds of a step of many, in one process and in a process per rank."""
    text = subprocess.run([tool, *TRANSPORTS], check=True, stdout=subprocess.PIPE, text=True).stdout
    return {(time["tokens_per_rank"], time["protocol"]): (time["us"], time["process_us"])
            for time in json.loads(text)["times"] if time["phase"] == "back to back"}


def median_of_transports(runs):
    entries = []
    for tokens, protocol in runs[0]:
        pairs = [run[tokens, protocol] for run in runs]
        local, process = (statistics.median(times) for times in zip(*pairs))
        ratios = sorted(of_local / of_process for of_local, of_process in pairs)
        entries.append({"tokens_per_rank": tokens, "protocol": protocol, "local_us": local, "process_us": process,
                        "steps_per_second_ratios": ratios})
    return entries


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--json", required=True, metavar="FILE")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    runs = {tuple(command): [] for command in COMMANDS}
    transports = []
    for _ in range(arguments.runs):
        transports.append(times_of_transports(arguments.tool))
        for command, times in runs.items():
            times.append(timed([arguments.tool, *command]))
    doctor = json.loads(subprocess.run([arguments.tool, "doctor", "--json", "-"], check=True, capture_output=True,
                                       text=True).stdout)
    report = {"device": f"{doctor['cpu']}, {len(os.sched_getaffinity(0))} cores", "commands": [],
              "transports": median_of_transports(transports)}
    for command, times in runs.items():
        seconds, processor_seconds = min(times)
        report["commands"].append({"command": " ".join(["switchyard", *command]), "seconds": seconds,
                                   "processor_seconds": processor_seconds})
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())

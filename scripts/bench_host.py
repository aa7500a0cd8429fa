#!/usr/bin/env python3
"""Times what `switchyard` does on the host, and writes the times as JSON for scripts/performance_tables.py.

Usage: scripts/bench_host.py build/switchyard --json FILE [--runs N]

Each command runs N times, in alternation with the others; the JSON has the fastest run of each, in seconds, and the
processor time of that run. Nothing else should run on the machine.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import time

COMMANDS = [
    ["run", "--target", "host"],
    ["simulate"],
    ["simulate", "--format", "bf16", "--combine-format", "bf16"],
]


def timed(command):
    """The wall time and the processor time of one run, which must succeed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tool")
    parser.add_argument("--json", required=True, metavar="FILE")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    runs = {tuple(command): [] for command in COMMANDS}
    for _ in range(arguments.runs):
        for command, times in runs.items():
            times.append(timed([arguments.tool, *command]))
    doctor = json.loads(subprocess.run([arguments.tool, "doctor", "--json", "-"], check=True, capture_output=True,
                                       text=True).stdout)
    report = {"device": f"{doctor['cpu']}, {len(os.sched_getaffinity(0))} cores", "commands": []}
    for command, times in runs.items():
        seconds, processor_seconds = min(times)
        report["commands"].append({"command": " ".join(["switchyard", *command]), "seconds": seconds,
                                   "processor_seconds": processor_seconds})
    with open(arguments.json, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Writes the tables of a Markdown page from the JSON of the benchmarks.

Usage: scripts/performance_tables.py PAGE.md TABLE=FILE.json[,FILE.json..] .. [--commit HASH] [--date DAY]

The page has a region for each table, which is rewritten in place; everything else is left as it is:

    <!-- table: ep -->
    ...
    <!-- end -->

TABLE           FILE.json is written by
ep              switchyard bench ep --protocol both --mode fused --json FILE
shapes          the same with other shapes, one FILE for each
many-ranks      the same with other numbers of ranks, one FILE for each
token-formats   switchyard bench ep --format F --mode fused --json FILE, one FILE for each F, bf16 among them
combine-formats switchyard bench ep --combine-format C --mode fused --json FILE, one FILE for each C, bf16 among them
process         switchyard bench ep --transport process --protocol both --mode fused --json FILE
shmem           mpirun -np N switchyard bench ep --transport shmem .. --json FILE, one FILE for each --p2p-world-size
shmem-groups    the same
checks          switchyard bench ep --mode fused --json FILE, of a checked and of an unchecked build, any number of each
attention       scripts/bench_attention.py --json FILE, or switchyard bench attention --json FILE
ragged, decode  the same
matmul          scripts/bench_matmul.py --json FILE, or switchyard bench matmul --json FILE
matmul-fp8      the same with --weights fp8
layer           switchyard bench layer --json FILE, one FILE for each format and number of experts
layer-peers     scripts/bench_layer.py --json FILE
accuracy        switchyard bench formats --json FILE
host            scripts/bench_host.py build/switchyard --json FILE
host-processes  the same
published       switchyard plan --published --json FILE

The first line of a region says on which machine, at which commit and when its numbers were measured. The machine is that
of the JSON; the commit is that of the working tree and the date that of the newest FILE unless they are given.
"""
import argparse
import datetime
import json
import os
import re
import subprocess
import sys

from benchmark_tables import TABLES, Problem, one_of


def caption(reports, commit, date):
    """Accuracy does not depend on a machine: its JSON names none."""
    parts = []
    if "device" in reports[0]:
        parts.append(one_of(reports, "device"))
    if all("copy_bytes_per_second" in report for report in reports):
        rates = [f"{pick(report['copy_bytes_per_second'] for report in reports) / 1e9:.0f}" for pick in (min, max)]
        parts.append(f"copy bandwidth {' to '.join(dict.fromkeys(rates))} GB/s")
    return "*" + ", ".join(parts + [f"commit {commit}", date]) + "*"


NOTHING_TO_VERIFY = "accuracy", "host", "host-processes", "published"


def make_region(name, reports, commit, date):
    if name not in TABLES:
        raise Problem(f"there is no table {name}; there are {', '.join(TABLES)}")
    try:
        if name not in NOTHING_TO_VERIFY and not all(report["verified"] for report in reports):
            raise Problem(f"{name}: a run was not verified, and its times mean nothing")
        return caption(reports, commit, date) + "\n\n" + TABLES[name](reports)
    except KeyError as key:
        raise Problem(f"{name}: the JSON has no {key}; is it that of another command?") from key


def replace_region(page, name, text):
    """The page with what lies between the marks of one table replaced."""
    begin = f"<!-- table: {name} -->"
    if page.count(begin) != 1:
        raise Problem(f"the page has {page.count(begin)} regions '{begin}'; it must have one")
    head, rest = page.split(begin)
    match = re.search(r"<!-- (end|table: .*?) -->", rest)
    if match is None or match[1] != "end":
        raise Problem(f"the region '{begin}' has no '<!-- end -->'")
    return f"{head}{begin}\n{text}\n{rest[match.start():]}"


def commit_of_tree():
    """HEAD, marked where anything but the docs, which this script itself writes, differs from it."""
    def git(*arguments):
        command = ["git", "-C", os.path.dirname(os.path.abspath(__file__)), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)docs")
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changes else "")
    except (OSError, subprocess.CalledProcessError) as problem:
        raise Problem("git knows no commit here: give --commit") from problem


def date_of(paths):
    return datetime.date.fromtimestamp(max(os.path.getmtime(path) for path in paths)).isoformat()


def read_reports(paths):
    reports = []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                reports.append(json.load(file))
        except (OSError, ValueError) as problem:
            raise Problem(f"{path}: {problem}") from problem
    return reports


def rewrite(page_path, sources, commit, date):
    try:
        with open(page_path, encoding="utf-8") as file:
            page = file.read()
    except OSError as problem:
        raise Problem(str(problem)) from problem
    for source in sources:
        name, separator, files = source.partition("=")
        if not separator or not files:
            raise Problem(f"'{source}' is not TABLE=FILE.json")
        paths = files.split(",")
        reports = read_reports(paths)
        page = replace_region(page, name, make_region(name, reports, commit or commit_of_tree(), date or date_of(paths)))
    with open(page_path, "w", encoding="utf-8") as file:
        file.write(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page")
    parser.add_argument("sources", nargs="+", metavar="TABLE=FILE.json")
    parser.add_argument("--commit", help="the commit that was measured")
    parser.add_argument("--date", help="the day it was measured")
    arguments = parser.parse_args()
    try:
        rewrite(arguments.page, arguments.sources, arguments.commit, arguments.date)
    except Problem as problem:
        print(f"{parser.prog}: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

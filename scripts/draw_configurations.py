#!/usr/bin/env python3
"""Draws configurations of `switchyard run` and `switchyard attend` at random and runs each.

    scripts/draw_configurations.py build/switchyard --seconds 60 --seed 1 [--target cuda]

Each must verify (exit code 0), or be refused with one line on stderr: as a bad argument (2) where the draw breaks a
documented rule, as a step over capacity (3) where it asked for too little room. Anything else, a crash, a hang or a
wrong result, ends the draw with the command line to repeat it. The same seed draws the same configurations.
"""
import argparse
import functools
import json
import random
import re
import subprocess
import sys
import tempfile
import time

FP8_MATMULS = ["fp8", "fp8-ue8m0", "fp8-by-row"]  # formats that fast matmuls multiply as they are
MAX_ELEMENTS = {"host": 1 << 16, "cuda": 1 << 22}  # of all expert rows of a step; the emulator is slow


def often_small(draw, low, high):
    """A number whose logarithm is evenly spread, so that small ones are not rare."""
    return min(high, max(low, round(low - 1 + (high - low + 2) ** draw.random())))


def token_formats(switchyard):
    """The command's own formats: what hidden must be a multiple of, by name."""
    report = subprocess.run([switchyard, "doctor", "--json", "-"], capture_output=True, text=True, check=True)
    return {entry["name"]: entry["hidden_multiple"] for entry in json.loads(report.stdout)["formats"]}


def write_placement(draw, ranks, experts):
    """A file with every expert on some rank, and on others now and then. It stays: a failure can be repeated."""
    owners = [draw.randrange(ranks) for _ in range(experts)]
    lines = [[e for e in range(experts) if owners[e] == rank or draw.random() < 0.5 / ranks] for rank in range(ranks)]
    with tempfile.NamedTemporaryFile("w", prefix="placement_", suffix=".csv", delete=False) as file:
        file.write("".join(",".join(map(str, draw.sample(line, len(line)))) + "\n" for line in lines))
    return file.name


def draw_tensors(draw, token_format, can_be_encoded, skips):
    """What tokens, ids and outputs come as."""
    words = []
    if draw.random() < 0.3:
        words += ["--ids", draw.choice(["int32", "int64"])]
    if not skips and draw.random() < 0.3:
        words += ["--row-gap", 16 * often_small(draw, 0, 64)]
    if can_be_encoded and draw.random() < 0.3:
        words += ["--encoded-tokens"]
    if token_format == "nvfp4" and draw.random() < 0.5:
        words += ["--device-scale"]
    return words


def draw_run(formats, draw, target):
    ranks = draw.choice([1, 2, 2, 3, 4, 5, 8, draw.randint(1, 16), draw.randint(1, 64)])
    experts = ranks * often_small(draw, 1, max(1, min(15, 1024 // ranks - 1)))
    if draw.random() < 0.3:  # not as many on each
        experts = max(1, experts - draw.randint(0, ranks))
    routing = draw.choice(["uniform", "uniform", "zipf", "one-expert"])
    top_k = often_small(draw, 1, 32)
    if routing != "one-expert":
        top_k = min(top_k, experts)
    is_fast = draw.random() < 0.3
    token_format = draw.choice(["bf16"] + list(formats))
    combine_format = draw.choice(["bf16", "bf16", "fp8"])
    weights = draw.choice(["as-rows", "as-rows", "mxfp4", "nvfp4", "mxfp8"]) if is_fast else "as-rows"
    has_codes = weights != "as-rows"
    code_multiple = {"mxfp8": 32, "mxfp4": 64, "nvfp4": 64}.get(weights, 8)
    encodes_sums = has_codes and combine_format == "fp8"  # in the slotted protocol only
    if has_codes:
        width = code_multiple * draw.randint(1, 3)
    elif is_fast and token_format in FP8_MATMULS:
        width = 64 * draw.randint(1, 2)
    else:
        width = 8 * often_small(draw, 1, 8)
    multiple = max(formats[token_format], formats[combine_format], code_multiple)
    hidden = multiple * often_small(draw, 1, 1024 // multiple)
    skips = draw.random() < 0.2
    max_tokens = max(1, min(300, MAX_ELEMENTS[target] // (hidden * top_k * ranks)))
    words = ["run", "--target", target, "--ranks", ranks, "--experts", experts, "--top-k", top_k, "--hidden", hidden,
             "--expert-width", width, "--format", token_format,
             "--combine-format", combine_format, "--routing", routing, "--steps", draw.randint(1, 3),
             "--mode", draw.choice(["split", "fused"]), "--seed", draw.randint(0, 2**64 - 1),
             "--protocol", draw.choice(["automatic", "slotted"] + ["direct"] * (not encodes_sums))]
    allowed = {0}
    if skips or draw.random() < 0.4:
        words += ["--tokens", draw.choice([0, often_small(draw, 1, max_tokens)])]
    else:
        tokens = [draw.choice([0, 1, often_small(draw, 1, max_tokens)]) for _ in range(ranks)]
        words += ["--tokens-per-rank", ",".join(map(str, tokens))]
    if skips:
        words += ["--skip-a2a"]
    elif draw.random() < 0.2:
        words += ["--capacity-factor", draw.choice([0.25, 1, 1.5, ranks])]
        allowed.add("over capacity")
    if draw.random() < 0.2:
        words += ["--placement", write_placement(draw, ranks, experts)]
        allowed.add("refused")  # 1024 seats may be too few
    elif draw.random() < 0.2 and ranks > 1:
        words += ["--replicas", draw.randint(1, max(1, min(8, experts * (ranks - 1) // 2)))]
        allowed.add("refused")
    groups = draw.choice([size for size in range(1, ranks + 1) if ranks % size == 0])
    has_wire = not skips and draw.random() < 0.4
    if has_wire:
        words += ["--p2p-world-size", groups]
    layout = "ragged"
    if "--capacity-factor" not in words and draw.random() < 0.4:
        layout = draw.choice(["masked"] if is_fast else ["masked", "per-rank"])
        words += ["--layout", layout]
    is_slotted = words[words.index("--protocol") + 1] == "slotted" or encodes_sums
    starts_with_rows = (
        is_fast
        and token_format in ("bf16", "fp8-by-row")
        and layout == "ragged"
        and not is_slotted
        and not has_codes
        and draw.random() < 0.4
    )
    if is_fast:
        words += ["--matmul", "fast", "--weights", weights] + ["--gate-up-start", "with-rows"] * starts_with_rows
        if starts_with_rows and target == "cuda":
            allowed.add("refused")  # ranks that share a GPU may have no room for it
    ends_with_experts = (
        is_fast
        and "fused" in words
        and not is_slotted
        and not has_codes
        and combine_format == "bf16"
        and draw.random() < 0.4
    )
    if ends_with_experts:
        words += ["--combine-start", "with-experts"]
        if has_wire:
            allowed.add("refused")
    differs_by_expert = token_format == "nvfp4-by-expert"
    if layout == "per-rank" and (is_slotted or has_wire or differs_by_expert):
        allowed.add("refused")
    if draw.random() < 0.3:
        delivery = draw.choice(["sender", "receiver"])
        words += ["--delivery", delivery]
        if delivery == "receiver" and (is_slotted or differs_by_expert or starts_with_rows):
            allowed.add("refused")
    if draw.random() < 0.3:
        words += ["--reduce-at-owner"]
        if is_slotted or skips or layout == "per-rank" or ends_with_experts:
            allowed.add("refused")
    in_flight = draw.choice([1, 1, 1, 2, 3])
    words += ["--in-flight", in_flight]
    if draw.random() < 0.3:
        words += ["--alignment", draw.choice([1, 2, 3, 8, 64, 100, 128, 256])]
    can_be_encoded = token_format not in ["bf16", "nvfp4-by-expert"]  # once for all experts, with scales
    words += draw_tensors(draw, token_format, can_be_encoded, skips)
    if skips and draw.random() < 0.6:
        words += ["--allreduce-world-size", draw.choice([0, groups])]
    if draw.random() < 0.3:
        words += ["--shared-expert"]
    if draw.random() < 0.3:
        words += ["--padding", draw.choice([0.1, 0.5, 1])]
    if draw.random() < 0.3:
        words += ["--n-sms", draw.choice([1, 2, 3, 7])]
    if in_flight == 1 and draw.random() < 0.1:
        words += ["--trace", "/dev/null"]
        if target == "cuda" and ((token_format, combine_format) != ("bf16", "bf16") or has_wire):
            allowed.add("refused")
    # A GPU that processes share needs MPS.
    if target == "host" and ranks <= 8 and draw.random() < 0.3:
        words += ["--transport", "process"]
    if draw.random() < 0.1:
        phase = "dispatch" if "fused" in words else "dispatch_async"
        words += ["--stall", f"{draw.randrange(ranks)}@{phase}:{draw.randint(0, 20)}"]
    if draw.random() < 0.05:  # one rule broken
        broken = [["--hidden", hidden + 4], ["--experts", 1025], ["--top-k", 33], ["--ranks", 513],
                  ["--expert-width", 12], ["--steps", 0], ["--row-gap", 24], ["--allreduce-world-size", 2 * ranks]]
        broken += [["--encoded-tokens"]] * (not can_be_encoded) + [["--device-scale"]] * (token_format != "nvfp4")
        flag, *value = draw.choice(broken)
        if flag in words:
            del words[words.index(flag):words.index(flag) + 2]
        words += [flag, *value]
        allowed = {"refused"}
    return words, allowed


def draw_attend(draw, target):
    is_latent, has_codes = draw.choice([(False, False)] * 3 + [(True, False), (False, True)])
    is_decoding = (is_latent or has_codes) and draw.random() < 0.5  # at most 16 queries
    kv_heads = 1 if is_latent else draw.choice([1, 1, 2, 3, 4])
    heads = kv_heads * (often_small(draw, 1, 32) if is_latent else draw.choice([1, 1, 2, 4]))
    head_dim = 576 if is_latent else draw.choice([64, 128, 256])
    batch = draw.choice([0, 1, 2, 3, often_small(draw, 1, 20)])
    if is_decoding:
        budget = MAX_ELEMENTS[target] * 16 // (head_dim * heads * max(1, batch))
    else:  # there may be as many queries as keys
        num_shared = heads if is_latent else kv_heads
        budget = round((MAX_ELEMENTS[target] * 8 // (head_dim * num_shared * max(1, batch))) ** 0.5)
    longest = max(1, min(700 if target == "host" else 5000, budget))
    length = lambda: draw.choice([0, 1, draw.randint(1, 16), often_small(draw, 1, longest), longest])
    query_length = (lambda: draw.choice([0, 1, 1, draw.randint(1, 16)])) if is_decoding else length
    words = ["attend", "--target", target, "--heads", heads, "--seed", draw.randint(0, 2**64 - 1),
             "--scheduler", draw.choice(["auto", "auto", "transient", "tile", "queued"]),
             "--order", draw.choice(["auto", "auto", "default", "rotate", "lpt"])]
    words += ["--mla"] if is_latent else ["--kv-heads", kv_heads, "--head-dim", head_dim]
    words += ["--kv-format", "fp8"] * has_codes
    if batch > 0 and draw.random() < 0.5:
        words += ["--seq-lens", ",".join(str(query_length()) for _ in range(batch))]
        if is_decoding or draw.random() < 0.5:
            words += ["--kv-lens", ",".join(str(length()) for _ in range(batch))]
    else:
        words += ["--batch", batch, "--seq", query_length()]
        if is_decoding or draw.random() < 0.5:
            words += ["--kv-lens", length()]
    if draw.random() < 0.5:
        words += ["--causal"]
    if draw.random() < 0.3:
        words += ["--window", often_small(draw, 1, longest)]
    if draw.random() < 0.3:
        words += ["--page-size", draw.choice([16, 32, 64, 128, 256])]
    if draw.random() < 0.3:
        words += ["--ctas", draw.choice([1, 2, 3, 7, 132])]
    adjustments = ["--soft-cap", draw.choice([0.5, 5, 30, 50])] * (draw.random() < 0.3)
    adjustments += ["--sinks"] * (draw.random() < 0.3)
    if not is_latent:
        return words + adjustments, {0}
    if draw.random() < 0.9:
        return words, {0}
    # The kernel for latents leaves scores as they are, and there are no codes of latents.
    return words + (adjustments or ["--kv-format", "fp8"]), {"refused"}


def outcome_of(result):
    """0, or what kind of error it is, if it is one of those that are documented; else None."""
    if result.returncode == 0:
        return 0
    has_one_line = result.stderr.count("\n") == 1 and result.stderr.startswith("switchyard ")
    # Or a line of each process, if they say different things.
    lines = result.stderr.splitlines()
    has_one_line |= bool(lines) and all(re.match(r"rank \d+: switchyard ", line) for line in lines)
    if result.returncode == 2 and has_one_line:
        return "refused"
    # Direct and slotted.
    if result.returncode == 3 and has_one_line and ("capacity" in result.stderr or "output holds" in result.stderr):
        return "over capacity"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("switchyard")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=["host", "cuda"], default="host")
    parser.add_argument("--hang-seconds", type=float, default=180, help="a command that takes longer hangs")
    options = parser.parse_args()
    run = functools.partial(draw_run, token_formats(options.switchyard))
    draw = random.Random(options.seed)
    counts = {}
    end = time.monotonic() + options.seconds
    while time.monotonic() < end:
        words, allowed = draw.choice([run, run, draw_attend])(draw, options.target)
        command = [options.switchyard] + [str(word) for word in words]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=options.hang_seconds)
        except subprocess.TimeoutExpired:
            sys.exit(f"seed {options.seed}: does not end within {options.hang_seconds:g} s:\n{' '.join(command)}")
        outcome = outcome_of(result)
        if outcome not in allowed:
            sys.exit(f"seed {options.seed}: exit code {result.returncode}, allowed {sorted(map(str, allowed))}:\n"
                     f"{' '.join(command)}\n{result.stdout}{result.stderr}")
        transport = " in processes" if "--transport" in words else ""
        matmul = " with fast matmuls" if "fast" in words else ""
        kind = f"{words[0]}{matmul}{transport} {'verified' if outcome == 0 else outcome}"
        counts[kind] = counts.get(kind, 0) + 1
    print(f"seed {options.seed}: " + ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))


if __name__ == "__main__":
    main()

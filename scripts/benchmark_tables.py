"""The tables that performance_tables.py puts into a page. Each is a function of reports, which are the JSON of one run of a
benchmark each."""


class Problem(Exception):
    """What the user has to mend; its text is all that is printed."""


# Numbers


def microseconds(value):
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def percent(part):
    return f"{100 * part:.2f}"


def markdown(header, rows):
    def line(cells):
        return "|" + "|".join(f" {cell} " if cell != "" else " " for cell in cells) + "|"

    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


def one_of(reports, key):
    """The value that all reports share."""
    values = sorted({report[key] for report in reports})
    if len(values) != 1:
        raise Problem(f"the runs of one table must agree on {key}; they have {', '.join(map(str, values))}")
    return values[0]


# switchyard bench ep


def blocks_of(report):
    ranks = report["ranks"]
    return f"{ranks} rank{'' if ranks == 1 else 's'} x {report['n_sms']} blocks"


def sizes_of(report):
    """The sizes that were measured, by tokens per rank."""
    return {size["tokens_per_rank"]: size for size in report["sizes"] if "why_skipped" not in size}


def times_of(report):
    """(tokens per rank, protocol, phase) -> entry, of the fused kernels."""
    times = {(time["tokens_per_rank"], time["protocol"], time["phase"]): time
             for time in report["times"] if time["mode"] == "fused"}
    if not times:
        raise Problem("a run of bench ep has no times of fused kernels: use --mode fused or both")
    return times


def protocols_of(report):
    found = {protocol for _, protocol, _ in times_of(report)}
    return [protocol for protocol in ("direct", "slotted") if protocol in found]


def beside_limit(time):
    over = f" ({time['over_limit']:.2f}x)" if "over_limit" in time else ""
    return microseconds(time["us"]) + over


def ep_table(reports):
    if len(reports) != 1:
        raise Problem("ep is made from one run")
    report = reports[0]
    times, protocols = times_of(report), protocols_of(report)
    header = ["tokens/rank", "scatter limit", "gather limit"]
    for protocol in protocols:
        header += [f"{protocol}: dispatch", "combine", "step"]
    rows = []
    for tokens, size in sizes_of(report).items():
        row = [tokens] + [microseconds(size[f"{kind}_limit_us"]) for kind in ("scatter", "gather")]
        for protocol in protocols:
            dispatch, combine, step = (times[tokens, protocol, phase] for phase in ("dispatch", "combine", "step"))
            row += [beside_limit(dispatch), beside_limit(combine), f"**{microseconds(step['us'])}**"]
        rows.append(row)
    return markdown(header, rows)


def shape_of(report):
    routing = "" if report["routing"] == "uniform" else f", {report['routing']} routing"
    return f"{blocks_of(report)}, hidden {report['hidden']}, top-{report['top_k']}, {report['experts']} experts{routing}"


def shapes_table(reports):
    rows = []
    for report in reports:
        times = times_of(report)
        protocol = protocols_of(report)[0]
        for i, tokens in enumerate(sizes_of(report)):
            row = [shape_of(report) if i == 0 else "", tokens]
            for phase in ("dispatch", "combine"):
                time = times[tokens, protocol, phase]
                row += [microseconds(time["us"]), f"{time['over_limit']:.2f}" if "over_limit" in time else ""]
            rows.append(row)
    return markdown(["shape", "tokens/rank", "dispatch", "x limit", "combine", "x limit"], rows)


def many_ranks_table(reports):
    """Whole steps, all sizes of a run in one cell."""
    sizes = list(sizes_of(reports[0]))
    if any(list(sizes_of(report)) != sizes for report in reports):
        raise Problem("the runs of many-ranks must have the same --tokens, and none may be skipped")
    rows = []
    for report in reports:
        times = times_of(report)
        row = [f"{report['ranks']} x {report['n_sms']}, {report['experts']}"]
        for protocol in ("slotted", "direct"):
            row.append(" / ".join(microseconds(times[tokens, protocol, "step"]["us"]) for tokens in sizes))
        rows.append(row)
    tokens = " / ".join(map(str, sizes))
    return markdown(["ranks x blocks, experts", f"slotted, {tokens} tokens", f"direct, {tokens} tokens"], rows)


def formats_table(reports, key, phase):
    """Times of one phase beside those of bf16, by format, protocol and size."""
    by_format = {}
    for report in reports:
        name = report.get(key, "bf16")
        if name in by_format:
            raise Problem(f"two runs have the {key} {name}")
        by_format[name] = report
    if "bf16" not in by_format:
        raise Problem(f"no run has the {key} bf16, which the others are compared with")
    baseline = times_of(by_format["bf16"])
    rows = []
    for name, report in by_format.items():
        for (tokens, protocol, of_phase), time in times_of(report).items():
            if of_phase != phase:
                continue
            of_bf16 = baseline.get((tokens, protocol, of_phase))
            over = "" if name == "bf16" or of_bf16 is None else f"{time['us'] / of_bf16['us']:.2f}"
            rows.append([name, protocol, tokens, microseconds(time["us"]), over])
    return markdown(["format", "protocol", "tokens/rank", phase, "over bf16"], rows)


def transports_table(reports):
    """Each phase as local / by processes (ratio)."""
    rows = []
    for report in reports:
        transport = report.get("transport", "process")
        group = report["p2p_world_size"] or report["ranks"]
        name = transport if group == report["ranks"] else f"{transport}, groups of {group}"
        times = times_of(report)
        for protocol in protocols_of(report):
            for tokens in sizes_of(report):
                row = [name, protocol, tokens]
                for phase in ("dispatch", "combine", "step"):
                    time = times[tokens, protocol, phase]
                    local, between = time["us"], time[f"{transport}_us"]
                    row.append(f"{microseconds(local)} / {microseconds(between)} ({between / local:.2f})")
                rows.append(row)
    return markdown(["transport", "protocol", "tokens/rank", "dispatch", "combine", "step"], rows)


def checks_table(reports):
    """Steps of a checked build beside those of an unchecked one: means over the runs of each."""
    def mean(runs, key):
        values = [times_of(run)[key]["us"] for run in runs]
        return sum(values) / len(values)

    builds = {checked: [report for report in reports if report["checked"] == checked] for checked in (True, False)}
    if not builds[True] or not builds[False]:
        raise Problem("checks needs runs of a checked and of an unchecked build")
    first = reports[0]
    rows = []
    for protocol in protocols_of(first):
        for tokens in sizes_of(first):
            with_checks, without = (mean(builds[checked], (tokens, protocol, "step")) for checked in (True, False))
            rows.append([protocol, tokens, microseconds(with_checks), microseconds(without),
                         f"{with_checks - without:.1f} us, {100 * (with_checks / without - 1):.1f}%"])
    return markdown(["protocol", "tokens/rank", "with checks", "without", "cost"], rows)


# switchyard bench attention


def rate(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def beside_peers(ours, case):
    """Ours, cuDNN's and FlashAttention-3's, as far as they were timed, and ours over the better of the two."""
    theirs = [case.get("peers", {}).get(name) for name in ("cudnn", "fa3")]
    theirs = [peer for peer in theirs if peer]
    return " / ".join(rate(value) for value in [ours] + theirs) + (f" ({ours / max(theirs):.2f})" if theirs else "")


def in_thousands(label):
    return f"{int(label) // 1024}k" if label.isdigit() and int(label) % 1024 == 0 else label


def cases_of(reports, *groups):
    if len(reports) != 1:
        raise Problem("the tables of attention are made from one run each")
    cases = [case for case in reports[0]["results"] if case["group"] in groups]
    if not cases:
        raise Problem(f"the run of attention has no case of {' or '.join(groups)}")
    return cases


def attention_table(reports):
    cases = cases_of(reports, "full", "causal")
    labels = list(dict.fromkeys(case["label"] for case in cases))
    rows = []
    for head_dim in sorted({case["head_dim"] for case in cases}):
        for group in ("full", "causal"):
            cells = {case["label"]: beside_peers(case["tflops"], case)
                     for case in cases if case["head_dim"] == head_dim and case["group"] == group}
            rows.append([f"d{head_dim} {group}"] + [cells.get(label, "") for label in labels])
    return markdown([""] + [in_thousands(label) for label in labels], rows)


def ragged_table(reports):
    cases = cases_of(reports, "ragged")
    rows = [[case["label"], beside_peers(case["tflops"], case), f"{case['tflops'] / cases[-1]['tflops']:.2f}"] for case in cases]
    return markdown(["schedule", "TFLOP/s", f"over {cases[-1]['label']}"], rows)


def decode_table(reports):
    cases = cases_of(reports, "decode")
    heads = ["sequences x keys", "heads / K/V heads", "TB/s of keys and values"]
    rows = [[case["label"], f"{case['heads']} / {case['kv_heads']}",
             beside_peers(case["kv_terabytes_per_second"], case)] for case in cases]
    if all(case.get("read_terabytes_per_second") for case in cases):
        heads.append("a kernel that only reads (ours over it)")
        for row, case in zip(rows, cases):
            read = case["read_terabytes_per_second"]
            row.append(f"{rate(read)} ({case['kv_terabytes_per_second'] / read:.2f})")
    return markdown(heads, rows)


# switchyard bench matmul


def matmul_table(reports, weights):
    if len(reports) != 1:
        raise Problem("a table of matmul is made from one run")
    report = reports[0]
    if report["weights"] != weights:
        raise Problem(f"the run of matmul has {report['weights']}, and the table is of {weights}")
    peers = sorted({name for case in report["results"] for name in case.get("peers", {})})
    rows, shapes, cases = [], set(), set()
    order = [case["shape"] for case in report["results"]]
    for case in sorted(report["results"], key=lambda case: order.index(case["shape"])):
        shape = f"{case['shape']}, K {case['inner']}, N {case['columns']}"
        if (shape, case["rows_per_expert"]) in cases:
            raise Problem(f"the run of matmul has {shape} twice: use --tunings chosen")
        cases.add((shape, case["rows_per_expert"]))
        rows.append(["" if shape in shapes else shape, case["rows_per_expert"], microseconds(case["median_us"]),
                     rate(case["tflops"]), rate(case["terabytes_per_second"])])
        if peers:
            rows[-1] += cells_of_peers(case, peers)
        shapes.add(shape)
    heads = ["limit, us", *(f"{name}, us" for name in peers), "the best of these over ours"] if peers else []
    return markdown(["shape", "rows of each expert", "us", "TFLOP/s", "TB/s", *heads], rows)


def cells_of_peers(case, names):
    times = {name: peer["us"] for name, peer in case.get("peers", {}).items()}
    best = f"{min(times.values()) / case['median_us']:.2f}" if times else "-"
    cells = [microseconds(times[name]) if name in times else "-" for name in names]
    return [microseconds(case["limit_us"]), *cells, best]


# switchyard bench layer


def layer_table(reports):
    rows = []
    for report in reports:
        name = f"{report['format']}, {report['experts']} experts"
        for case in report["results"]:
            parts = case["parts"]
            exchange_us = parts["dispatch"] + parts["combine"]
            rows.append([name, case["tokens"], microseconds(case["median_us"]),
                         *(microseconds(parts[part]) for part in ("route", "dispatch", "gate_up", "down", "combine")),
                         f"{(case['median_us'] - case['matmul_us']) / exchange_us:.2f}", rate(case["tflops"]),
                         rate(case["weight_terabytes_per_second"])])
            name = ""
    return markdown(["layer", "tokens per rank", "step us", "route", "dispatch", "gate_up", "down", "combine",
                     "beyond the matmuls, of dispatch + combine", "TFLOP/s", "weights, TB/s"], rows)


def layer_peers_table(reports):
    def time_of(peer, key):
        return microseconds(peer[key]) + (" (not captured)" if peer["not_captured"] else "") if peer else "-"

    rows = []
    for report in reports:
        name = ""
        for case in report["results"]:
            previous, name = name, f"{case['format']}, {case['experts']} experts"
            ours, peers = case["ours"], case["peers"]
            normal, low_latency = peers.get("normal"), peers.get("low-latency")
            best = min((peer["us"] for peer in peers.values()), default=None)
            rows.append(["" if name == previous else name, case["tokens"], microseconds(ours["median_us"]),
                         microseconds(ours["parts"]["route"]), time_of(normal, "us"), time_of(normal, "permutation_us"),
                         time_of(low_latency, "us"), f"{best / ours['median_us']:.2f}" if best else "-"])
    return markdown(["layer", "tokens per rank", "step us", "of these route", "DeepEP normal + DeepGEMM, us",
                     "of these the permutation", "DeepEP low latency + DeepGEMM, us", "the best of these over ours"], rows)


# switchyard bench formats


def accuracy_table(reports):
    if len(reports) != 1:
        raise Problem("accuracy is made from one run")
    entries = reports[0]["formats"]
    inputs = list(dict.fromkeys(entry["input"] for entry in entries))
    header = ["format", "bits"]
    for kind in inputs:
        header += [f"{kind}: rms", "element", "max"]
    rows = {}
    for entry in entries:
        row = rows.setdefault(entry["format"], [entry["format"], f"{entry['bits_per_element']:.2f}"])
        row += [percent(entry[key]) for key in ("rms_error", "rms_element_error", "max_error_of_group_amax")]
    return markdown(header, rows.values())


# scripts/bench_host.py


def host_table(reports):
    if len(reports) != 1:
        raise Problem("host is made from one run")
    rows = [[f"`{entry['command']}`", f"{entry['seconds']:.1f}", f"{entry['processor_seconds']:.1f}"]
            for entry in reports[0]["commands"]]
    return markdown(["command", "seconds", "processor seconds"], rows)


def host_processes_table(reports):
    if len(reports) != 1:
        raise Problem("host-processes is made from one run")
    rows = []
    for entry in reports[0]["transports"]:
        ratios = entry["steps_per_second_ratios"]
        rows.append([entry["tokens_per_rank"], entry["protocol"], microseconds(entry["local_us"]),
                     microseconds(entry["process_us"]), f"{entry['local_us'] / entry['process_us']:.2f}",
                     f"{ratios[0]:.2f} .. {ratios[-1]:.2f}"])
    return markdown(["tokens/rank", "protocol", "one process", "a process each", "steps per second, over one process",
                     "of single runs"], rows)


# switchyard plan --published


def published_table(reports):
    """Each phase as model / figure (ratio); those that are not close are bold."""

    def cell(row, phase):
        model, figure = row["plan"][phase]["us"], row[f"published_{phase}_us"]
        if figure == 0:
            return microseconds(model)
        text = f"{microseconds(model)} / {microseconds(figure)} ({model / figure:.2f})"
        return text if 3 / 4 <= model / figure <= 4 / 3 else f"**{text}**"

    rows = [[row["who"], row["setting"], cell(row, "dispatch"), cell(row, "combine")]
            for report in reports for row in report["published"]]
    return markdown(["who", "setting", "dispatch", "combine"], rows)


TABLES = {
    "ep": ep_table,
    "shapes": shapes_table,
    "many-ranks": many_ranks_table,
    "token-formats": lambda reports: formats_table(reports, "format", "dispatch"),
    "combine-formats": lambda reports: formats_table(reports, "combine_format", "combine"),
    "process": transports_table,
    "shmem": transports_table,
    "shmem-groups": transports_table,
    "checks": checks_table,
    "attention": attention_table,
    "ragged": ragged_table,
    "decode": decode_table,
    "matmul": lambda reports: matmul_table(reports, "bf16"),
    "matmul-fp8": lambda reports: matmul_table(reports, "fp8"),
    "layer": layer_table,
    "layer-peers": layer_peers_table,
    "accuracy": accuracy_table,
    "host": host_table,
    "host-processes": host_processes_table,
    "published": published_table,
}

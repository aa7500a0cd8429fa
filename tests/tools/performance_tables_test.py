#!/usr/bin/env python3
"""scripts/performance_tables.py: tables of JSON that the command wrote (performance_tables/), and of what it writes now.
scripts/bench_layer.py: what it does without a GPU.

The last test runs the command that the environment variable SWITCHYARD_TOOL names, and is skipped without it.
"""
import contextlib
import copy
import io
import itertools
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

FOLDER = pathlib.Path(__file__).resolve().parent
SCRIPTS = FOLDER.parent.parent / "scripts"
sys.dont_write_bytecode = True  # no __pycache__ beside the scripts
sys.path.insert(0, str(SCRIPTS))

import benchmark_tables as tables  # pylint: disable=wrong-import-position
import performance_tables as page_script  # pylint: disable=wrong-import-position

with mock.patch.dict(sys.modules, dict.fromkeys(("torch", "torch.distributed", "triton", "triton.language"),
                                                mock.MagicMock())):
    import bench_layer  # pylint: disable=wrong-import-position


def stored(name):
    return json.loads((FOLDER / "performance_tables" / f"{name}.json").read_text())


def with_changes(report, **changes):
    return dict(copy.deepcopy(report), **changes)


def run_bench_layer(path, ours, peers, *options):
    """The exit status of bench_layer.py and its report, if `ours` are the answers of the command and `peers` were timed."""
    arguments = ["bench_layer.py", "--compiled", "--json", str(path), *options]

    def time_peers(form, *_):
        return [peer for peer in peers if peer["form"] == form]

    with mock.patch("sys.argv", arguments), mock.patch.dict(os.environ), contextlib.redirect_stdout(io.StringIO()), \
            mock.patch.multiple(bench_layer, time_ours=mock.Mock(side_effect=ours), time_peers=time_peers):
        status = bench_layer.main()
    return status, json.loads(path.read_text())


def rows_of(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


class TablesOfStoredRuns(unittest.TestCase):
    maxDiff = None

    def test_dispatch_and_combine_stand_beside_their_limits_direct_first(self):
        self.assertEqual(tables.ep_table([stored("ep")]), """\
| tokens/rank | scatter limit | gather limit | direct: dispatch | combine | step | slotted: dispatch | combine | step |
|---|---|---|---|---|---|---|---|---|
| 1 | 140 | 103 | 653 (4.66x) | 308 (3.00x) | **969** | 732 (5.23x) | 581 (5.65x) | **1309** |
| 4 | 159 | 161 | 834 (5.26x) | 312 (1.94x) | **1177** | 851 (5.36x) | 581 (3.62x) | **1299** |""")

    def test_a_size_that_was_skipped_has_no_row(self):
        report = stored("ep")
        report["sizes"][1] = {"tokens_per_rank": 4, "why_skipped": "out of memory"}
        self.assertEqual([row[0] for row in rows_of(tables.ep_table([report]))], ["1"])

    def test_shapes_are_named_once_with_their_routing(self):
        runs = [stored("ep"), with_changes(stored("ep"), ranks=1, n_sms=132, routing="zipf")]
        self.assertEqual([row[:3] for row in rows_of(tables.shapes_table(runs))],
                         [["2 ranks x 4 blocks, hidden 64, top-2, 8 experts", "1", "653"], ["", "4", "834"],
                          ["1 rank x 132 blocks, hidden 64, top-2, 8 experts, zipf routing", "1", "653"],
                          ["", "4", "834"]])

    def test_many_ranks_have_all_steps_of_a_run_in_a_cell(self):
        self.assertEqual(tables.many_ranks_table([stored("ep")]), """\
| ranks x blocks, experts | slotted, 1 / 4 tokens | direct, 1 / 4 tokens |
|---|---|---|
| 2 x 4, 8 | 1309 / 1299 | 969 / 1177 |""")

    def test_transports_stand_beside_the_local_one(self):
        process, shmem = stored("ep"), with_changes(stored("ep"), transport="shmem", p2p_world_size=1)
        process["p2p_world_size"] = 0
        for report, key in ((process, "process_us"), (shmem, "shmem_us")):
            for time in report["times"]:
                time[key] = time["us"] * 1.5
        rows = rows_of(tables.TABLES["process"]([process, shmem]))
        self.assertIn(["process", "direct", "4", "834 / 1251 (1.50)", "312 / 467 (1.50)", "1177 / 1766 (1.50)"], rows)
        self.assertIn("shmem, groups of 1", [row[0] for row in rows])
        self.assertEqual(len(rows), 8)

    def test_formats_are_compared_with_bf16_of_the_same_size_and_protocol(self):
        half = with_changes(stored("ep"), format="fp8")
        for time in half["times"]:
            time["us"] /= 2
        rows = rows_of(tables.TABLES["token-formats"]([half, stored("ep")]))
        self.assertIn(["fp8", "direct", "4", "417", "0.50"], rows)
        self.assertIn(["bf16", "direct", "4", "834", ""], rows)
        self.assertEqual(len(rows), 8)

    def test_what_is_not_close_to_the_model_is_bold(self):
        row = {"who": "somebody", "setting": "8 ranks", "published_dispatch_us": 100, "published_combine_us": 0,
               "plan": {"dispatch": {"us": 130}, "combine": {"us": 20}}}
        far = with_changes(row, published_dispatch_us=200)
        self.assertEqual(rows_of(tables.published_table([{"published": [row, far]}])),
                         [["somebody", "8 ranks", "130 / 100 (1.30)", "20.0"],
                          ["somebody", "8 ranks", "**130 / 200 (0.65)**", "20.0"]])

    def test_two_runs_of_one_format_are_refused(self):
        with self.assertRaisesRegex(tables.Problem, "two runs have the format bf16"):
            tables.TABLES["token-formats"]([stored("ep"), stored("ep")])

    def test_formats_without_bf16_are_refused(self):
        with self.assertRaisesRegex(tables.Problem, "no run has the format bf16"):
            tables.TABLES["token-formats"]([with_changes(stored("ep"), format="fp8")])

    def test_checks_cost_the_difference_of_the_means(self):
        runs = [stored("ep"), stored("ep"), with_changes(stored("ep"), checked=False)]
        for time in runs[1]["times"]:
            time["us"] += 2
        rows = rows_of(tables.checks_table(runs))
        self.assertEqual(rows[0], ["direct", "1", "970", "969", "1.0 us, 0.1%"])
        self.assertEqual(len(rows), 4)

    def test_checks_need_both_builds(self):
        with self.assertRaisesRegex(tables.Problem, "checked and of an unchecked"):
            tables.checks_table([stored("ep")])

    def test_attention_without_a_peer_has_our_rates_alone(self):
        self.assertEqual(tables.attention_table([stored("attention")]), """\
| | 64 | 1k |
|---|---|---|
| d64 full | 0.000264 | 0.00156 |
| d64 causal | 0.000295 | 0.00172 |""")

    def test_attention_stands_beside_the_peers_that_were_timed(self):
        report = stored("attention")
        for case in report["results"]:
            case["tflops"] = 500.0
            case["peers"] = {"cudnn": 400.0, "flash": 300.0}
        report["results"][0]["peers"] = {}
        report["results"][3]["peers"]["fa3"] = 625.0
        report["results"][4]["peers"] = {"fa3": 1000.0}
        self.assertEqual([row[1:] for row in rows_of(tables.attention_table([report]))],
                         [["500", "500 / 400 (1.25)"], ["500 / 400 (1.25)", "500 / 400 / 625 (0.80)"]])
        self.assertEqual(rows_of(tables.ragged_table([report]))[0], ["lpt queue", "500 / 1000 (0.50)", "1.00"])

    def test_ragged_schedules_are_compared_with_the_last(self):
        self.assertEqual(rows_of(tables.ragged_table([stored("attention")])),
                         [["lpt queue", "0.000325", "0.99"], ["static", "0.000329", "1.00"]])

    def test_matmul_names_a_shape_once_and_has_a_row_for_each_size(self):
        self.assertEqual(tables.TABLES["matmul"]([stored("matmul")]), """\
| shape | rows of each expert | us | TFLOP/s | TB/s |
|---|---|---|---|---|
| gate_up, K 64, N 64 | 8 | 7609 | 3.45e-05 | 5.38e-06 |
| | 20 | 3182 | 0.000206 | 1.67e-05 |
| down, K 32, N 64 | 8 | 4642 | 2.82e-05 | 4.85e-06 |
| | 20 | 4346 | 7.54e-05 | 7.3e-06 |""")

    def test_matmul_has_a_column_for_each_peer_that_any_case_has(self):
        report = stored("matmul")
        report["results"] = report["results"][:2]
        first, second = report["results"]
        first |= {"limit_us": 7000.0, "peers": {"torch": {"us": 7000.0}, "DeepGEMM masked": {"us": 8000.0}}}
        second |= {"limit_us": 50.0, "peers": {"torch": {"us": 3500.0}}}
        self.assertEqual(tables.TABLES["matmul"]([report]), """\
| shape | rows of each expert | us | TFLOP/s | TB/s | limit, us | DeepGEMM masked, us | torch, us | the best of these over ours |
|---|---|---|---|---|---|---|---|---|
| gate_up, K 64, N 64 | 8 | 7609 | 3.45e-05 | 5.38e-06 | 7000 | 8000 | 7000 | 0.92 |
| | 20 | 3182 | 0.000206 | 1.67e-05 | 50.0 | - | 3500 | 1.10 |""")

    def test_a_layer_has_what_it_takes_beyond_its_matmuls_as_a_part_of_dispatch_and_combine(self):
        case = {"tokens": 16, "median_us": 130.0, "matmul_us": 100.0, "tflops": 5.0, "weight_terabytes_per_second": 4.0,
                "parts": {"route": 2.0, "dispatch": 20.0, "gate_up": 60.0, "down": 40.0, "combine": 30.0}}
        report = {"format": "bf16", "experts": 256, "results": [case, dict(case, tokens=128)]}
        self.assertEqual(rows_of(tables.layer_table([report])),
                         [["bf16, 256 experts", "16", "130", "2.0", "20.0", "60.0", "40.0", "30.0", "0.60", "5", "4"],
                          ["", "128", "130", "2.0", "20.0", "60.0", "40.0", "30.0", "0.60", "5", "4"]])

    def test_a_matmul_of_other_weights_or_of_all_tunings_is_refused(self):
        with self.assertRaisesRegex(tables.Problem, "has bf16, and the table is of fp8"):
            tables.TABLES["matmul-fp8"]([stored("matmul")])
        report = stored("matmul")
        report["results"] *= 2
        with self.assertRaisesRegex(tables.Problem, "gate_up, K 64, N 64 twice: use --tunings chosen"):
            tables.TABLES["matmul"]([report])

    def test_accuracy_has_a_row_per_format_and_three_columns_per_input(self):
        self.assertEqual(tables.accuracy_table([stored("formats")]), """\
| format | bits | normal: rms | element | max | heavy-tailed: rms | element | max | outliers: rms | element | max |
|---|---|---|---|---|---|---|---|---|---|---|
| bf16 | 16.00 | 0.17 | 0.17 | 0.39 | 0.17 | 0.17 | 0.39 | 0.17 | 0.17 | 0.39 |
| nvfp4 | 4.50 | 9.50 | 31.00 | 17.60 | 9.08 | 39.99 | 17.60 | 4.87 | 32.75 | 17.61 |""")


    def test_commands_on_the_host_have_a_row_each(self):
        self.assertEqual(tables.host_table([stored("host")]), """\
| command | seconds | processor seconds |
|---|---|---|
| `switchyard run --target host` | 3.4 | 5.9 |
| `switchyard simulate` | 4.1 | 4.0 |""")

    def test_processes_on_the_host_have_a_row_per_size_and_protocol(self):
        self.assertEqual(tables.host_processes_table([stored("host")]), """\
| tokens/rank | protocol | one process | a process each | steps per second, over one process | of single runs |
|---|---|---|---|---|---|
| 1 | direct | 1800 | 2000 | 0.90 | 0.85 .. 0.97 |""")


class LayersBesidePeers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "layer_peers.json"
        self.peers = stored("layer_peers")
        self.ours = {"device": "NVIDIA H200", "results": [
            {"tokens": tokens, "median_us": 100.0, "parts": {"route": 9.0}, "relative_error": 0.002, "verified": True}
            for tokens in (16, 128, 1024)]}

    @contextlib.contextmanager
    def one_rank(self):
        """A world of one rank, and what stands for PyTorch in it."""
        with mock.patch.multiple(bench_layer, torch=mock.MagicMock(), dist=mock.Mock(), gathered=lambda value: [value]):
            yield bench_layer.torch

    def run_bench(self, *options):
        return run_bench_layer(self.path, [self.ours], self.peers, "--experts", "256", "--formats", "bf16", *options)

    def test_the_faster_of_their_forms_stands_over_ours(self):
        status, report = self.run_bench()
        self.assertEqual((status, report["verified"], report["device"]), (0, True, "NVIDIA H200"))
        self.assertEqual(rows_of(tables.layer_peers_table([report])),
                         [["bf16, 256 experts", "16", "100", "9.0", "200", "30.0", "150", "1.50"],
                          ["", "128", "100", "9.0", "200", "30.0", "-", "2.00"],
                          ["", "1024", "100", "9.0", "-", "-", "-", "-"]])

    def test_calls_in_place_of_replays_are_marked(self):
        self.peers[0]["not_captured"] = "an operation that cannot be captured"
        rows = rows_of(tables.layer_peers_table([self.run_bench()[1]]))
        self.assertEqual(rows[0][4:7], ["200 (not captured)", "30.0 (not captured)", "150"])
        self.assertEqual(rows[1][4:6], ["200", "30.0"])

    def assert_unverified(self, outcome):
        status, report = outcome
        self.assertEqual((status, report["verified"]), (1, False))
        with self.assertRaisesRegex(tables.Problem, "not verified"):
            page_script.make_region("layer-peers", [report], "abc1234", "today")

    def test_an_output_that_is_wrong_on_either_side_is_no_table(self):
        for side in self.ours["results"][2], self.peers[1]:
            with self.subTest(side=side):
                right = dict(side)
                side.update(relative_error=math.nan, verified=False)
                self.assert_unverified(self.run_bench())
                side.update(right)

    def test_a_run_of_ours_that_failed_is_no_table_and_hides_no_device(self):
        outcome = run_bench_layer(self.path, [{"results": []}, self.ours], self.peers, "--experts", "256")
        self.assertEqual(outcome[1]["device"], "NVIDIA H200")
        self.assert_unverified(outcome)

    def test_nan_is_the_worst_of_errors_wherever_it_stands(self):
        for errors in itertools.permutations([0.5, 0.0, math.nan]):
            self.assertTrue(math.isnan(bench_layer.worst(errors)), errors)
        self.assertEqual(bench_layer.worst([0.0, 0.5, 0.25]), 0.5)

    def test_the_output_of_the_last_replay_is_verified_and_the_first_replays_are_not_timed(self):
        order = mock.Mock()
        order.begin.elapsed_time.return_value = 0.6
        order.output.fill_ = order.clear
        with self.one_rank() as torch:
            torch.cuda.CUDAGraph.return_value = order.graph
            torch.cuda.Event.side_effect = [order.begin, order.end]
            outputs = iter([None, None, order.output])
            timed = bench_layer.time_back_to_back(lambda: next(outputs), 3)
        self.assertEqual(timed, (mock.ANY, order.output, None))
        self.assertAlmostEqual(timed[0], 200)
        self.assertEqual([name for name, *_ in order.method_calls],
                         ["clear", "graph.replay", "graph.replay", "begin.record", "graph.replay", "graph.replay",
                          "graph.replay", "end.record", "begin.elapsed_time"])

    def test_calls_take_the_place_of_a_graph_also_if_the_reason_has_no_text(self):
        outputs = [mock.Mock() for _ in range(2 + 2 + 3)]
        with self.one_rank() as torch:
            torch.cuda.graph.side_effect = RuntimeError()
            torch.cuda.Event.return_value.elapsed_time.return_value = 0.6
            _, output, problem = bench_layer.time_back_to_back(mock.Mock(side_effect=outputs), 3)
        self.assertEqual((output, problem), (outputs[-1], "RuntimeError()"))
        output.fill_.assert_not_called()

    def test_a_rank_reports_the_fields_that_are_stored(self):
        timed = mock.Mock(side_effect=[(200.0, None, None), (30.0, None, None)])
        with self.one_rank(), mock.patch.multiple(
                bench_layer, Routing=mock.Mock(), Experts=mock.Mock(), NormalLayer=mock.Mock(),
                relative_error=mock.Mock(return_value=0.0039), time_back_to_back=timed):
            self.assertEqual(bench_layer.time_case(None, "normal", 256, "bf16", 16, 0, 20), self.peers[0])

    def test_kernels_that_do_not_compile_end_the_run(self):
        with mock.patch("sys.argv", ["bench_layer.py"]), mock.patch.dict(os.environ), \
                contextlib.redirect_stderr(io.StringIO()) as errors, \
                mock.patch.object(bench_layer, "run_processes", return_value=([], False)):
            self.assertEqual(bench_layer.main(), 1)
        self.assertIn("compiling DeepGEMM's kernels failed", errors.getvalue())

    def test_a_format_that_it_does_not_know_is_named(self):
        with contextlib.redirect_stderr(io.StringIO()) as errors, self.assertRaises(SystemExit):
            self.run_bench("--formats", "bf16,fp4")
        self.assertIn("'fp4' is none of bf16, fp8", errors.getvalue())


class Regions(unittest.TestCase):
    PAGE = "# Title\n<!-- table: ep -->\nold\n<!-- end -->\nbetween\n<!-- table: decode -->\nkept\n<!-- end -->\nafter\n"

    def test_only_the_named_region_changes_and_a_second_time_changes_nothing(self):
        once = page_script.replace_region(self.PAGE, "ep", "new\nlines")
        self.assertEqual(once, self.PAGE.replace("old", "new\nlines"))
        self.assertEqual(page_script.replace_region(once, "ep", "new\nlines"), once)

    def test_a_page_without_the_region_is_refused(self):
        with self.assertRaisesRegex(tables.Problem, "0 regions '<!-- table: shapes -->'"):
            page_script.replace_region(self.PAGE, "shapes", "new")

    def test_a_region_that_does_not_end_before_the_next_is_refused(self):
        with self.assertRaisesRegex(tables.Problem, "has no '<!-- end -->'"):
            page_script.replace_region(self.PAGE.replace("<!-- end -->\nbetween", "between"), "ep", "new")

    def test_a_caption_names_machine_commit_and_date(self):
        self.assertEqual(page_script.caption([stored("ep")], "abc1234", "2026-11-15"),
                         "*SIMT emulator on 2 cores, copy bandwidth 17 GB/s, commit abc1234, 2026-11-15*")
        self.assertEqual(page_script.caption([stored("formats")], "abc1234", "2026-11-15"), "*commit abc1234, 2026-11-15*")

    def test_runs_of_two_machines_are_no_table(self):
        with self.assertRaisesRegex(tables.Problem, "must agree on device"):
            page_script.make_region("shapes", [stored("ep"), with_changes(stored("ep"), device="GPU")], "abc1234", "today")

    def test_a_run_that_was_not_verified_is_refused(self):
        with self.assertRaisesRegex(tables.Problem, "not verified"):
            page_script.make_region("ep", [with_changes(stored("ep"), verified=False)], "abc1234", "today")

    def test_a_run_that_does_not_say_whether_it_was_verified_is_refused(self):
        report = stored("ep")
        del report["verified"]
        with self.assertRaisesRegex(tables.Problem, "the JSON has no 'verified'"):
            page_script.make_region("ep", [report], "abc1234", "today")

    def test_the_json_of_another_command_is_refused(self):
        with self.assertRaisesRegex(tables.Problem, "the JSON has no 'formats'"):
            page_script.make_region("accuracy", [stored("ep")], "abc1234", "today")

    def test_performance_has_no_table_that_no_script_makes(self):
        page = (FOLDER.parent.parent / "docs" / "performance.md").read_text()
        by_hand = re.sub(r"<!-- table: .*? -->.*?<!-- end -->", "", page, flags=re.DOTALL)
        self.assertEqual([line for line in by_hand.splitlines() if line.startswith("|")], [])

    def test_every_region_of_the_docs_is_of_a_table_that_can_be_made(self):
        num_regions = 0
        for page in sorted((FOLDER.parent.parent / "docs").glob("*.md")):
            text = page.read_text()
            num_regions += text.count("<!-- table: ")
            for name in re.findall(r"<!-- table: (.*?) -->", text):
                with self.subTest(page=page.name, table=name):
                    self.assertIn(name, tables.TABLES)
                    page_script.replace_region(text, name, "new")
        self.assertGreater(num_regions, 10)


class Command(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.page = self.folder / "page.md"

    def run_script(self, *arguments):
        """The exit code and what was said of a problem."""
        errors = io.StringIO()
        with mock.patch("sys.argv", ["performance_tables.py", str(self.page), *arguments]):
            with contextlib.redirect_stderr(errors):
                return page_script.main(), errors.getvalue()

    def write_page(self, *names):
        self.page.write_text("".join(f"<!-- table: {name} -->\n<!-- end -->\n" for name in names))

    def test_a_problem_leaves_the_page_alone(self):
        self.write_page("ep")
        before = self.page.read_text()
        code, said = self.run_script("ep=" + str(FOLDER / "performance_tables" / "ep.json"), "ep=nowhere.json")
        self.assertEqual(code, 2)
        self.assertIn("nowhere.json", said)
        self.assertEqual(self.page.read_text(), before)

    def test_a_word_that_is_no_source_is_named(self):
        self.write_page("ep")
        self.assertIn("'ep.json' is not TABLE=FILE.json", self.run_script("ep.json")[1])

    @unittest.skipUnless("SWITCHYARD_TOOL" in os.environ, "SWITCHYARD_TOOL names no command")
    def test_every_table_is_made_of_what_the_command_writes(self):
        def bench(name, *arguments):
            path = self.folder / f"{name}.json"
            subprocess.run([os.environ["SWITCHYARD_TOOL"], "bench", *arguments, "--json", str(path)], check=True,
                           stdout=subprocess.DEVNULL)
            return str(path)

        shape = ("ep", "--target", "host", "--protocol", "both", "--mode", "fused", "--tokens", "1,4", "--ranks", "2",
                 "--hidden", "64", "--experts", "8", "--top-k", "2")
        ep = bench("ep", *shape)
        process = bench("process", *shape, "--transport", "process")
        shmem = self.folder / "shmem.json"  # it has the same fields, and needs a launcher
        shmem.write_text(pathlib.Path(process).read_text(encoding="utf-8").replace('"process', '"shmem'))
        attention = bench("attention", "attention", "--target", "host", "--lengths", "64")
        matmul, matmul_fp8 = (
            bench(f"matmul-{weights}", "matmul", "--target", "host", "--weights", weights, "--hidden", "64",
                  "--expert-width", "32", "--rows", "8,20") for weights in ("bf16", "fp8"))
        layer = bench("layer", "layer", "--target", "host", "--hidden", "64", "--expert-width", "32", "--tokens", "4")
        accuracy = bench("accuracy", "formats", "--values", "1024")
        published = self.folder / "published.json"
        subprocess.run([os.environ["SWITCHYARD_TOOL"], "plan", "--published", "--json", str(published)], check=True,
                       stdout=subprocess.DEVNULL)
        unchecked = self.folder / "unchecked.json"
        with open(ep, encoding="utf-8") as file:
            unchecked.write_text(json.dumps(with_changes(json.load(file), checked=False)))
        sources = {"ep": ep, "shapes": ep, "many-ranks": ep, "token-formats": ep, "combine-formats": ep,
                   "process": process, "shmem": str(shmem), "shmem-groups": str(shmem), "checks": f"{ep},{unchecked}",
                   "attention": attention, "ragged": attention, "decode": attention,
                   "matmul": matmul, "matmul-fp8": matmul_fp8, "layer": layer, "accuracy": accuracy,
                   "published": str(published)}
        sources |= dict.fromkeys(("host", "host-processes"), str(FOLDER / "performance_tables" / "host.json"))
        with open(layer, encoding="utf-8") as file:
            ours = json.load(file)
        sizes = {"experts": ours["experts"], "tokens": ours["results"][0]["tokens"], "format": ours["format"]}
        layer_peers = self.folder / "layer_peers.json"
        status, _ = run_bench_layer(layer_peers, [ours], [with_changes(peer, **sizes) for peer in stored("layer_peers")],
                                    "--experts", str(sizes["experts"]), "--tokens", str(sizes["tokens"]),
                                    "--formats", sizes["format"])
        self.assertEqual(status, 0)
        sources["layer-peers"] = str(layer_peers)
        self.assertEqual(sources.keys(), tables.TABLES.keys())
        self.write_page(*sources)
        code, said = self.run_script(*(f"{name}={paths}" for name, paths in sources.items()), "--commit", "abc1234")
        self.assertEqual((code, said), (0, ""))
        self.assertEqual(self.page.read_text().count("commit abc1234"), len(sources))


if __name__ == "__main__":
    unittest.main()

"""Plots are well-formed SVG and show what was counted."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import switchyard_ep as sy
from conftest import SHAPE
from switchyard_ep import plots
from switchyard_ep.trace import Trace

NAMESPACE = "{http://www.w3.org/2000/svg}"


def tooltips(svg):
    return [title.text for title in ElementTree.fromstring(svg._repr_svg_()).iter(NAMESPACE + "title")]


def test_the_heat_map_counts_every_row(step):
    counts = plots.count_rows(step.topk_ids, 8)
    assert sum(map(sum, counts)) == 4 * 16 * 2
    shown = tooltips(plots.routing_heat_map(step.topk_ids, 8))
    assert f"rank 2 to expert 5: {counts[2][5]} rows" in shown
    assert len(shown) == 1 + 4 * 8


def test_the_load_follows_the_placement():
    ids = [np.array([[0, 1], [0, -1]], np.int32), np.array([[3, 0]], np.int32)]
    assert "rank 0: 4 rows" in tooltips(plots.load_per_rank(ids, 4))
    shown = tooltips(plots.load_per_rank(ids, 4, placement=[[0, 1], [0, 2, 3]]))
    assert "rank 0: 2.5 rows" in shown and "rank 1: 2.5 rows" in shown


@pytest.mark.parametrize("ids", [[], [np.zeros((0, 2), np.int32)]])
def test_nothing_can_be_drawn_too(ids):
    for svg in (plots.routing_heat_map(ids, 4), plots.load_per_rank(ids, 4)):
        ElementTree.fromstring(str(svg))


def test_ids_outside_the_model_are_named():
    with pytest.raises(ValueError, match=r"topk_ids\[0\] holds 4; it must be -1\.\.3"):
        plots.count_rows([[[4]]], 4)


def test_a_trace_is_saved_for_perfetto(tmp_path):
    trace = Trace(
        [
            [(0, "send rows", "dispatch", 1000, 5000, -1, -1), (0, "count", "dispatch", 2000, 5500, -1, -1)],
            [(1, "wait", "dispatch", 3000, 4000, 0, 5), (1, "copy rows", "dispatch", 4000, 4500, -1, -1)],
        ]
    )
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {(1, 0): "rank 0", (1, 1): "block 0", (2, 0): "rank 1", (2, 2): "block 1"}
    roles = {event["name"]: (event["pid"], event["tid"], event["ts"], event["dur"]) for event in events if event["ph"] == "X"}
    # What a block does within a role ends within it.
    assert roles == {"send rows": (1, 1, 0, 4), "count": (1, 1, 1, 3), "copy rows": (2, 2, 3, 0.5)}
    begin, end = (event for event in events if event["ph"] in "be")
    assert (begin["ph"], begin["ts"], begin["name"], begin["args"]["expert"]) == ("b", 2, "wait for rank 0", 5)
    assert (end["ph"], end["ts"], end["id"], end["cat"]) == ("e", 3, begin["id"], begin["cat"])
    Trace([[], []]).save(tmp_path / "nothing.json")
    assert len(json.loads((tmp_path / "nothing.json").read_text())["traceEvents"]) == 2


def test_a_trace_is_a_gantt_chart(world, step, tmp_path):
    ep = sy.ExpertParallel(world, **SHAPE)
    ep.enable_trace()
    step.run(ep)
    ep.synchronize()
    trace = ep.take_trace()
    assert len(trace.ranks) == 4 and all(trace.ranks)
    phases = {event.phase for events in trace.ranks for event in events}
    assert phases & {"dispatch_async", "dispatch_wait"} and phases & {"combine_async", "combine_wait"}
    assert all(event.begin_ns <= event.end_ns for events in trace.ranks for event in events)
    trace.gantt().save(tmp_path / "trace.svg")
    ElementTree.parse(tmp_path / "trace.svg")
    assert "dispatch" in trace._repr_svg_()
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event["ph"] in "Xb" for event in events) == sum(map(len, trace.ranks))
    assert all(event["dur"] >= 0 and event["ts"] >= 0 for event in events if event["ph"] == "X")
    assert not any(ep.take_trace().ranks)

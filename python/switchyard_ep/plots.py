"""Plots as SVG: a heat map of a routing, the load of each rank, a Gantt chart of a trace. Notebooks show them as they are
(_repr_svg_); save() writes a file. Nothing but this module is needed."""

from __future__ import annotations

from html import escape
from typing import Any, Iterable, List, Optional, Sequence, TYPE_CHECKING

if TYPE_CHECKING:
    from .trace import Trace

_INK, _GRID, _BAR, _OVER, _WAIT = "#222222", "#dddddd", "#3b6fb6", "#c8553d", "#9a9a9a"
_PHASES = {
    "dispatch_async": "#3b6fb6",
    "dispatch_wait": "#7fb0e6",
    "combine_async": "#d08a2c",
    "combine_wait": "#eec27a",
    "all_reduce": "#5c9e6e",
}


class Svg:
    """A drawing. str() is its text."""

    def __init__(self, width: float, height: float, title: str):
        self._title = title
        self.width, self.height = width, height
        self._parts: List[str] = []

    def rect(self, x: float, y: float, width: float, height: float, fill: str, tooltip: str = "") -> None:
        inner = f"<title>{escape(tooltip)}</title>" if tooltip else ""
        self._parts.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0):.2f}" height="{max(height, 0):.2f}" '
            f'fill="{fill}">{inner}</rect>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, stroke: str = _GRID) -> None:
        self._parts.append(f'<line x1="{x1:.2f}" y1="{y1:.2f}" x2="{x2:.2f}" y2="{y2:.2f}" stroke="{stroke}"/>')

    def text(self, x: float, y: float, words: str, anchor: str = "start", size: int = 11) -> None:
        self._parts.append(
            f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" font-size="{size}" fill="{_INK}">{escape(words)}</text>'
        )

    def __str__(self) -> str:
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:.0f}" height="{self.height:.0f}" '
            f'viewBox="0 0 {self.width:.0f} {self.height:.0f}" font-family="sans-serif" role="img">'
            f"<title>{escape(self._title)}</title>"
            f'<rect width="100%" height="100%" fill="#ffffff"/>{"".join(self._parts)}</svg>'
        )

    def _repr_svg_(self) -> str:
        return str(self)

    def __repr__(self) -> str:
        return f"<Svg '{self._title}'>"

    def save(self, path: str) -> None:
        """Writes the drawing to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(str(self))


def _rows_of(array: Any) -> List[List[int]]:
    """The rows of a two-dimensional array of anything's: NumPy, PyTorch, lists."""
    values = array.tolist() if hasattr(array, "tolist") else array
    return [[int(value) for value in row] for row in values]


def count_rows(topk_ids: Sequence[object], n_experts: int) -> List[List[int]]:
    """Counts, for each source rank, the rows that go to each expert. topk_ids has an array (num_tokens, top_k) for each
    rank; -1 is padding."""
    if n_experts < 1:
        raise ValueError(f"n_experts is {n_experts}; it must be at least 1")
    table = []
    for rank, array in enumerate(topk_ids):
        counts = [0] * n_experts
        for row in _rows_of(array):
            for expert in row:
                if not -1 <= expert < n_experts:
                    raise ValueError(f"topk_ids[{rank}] holds {expert}; it must be -1..{n_experts - 1}")
                if expert >= 0:
                    counts[expert] += 1
        table.append(counts)
    return table


def _shade(part: float) -> str:
    """White for 0, blue for 1."""
    ends = ((255, 255, 255), (28, 78, 150))
    return "#" + "".join(f"{round(low + (high - low) * part):02x}" for low, high in zip(*ends))


def routing_heat_map(topk_ids: Sequence[object], n_experts: int) -> Svg:
    """Draws how many rows go from each source rank to each expert."""
    table = count_rows(topk_ids, n_experts)
    left, top, height = 60.0, 34.0, 18.0
    width = max(4.0, min(26.0, 760.0 / n_experts))
    most = max((count for row in table for count in row), default=0)
    svg = Svg(left + width * n_experts + 20, top + height * len(table) + 34, "Rows from each rank to each expert")
    svg.text(left, 18, f"Rows from each rank to each expert (at most {most})", size=13)
    for rank, row in enumerate(table):
        svg.text(left - 6, top + height * rank + 13, f"rank {rank}", "end")
        for expert, count in enumerate(row):
            tooltip = f"rank {rank} to expert {expert}: {count} rows"
            svg.rect(
                left + width * expert,
                top + height * rank,
                width - 0.5,
                height - 0.5,
                _shade(count / most if most else 0),
                tooltip,
            )
    step = max(1, round(n_experts / max(1, (width * n_experts) // 40)))
    for expert in range(0, n_experts, step):
        svg.text(left + width * (expert + 0.5), top + height * len(table) + 14, str(expert), "middle")
    svg.text(left, top + height * len(table) + 28, "expert")
    return svg


def load_per_rank(
    topk_ids: Sequence[object], n_experts: int, placement: Optional[Sequence[Iterable[int]]] = None
) -> Svg:
    """Draws how many rows each rank receives, and their mean. placement has the experts of each rank; None: as many on
    each, in ascending order. Of an expert with replicas each takes an even share."""
    table = count_rows(topk_ids, n_experts)
    n_ranks = len(table)
    if placement is None:
        base, more = divmod(n_experts, max(n_ranks, 1))
        bounds = [rank * base + min(rank, more) for rank in range(n_ranks + 1)]
        placement = [range(bounds[rank], bounds[rank + 1]) for rank in range(n_ranks)]
    experts_of_rank = [list(experts) for experts in placement]
    load = [sum(row[expert] for row in table) for expert in range(n_experts)]
    replicas = [sum(experts.count(expert) for experts in experts_of_rank) for expert in range(n_experts)]
    rows = [sum(load[expert] / replicas[expert] for expert in experts) for experts in experts_of_rank]
    mean, most = sum(rows) / max(len(rows), 1), max(rows, default=0)
    left, top, length, height = 60.0, 34.0, 560.0, 18.0
    svg = Svg(left + length + 90, top + height * len(rows) + 16, "Rows that each rank receives")
    excess = f", the most {most / mean:.2f} times the mean" if mean else ""
    svg.text(left, 18, f"Rows that each rank receives{excess}", size=13)
    for rank, count in enumerate(rows):
        y = top + height * rank
        svg.text(left - 6, y + 13, f"rank {rank}", "end")
        svg.rect(
            left,
            y + 2,
            length * count / most if most else 0,
            height - 4,
            _OVER if count > 1.25 * mean else _BAR,
            f"rank {rank}: {count:g} rows",
        )
        svg.text(left + (length * count / most if most else 0) + 4, y + 13, f"{count:g}")
    if most:
        svg.line(left + length * mean / most, top - 4, left + length * mean / most, top + height * len(rows), _INK)
    return svg


def gantt(trace: "Trace", max_blocks_per_rank: int = 8) -> Svg:
    """Draws when each role of each block ran, by phase, and its waits in grey. Of a rank with more blocks than
    max_blocks_per_rank only the first are drawn."""
    lanes = []
    for rank, events in enumerate(trace.ranks):
        blocks = sorted({event.block for event in events})[:max_blocks_per_rank]
        lanes += [(rank, block, [event for event in events if event.block == block]) for block in blocks]
    begin = min((event.begin_ns for lane in lanes for event in lane[2]), default=0)
    end = max((event.end_ns for lane in lanes for event in lane[2]), default=begin + 1)
    left, top, length, height = 100.0, 50.0, 760.0, 14.0
    scale = length / max(end - begin, 1)
    svg = Svg(left + length + 30, top + height * len(lanes) + 30, "Roles and waits of each block")
    svg.text(left, 18, f"Roles and waits of each block, {(end - begin) / 1e3:.1f} us", size=13)
    x = left
    for name, colour in [*_PHASES.items(), ("wait", _WAIT)]:
        svg.rect(x, 26, 10, 10, colour)
        svg.text(x + 14, 35, name)
        x += 22 + 6.5 * len(name)
    for tick in range(6):
        at = left + length * tick / 5
        svg.line(at, top - 4, at, top + height * len(lanes))
        svg.text(at, top + height * len(lanes) + 14, f"{(end - begin) * tick / 5e3:.1f} us", "middle")
    for index, (rank, block, events) in enumerate(lanes):
        y = top + height * index
        svg.text(left - 6, y + 10, f"rank {rank} block {block}", "end", 9)
        # Waits lie in front of the roles that they are part of, and inner roles in front of outer ones.
        for event in sorted(events, key=lambda event: (event.is_wait, event.begin_ns - event.end_ns)):
            what = f"{event.phase}: {event.name}, {(event.end_ns - event.begin_ns) / 1e3:.1f} us"
            if event.is_wait and event.late_rank >= 0:
                what += f", for rank {event.late_rank}"
            svg.rect(
                left + (event.begin_ns - begin) * scale,
                y + (4 if event.is_wait else 1),
                max((event.end_ns - event.begin_ns) * scale, 0.5),
                height - (8 if event.is_wait else 2),
                _WAIT if event.is_wait else _PHASES.get(event.phase, _BAR),
                what,
            )
    return svg

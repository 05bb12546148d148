"""The chart of the front page: seglog compared with Kafka, from the figures of `docs/benchmarks.md`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

_NUMBER: Final = r"([0-9][0-9,]*(?:\.[0-9]+)?)"
_WIDTH, _LEFT, _RIGHT, _ROW = 860, 300, 210, 34


class Figure(NamedTuple):
    """A row of the chart. ``pattern`` finds it in the page: group 1 is seglog's number, group 2 Kafka's."""

    label: str
    unit: str
    pattern: str
    is_less_better: bool = False


class Bar(NamedTuple):
    """What a row shows: ``ratio`` is how many times better seglog's number is."""

    label: str
    ratio: float
    text: str


_FIGURES: Final = (
    Figure(
        "produce, 16 KB batches of 1 KB records",
        "MB/s",
        rf"^\| produce, 16 KB batches.*?\| {_NUMBER}, {_NUMBER} MB/s \| 1\.",
    ),
    Figure(
        "consume, 16 KB batches of 1 KB records",
        "MB/s",
        rf"^\| consume, 16 KB batches.*?\| {_NUMBER}, {_NUMBER} MB/s \| \*\*1\.3.\*\*",
    ),
    Figure(
        "produce latency at 1,000 records/s, p99",
        "ms",
        rf"^\| acknowledged at.*?/ {_NUMBER} ms.*?/ {_NUMBER} ms",
        is_less_better=True,
    ),
    Figure(
        "recovery after a crash",
        "GB/s",
        rf"^\| recovery after a crash.*?{_NUMBER} GB/s\*\* \(Kafka {_NUMBER} GB/s",
    ),
    Figure(
        "port answers after a start",
        "s",
        rf"^\| port answers, empty.*?\*\*{_NUMBER} s\*\* \| {_NUMBER} s",
        is_less_better=True,
    ),
    Figure(
        "memory after 5 GB in and out",
        "MB",
        rf"^\| resident memory after.*?\*\*{_NUMBER} MB\*\*.*?\| {_NUMBER} MB",
        is_less_better=True,
    ),
)


def bars(page: str) -> list[Bar]:
    """The rows of the chart, out of the text of `docs/benchmarks.md`; ValueError if a figure is not in it."""
    found = []
    for figure in _FIGURES:
        row = re.search(figure.pattern, page, re.MULTILINE)
        if row is None:
            raise ValueError(f"docs/benchmarks.md has no row for {figure.label!r}: {figure.pattern}")
        ours, theirs = (float(number.replace(",", "")) for number in row.groups())
        ratio = theirs / ours if figure.is_less_better else ours / theirs
        found.append(Bar(figure.label, ratio, f"{ours:g}, Kafka {theirs:g} {figure.unit}"))
    return found


def svg(rows: Sequence[Bar]) -> str:
    """The chart: a bar of seglog's advantage for each row, and a line where Kafka is."""
    scale = (_WIDTH - _LEFT - _RIGHT) / max(row.ratio for row in rows)
    height = len(rows) * _ROW + 34
    kafka = _LEFT + scale
    parts = [f'<line x1="{kafka:.0f}" x2="{kafka:.0f}" y1="22" y2="{height - 8}" stroke="#d1495b" stroke-width="1.5"/>']
    parts.append(f'<text x="{kafka:.0f}" y="15" text-anchor="middle" fill="#d1495b">Kafka = 1</text>')
    for number, row in enumerate(rows):
        y = 26 + number * _ROW
        length = row.ratio * scale
        parts += [
            f'<text x="{_LEFT - 10}" y="{y + 18}" text-anchor="end">{escape(row.label)}</text>',
            f'<rect x="{_LEFT}" y="{y + 3}" width="{length:.0f}" height="{_ROW - 12}" rx="3" fill="#2f6fb2"/>',
            f'<text x="{_LEFT + max(length, scale) + 8:.0f}" y="{y + 18}" font-weight="600">{row.ratio:.1f}x</text>',
            f'<text x="{_LEFT + max(length, scale) + 52:.0f}" y="{y + 18}">{escape(row.text)}</text>',
        ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#5a6472">'
        f"<title>seglog compared with Apache Kafka 4.3.0</title>{''.join(parts)}</svg>\n"
    )

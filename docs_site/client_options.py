"""The tables of properties in `docs/clients.md`, from the tables that parse them.

A table stands in the page below a line ``<!-- properties: read -->``; ``python -m docs_site --write`` fills it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from seglog.client.client_config import CLIENT_SETTINGS, READ, REFUSED, WITHOUT_EFFECT, WRITE
from seglog.client.security.security_config import SECURITY_SETTINGS
from seglog.core.settings import Setting

_PLACE: Final = re.compile(r"(<!-- properties: (\S+) -->\n\n)(?:\|.*\n)*")
_TLS: Final = ("ssl.", "security.")


def _tables() -> Mapping[str, Iterable[str]]:
    security = SECURITY_SETTINGS.values()
    return {
        "all": _rows(row for row in CLIENT_SETTINGS.values() if not row.use),
        "read": _rows(row for row in CLIENT_SETTINGS.values() if row.use == READ),
        "write": _rows(row for row in CLIENT_SETTINGS.values() if row.use == WRITE),
        "tls": _rows(row for row in security if row.name.startswith(_TLS)),
        "sasl": _rows(row for row in security if not row.name.startswith(_TLS)),
        "ignored": _names(),
        "refused": _refused(),
    }


def write_tables(page: str) -> str:
    """The page with all its tables as the code has them."""
    tables = _tables()
    return _PLACE.sub(lambda found: found[1] + "".join(tables[found[2]]), page)


def _rows(rows: Iterable[Setting]) -> Iterator[str]:
    yield "| property | type | default | allowed | meaning |\n|---|---|---|---|---|\n"
    for row in rows:
        default = "" if row.default is None else row.rule.format(row.default)
        allowed = row.rule.allowed.partition("; references")[0]
        if allowed != row.rule.allowed:
            allowed += ", with [references](#secrets)"
        cells = (f"`{row.name}`", row.rule.type, f"`{default}`" if default else "", allowed, row.doc)
        yield f"| {' | '.join(cells)} |\n"


def _names() -> Iterator[str]:
    yield "| without effect |\n|---|\n"
    yield f"| {', '.join(f'`{name}`' for name in sorted(WITHOUT_EFFECT))} |\n"


def _refused() -> Iterator[str]:
    yield "| refused | instead |\n|---|---|\n"
    for name, reason in REFUSED.items():
        yield f"| `{name}` | {reason} |\n"

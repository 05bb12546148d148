"""A table: Parquet files of a topic's records, and an Iceberg table over them, wherever the records come from.

>>> from seglog.table import update_table
>>> done = update_table("data", "warehouse/flights", topic="flights")  # doctest: +SKIP

A run of `building` adds a log's new records; one of `keyed` keeps the newest value of each key. `log_survey` says what
the log has, and `continuation` where a run starts and how ranges share files. `files` is the way from records to
Parquet, `columns` has the types of keys and values, and `iceberg` the table that lists the files. Afterwards
`retention` says which files are past their time, `small_files` which to rewrite; `maintenance` does that, and deletes
what no snapshot names. `delta_log` follows for readers of Delta.
docs/decisions/0026-a-table-is-one-set-of-parquet-files.md and 0028-a-keyed-table-rewrites-buckets.md say why.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from seglog.table.building import Retention as Retention
    from seglog.table.building import TableUpdate as TableUpdate
    from seglog.table.building import update_table as update_table
    from seglog.table.iceberg.catalogs import CatalogOptions as CatalogOptions
    from seglog.table.keyed.building import KeyedTableUpdate as KeyedTableUpdate
    from seglog.table.keyed.building import update_keyed_table as update_keyed_table

__all__ = ["CatalogOptions", "KeyedTableUpdate", "Retention", "TableUpdate", "update_keyed_table", "update_table"]

_HOMES: Final = {
    "CatalogOptions": "iceberg.catalogs",
    "KeyedTableUpdate": "keyed.building",
    "Retention": "building",
    "TableUpdate": "building",
    "update_keyed_table": "keyed.building",
    "update_table": "building",
}
"""The module of each name, which is imported when it is first used."""


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "CatalogOptions":
        from seglog.core.extras import require

        require("pyiceberg.catalog.sql", "table", purpose="a table")
    return getattr(import_module(f"{__name__}.{home}"), name)

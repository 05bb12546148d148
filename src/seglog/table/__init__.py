"""A table: Parquet files of a topic's records, and an Iceberg table over them, wherever the records come from.

>>> from seglog.table import update_table
>>> done = update_table("data", "warehouse/flights", topic="flights")  # doctest: +SKIP

`building` adds a log's new records, `keyed` keeps the newest value of each key. Both go from `positions`, up to which
offset the table is, by `continuation` to the end that `log_survey` finds. `file_task` writes Parquet by `record_files`,
or `day_files` for each day; `record_decoding` makes typed columns, `column_types` has their types, `evolution` their
changes, `pinned_formats` how they were decoded. `log_table` commits to one of `catalogs`; `layout` names the files,
which are in a directory or in an `object_store`. `time_range` says which files have records of a time, `retention`
which are past theirs, `small_files` which to rewrite; `maintenance` rewrites them and deletes what no snapshot names.
`delta_log` follows for readers of Delta. `key_buckets` tells which file has which keys in a keyed table.
docs/decisions/0026-a-table-is-one-set-of-parquet-files.md and 0028-a-keyed-table-rewrites-buckets.md say why.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from seglog.table.building import Retention as Retention
    from seglog.table.building import TableUpdate as TableUpdate
    from seglog.table.building import update_table as update_table
    from seglog.table.catalogs import CatalogOptions as CatalogOptions
    from seglog.table.keyed.building import KeyedTableUpdate as KeyedTableUpdate
    from seglog.table.keyed.building import update_keyed_table as update_keyed_table

__all__ = ["CatalogOptions", "KeyedTableUpdate", "Retention", "TableUpdate", "update_keyed_table", "update_table"]

_HOMES: Final = {
    "CatalogOptions": "catalogs",
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

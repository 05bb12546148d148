"""Where the files of a warehouse are.

::

    warehouse/catalog.db                     SQLite: which metadata file of each table is the current one
    warehouse/flights/data/*.parquet         records
    warehouse/flights/data/_delta_log/…      a Delta log, if there is one
    warehouse/flights/metadata/…             Iceberg's files, and positions-*.json
    warehouse/flights/.seglog/lock           held by a job while it changes the table
    warehouse/flights/.seglog/unnamed.json   files that no snapshot names, and since when
"""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from seglog.core.errors import InvalidConfigError

CATALOG: Final = "catalog.db"
DATA: Final = "data"
METADATA: Final = "metadata"
OWN: Final = ".seglog"
DELTA_LOG: Final = "_delta_log"
"""In the directory of the data, which is the root of the Delta table."""
LOCK: Final = "lock"
UNNAMED: Final = "unnamed.json"
NAMESPACE: Final = "logs"
"""Iceberg's namespace of all tables in a warehouse."""
_SCHEME: Final = "file://"


class TablePath(NamedTuple):
    """The absolute path of a warehouse, and the name of a table in it, which is the topic's."""

    warehouse: str
    name: str

    @property
    def root(self) -> str:
        return os.path.join(self.warehouse, self.name)

    @property
    def data(self) -> str:
        return os.path.join(self.root, DATA)

    @property
    def metadata(self) -> str:
        return os.path.join(self.root, METADATA)

    @property
    def own(self) -> str:
        return os.path.join(self.root, OWN)

    @property
    def catalog(self) -> str:
        return os.path.join(self.warehouse, CATALOG)

    @property
    def location(self) -> str:
        """The table's directory as Iceberg names it."""
        return _SCHEME + self.root

    @property
    def identifier(self) -> tuple[str, str]:
        return NAMESPACE, self.name


def table_path(path: str | os.PathLike[str]) -> TablePath:
    """``warehouse/flights`` as table ``flights``. Raises `InvalidConfigError` unless that is a directory."""
    text = os.fspath(path).removeprefix(_SCHEME)
    if "://" in text:
        raise InvalidConfigError(f"{text}: a warehouse is a directory; object stores are not supported yet")
    warehouse, name = os.path.split(os.path.abspath(os.path.expanduser(text)))
    for character in "#?%*[]{}\\":
        if character in warehouse:
            raise InvalidConfigError(f"{warehouse}: a warehouse cannot have {character!r} in its path")
    return TablePath(warehouse, name)


def local_path(location: str) -> str:
    """The path of a file that Iceberg names by a URI."""
    return location.removeprefix(_SCHEME)


def location_of(path: str) -> str:
    """The URI by which Iceberg names a file."""
    return _SCHEME + path

"""Where the files of a warehouse are.

A warehouse in an object store has the same names, but its catalog is elsewhere, and no lock.

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
OBJECT_STORES: Final = ("s3", "gs", "abfs", "abfss")
_SCHEME: Final = "file://"


class TablePath(NamedTuple):
    """A warehouse, as an absolute path or as the URI of a prefix in an object store, and the name of a table in it,
    which is the topic's."""

    warehouse: str
    name: str

    @property
    def is_local(self) -> bool:
        """Whether the warehouse is a directory of this machine."""
        return "://" not in self.warehouse

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
        """The file of the catalog, of a warehouse that has its own."""
        return os.path.join(self.warehouse, CATALOG)

    @property
    def location(self) -> str:
        """The table's directory as Iceberg names it."""
        return location_of(self.root)

    @property
    def identifier(self) -> tuple[str, str]:
        return NAMESPACE, self.name

    def relative(self, path: str) -> str:
        """The path within the table's directory of a file in it; of another file, its path."""
        return path.removeprefix(self.root + "/")


def table_path(path: str | os.PathLike[str]) -> TablePath:
    """``warehouse/flights``, or ``s3://bucket/warehouse/flights``, as table ``flights``. Raises `InvalidConfigError`
    if that can be neither."""
    text = os.fspath(path).removeprefix(_SCHEME)
    scheme, separator, rest = text.partition("://")
    if separator:
        if scheme not in OBJECT_STORES:
            raise InvalidConfigError(f"{scheme}://…: a warehouse is a directory, or in {', '.join(OBJECT_STORES)}")
        if "@" in rest and not scheme.startswith("abfs"):
            raise InvalidConfigError(f"{scheme}://…: credentials do not belong in the URI of a warehouse")
        prefix, _, name = rest.strip("/").rpartition("/")
        if not prefix:
            raise InvalidConfigError(f"{text}: not the URI of a table, as in {scheme}://bucket/warehouse/flights")
        warehouse = f"{scheme}://{prefix}"
    else:
        warehouse, name = os.path.split(os.path.abspath(os.path.expanduser(text)))
    for character in "#?%*[]{}\\":
        if character in warehouse:
            raise InvalidConfigError(f"{warehouse}: a warehouse cannot have {character!r} in its path")
    return TablePath(warehouse, name)


def local_path(location: str) -> str:
    """The path of a file that Iceberg names by a URI; in an object store, that URI."""
    return location.removeprefix(_SCHEME)


def location_of(path: str) -> str:
    """The URI by which Iceberg names a file."""
    return path if "://" in path else _SCHEME + path

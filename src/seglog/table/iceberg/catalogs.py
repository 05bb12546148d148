"""The catalog of a warehouse: a SQLite file in its directory, or any SQL or REST catalog that pyiceberg knows.

The catalog decides which commit is the next one. A table's files can be in an object store, which decides nothing.
Properties have pyiceberg's names: of the catalog (``token``, ``credential`` …), and of the store (``s3.endpoint``,
``s3.access-key-id`` …). pyiceberg adds those of its own configuration: ``PYICEBERG_CATALOG__SEGLOG__S3__ENDPOINT`` in
the environment, or catalog ``seglog`` in ``~/.pyiceberg.yaml``. Without credentials there, the stores' own places count
(``AWS_…``, ``~/.aws/credentials``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException, RESTError
from requests import RequestException
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from seglog.core.errors import CatalogError, InvalidConfigError
from seglog.core.suggestions import did_you_mean
from seglog.table.iceberg.layout import TablePath
from seglog.table.iceberg.synced_file_io import SyncedFileIO

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from sqlalchemy.engine.interfaces import DBAPIConnection

CATALOG_NAME: Final = "seglog"
"""The name under which the catalog has its tables: ``SqlCatalog("seglog", uri="sqlite:///warehouse/catalog.db")``."""
_SECRET: Final = re.compile(r"secret|token|password|credential|key|connection-string", re.IGNORECASE)
_PASSWORD: Final = re.compile(r"(?<=://)[^/@]*@")
_SCHEMES: Final = ("sqlite", "postgresql", "http", "https", "thrift")
_EXPLICIT: Final = frozenset({"type", "py-catalog-impl"})
"""Properties that say which kind of catalog a URI is of."""
_STORES: Final = ("s3.", "gcs.", "adls.", "client.")


@dataclass(frozen=True, slots=True)
class CatalogOptions:
    """The URI of a catalog, by default that of the warehouse, and properties, of which some are secret."""

    uri: str | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def hidden(self, text: str) -> str:
        """``text`` without passwords, keys and tokens."""
        for name, value in self.properties.items():
            if _SECRET.search(name) and value:
                text = text.replace(value, "***")
        return _PASSWORD.sub("***@", text)


OWN_CATALOG: Final = CatalogOptions()


def open_catalog(where: TablePath, options: CatalogOptions) -> Catalog:
    """Raises `InvalidConfigError` if none is named, or it cannot be, and `CatalogError`."""
    properties = {**options.properties, "py-io-impl": f"{SyncedFileIO.__module__}.{SyncedFileIO.__name__}"}
    if options.uri is not None:
        if not properties.keys() & _EXPLICIT:
            _check_scheme(options.uri)
        properties["uri"] = options.uri
    elif where.is_local:
        properties["uri"] = f"sqlite:///{where.catalog}"
    try:
        with catalog_errors(options):
            catalog = load_catalog(CATALOG_NAME, **properties)
    except (ValueError, ImportError) as error:  # also SQLAlchemy's, of a dialect whose package is missing
        if "URI missing" in str(error):
            raise InvalidConfigError(
                f"{where.warehouse} is in an object store: name its catalog, such as sqlite:///…, postgresql://… or "
                "https://… (REST)"
            ) from None
        raise InvalidConfigError(options.hidden(f"not a catalog: {error}")) from None
    if isinstance(catalog, SqlCatalog) and catalog.engine.dialect.name == "sqlite":
        event.listen(catalog.engine, "connect", _durable)
        catalog.engine.dispose()  # the connection that made the tables
    return catalog


def _check_scheme(uri: str) -> None:
    """pyiceberg compares beginnings: it takes ``httpx://…`` for a REST catalog, and ``sqlite3://…`` for a database."""
    scheme = uri.partition("://")[0] if "://" in uri else ""
    if scheme.partition("+")[0] not in _SCHEMES:
        known = ", ".join(f"{one}://" for one in _SCHEMES)
        begins = f"begins with {scheme}://" if scheme else "has no scheme"
        raise InvalidConfigError(
            f"the URI of the catalog {begins}: it must begin with one of {known}{did_you_mean(scheme, _SCHEMES)}"
        )


def store_properties(properties: Mapping[str, object]) -> dict[str, str]:
    """Those by which the files of a table are read, without those of its catalog."""
    return {name: str(value) for name, value in properties.items() if name.startswith(_STORES)}


@contextmanager
def catalog_errors(options: CatalogOptions) -> Iterator[None]:
    """Raise errors of a catalog and of its connection as `CatalogError`, without secrets."""
    try:
        yield
    except CommitStateUnknownException as error:
        raise CatalogError(
            options.hidden(f"the catalog did not say whether it has committed; the next run asks it: {error}")
        ) from None
    except (RESTError, RequestException, SQLAlchemyError) as error:
        raise CatalogError(options.hidden(f"the catalog: {error}")) from None


def _durable(connection: DBAPIConnection, _record: object) -> None:
    """Sync the directory when the journal is deleted, too: a journal that a power cut brings back undoes the commit."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=EXTRA")
    cursor.close()

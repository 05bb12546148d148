from __future__ import annotations

from pathlib import Path

import pytest

from seglog.core.errors import InvalidConfigError
from seglog.table.iceberg.catalogs import CatalogOptions, open_catalog
from seglog.table.iceberg.layout import TablePath


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("httpx://host/", "httpx://: .* did you mean http"),
        ("sqlite3:////tmp/c.db", "sqlite3://: .* did you mean sqlite"),
        ("postgres://host/db", "postgres://: .* did you mean postgresql"),
        ("thrifty://host", "thrifty://: .* did you mean thrift"),
        (
            "s3://bucket/warehouse",
            "s3://: it must begin with one of sqlite://, postgresql://, http://, https://, thrift://$",
        ),
        ("/tmp/catalog.db", "has no scheme: it must begin with one of sqlite://"),
        ("user:hunter2@host/db", "has no scheme"),
    ],
)
def test_a_scheme_that_no_catalog_has_is_refused(tmp_path: Path, uri: str, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message) as refused:
        open_catalog(TablePath(str(tmp_path / "warehouse"), "t"), CatalogOptions(uri))
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
def test_a_database_may_name_its_driver(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "warehouse").mkdir()
    options = CatalogOptions(f"{scheme}:///{tmp_path}/catalog.db", {"warehouse": str(tmp_path / "warehouse")})
    catalog = open_catalog(TablePath(str(tmp_path / "warehouse"), "t"), options)
    assert catalog.list_namespaces() == []

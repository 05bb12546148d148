"""`seglog sql`: a query of DuckDB's over topics and tables as views."""

from __future__ import annotations

import csv
import io
import json
import os.path
from collections.abc import Iterator, Sequence
from datetime import date, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import OptionError, check_choice, key_values, with_options
from seglog.cli.output import FINE, Out, fail, json_bytes, show_table
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.extras import require
from seglog.core.fs import OsFs
from seglog.core.utf8 import decode_utf8

if TYPE_CHECKING:
    import pyarrow as pa

    from seglog.sources.arrow_scan import Scan

_FORMATS: Final = ("table", "json", "csv", "parquet")
_CATALOG: Final = "catalog.db"
"""The file by which a warehouse is known."""
_MOST_ROWS: Final = 10_000
"""Rows of a table, whose columns are as wide as the widest cell: all of them are held in memory."""


class Records(NamedTuple):
    """Where the records are, and what their keys and values are."""

    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="Brokers of any Kafka.", show_default=False),
    ] = None
    value_format: Annotated[
        str | None,
        typer.Option(metavar="json|avro|protobuf", help="Fields of values become columns.", show_default=False),
    ] = None
    key_format: Annotated[
        str | None, typer.Option(metavar="json|avro|protobuf", help="The same for keys.", show_default=False)
    ] = None
    registry: Annotated[
        str | None, typer.Option(metavar="URL", help="The schema registry of such values.", show_default=False)
    ] = None
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="NAME=VALUE",
            help="Any option of seglog.scan, such as valueSchema, schema.registry.url, isolationLevel or "
            "security.protocol.",
            show_default=False,
        ),
    ] = None


class Result(NamedTuple):
    """The form of the result."""

    format: Annotated[str, typer.Option("--format", "-f", metavar="|".join(_FORMATS), help="The form.")] = "table"
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON, as --format json does.")] = False
    out: Annotated[
        str | None, typer.Option("--out", metavar="FILE", help="Write the result to FILE.", show_default=False)
    ] = None


_RECORDS: Final = Records()
_RESULT: Final = Result()


@with_options
def sql(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="One statement of DuckDB's SQL.")],
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Log directories, or a warehouse of tables. With brokers: directories that are mounted here.",
            show_default=False,
        ),
    ] = None,
    records: Records = _RECORDS,
    result: Result = _RESULT,
) -> int:
    """Query topics as SQL views, through brokers or in directories, or the tables of a warehouse.

    A topic is a view of its name: key, value, topic, partition, offset, timestamp, timestampType, headers, and the
    fields of typed values. Only partitions, offsets and columns that the query needs are read.
    """
    if result.as_json:
        result = result._replace(format="json")
    check_choice("--format", result.format, _FORMATS)
    if records.bootstrap is None and not paths:
        raise OptionError("sql needs brokers (-b HOST:PORT), a log directory or a warehouse")
    if result.format == "parquet" and result.out is None:
        raise OptionError("--format parquet needs --out FILE")
    duckdb = require("duckdb", "sql", purpose="seglog sql")
    require("pyarrow.dataset", "fast", purpose="seglog sql")
    import pyarrow as pa

    views = _Views(records, paths or [])
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute("SET enable_progress_bar = false")  # DuckDB draws it on stdout; a scan draws its own
        try:
            for name in sorted(database.get_table_names(query)):
                if not os.path.isfile(name):  # DuckDB reads files by their names
                    views.create(database, name)
            _write(database, query, result)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            if (reason := views.failure) is not None:
                raise reason from None
            return fail(_sentence(error))
    return FINE


def _sentence(error: Exception) -> str:
    """DuckDB's first line; the others draw an arrow below the query."""
    return str(error).split("\n", maxsplit=1)[0]


# Views


class _Views:
    """Makes a view for each topic or table that a query names."""

    def __init__(self, records: Records, paths: Sequence[str]) -> None:
        self._records = records
        self._paths = paths
        self._scans: list[Scan] = []
        self._is_warehouse = len(paths) == 1 and os.path.isfile(os.path.join(paths[0], _CATALOG))

    @property
    def failure(self) -> Exception | None:
        """The error of a scan, of which DuckDB keeps a text in its own words."""
        return next((one.failure for one in self._scans if isinstance(one.failure, SeglogError)), None)

    def create(self, database: Any, name: str) -> None:
        if self._is_warehouse and self._records.bootstrap is None:
            self._create_table(database, name)
        else:
            found = self._scan(name).with_value_fields()
            self._scans.append(found)
            database.register(name, found)

    def _scan(self, topic: str) -> Scan:
        from seglog.sources.scan import scan

        records = self._records
        where = records.bootstrap or self._paths
        mounted = self._paths if records.bootstrap is not None and self._paths else None
        options = key_values("--option", records.options)
        if records.registry is not None:
            options["schema.registry.url"] = records.registry
        return scan(
            where,
            topics=topic,
            directory=mounted,
            value_format=records.value_format,
            key_format=records.key_format,
            options=options,
            dataset=True,
        )

    def _create_table(self, database: Any, name: str) -> None:
        require("pyiceberg.catalog.sql", "table", purpose="a warehouse")
        from seglog.table.iceberg.log_table import LogTable

        with LogTable.open(os.path.join(self._paths[0], name)) as table:
            if not table.path.is_local:
                raise InvalidConfigError(f"{self._paths[0]}: the files of {name} are not on this machine")
            snapshot = table.snapshot()
            columns = table.form.schema.empty_table()
            files = [] if snapshot is None else [path.removeprefix("file://") for path in snapshot.files]
        if files:
            found = database.read_parquet(files, union_by_name=True)
            found.create_view(name)
        else:
            database.register(name, columns)


# Results


def _write(database: Any, query: str, result: Result) -> None:
    if result.out is not None and result.format in ("csv", "json", "parquet"):
        text = query.strip().rstrip(";")
        target = os.path.abspath(result.out).replace("'", "''")
        database.execute(f"COPY ({text}) TO '{target}' (FORMAT {result.format})")
        return
    import pyarrow as pa

    found = database.sql(query)
    if found is None:  # a statement without a result
        return
    reader = pa.RecordBatchReader.from_stream(found)
    if result.out is not None:
        buffer = io.BytesIO()
        with Out(buffer) as out:
            _write_table(out, reader)
        OsFs().write(result.out, buffer.getvalue())
        return
    with Out() as out:
        if result.format == "table":
            _write_table(out, reader)
        elif result.format == "json":
            for row in _rows(reader):
                out.json({name: _json(value) for name, value in zip(reader.schema.names, row, strict=True)})
        else:
            _write_csv(out, reader)


def _rows(reader: pa.RecordBatchReader) -> Iterator[tuple[object, ...]]:
    for batch in reader:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _write_table(out: Out, reader: pa.RecordBatchReader) -> None:
    import pyarrow as pa

    found = _rows(reader)
    rows = [[_text(value) for value in row] for row in islice(found, _MOST_ROWS)]
    kinds = {field.name: field.type for field in reader.schema}
    numbers = [name for name, kind in kinds.items() if pa.types.is_integer(kind) or pa.types.is_floating(kind)]
    show_table(out, reader.schema.names, rows, right=numbers)
    if next(found, None) is not None:
        out.line(f"only the first {_MOST_ROWS:,} rows are shown: add LIMIT, or take --format json or csv")


def _write_csv(out: Out, reader: pa.RecordBatchReader) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(reader.schema.names)
    for row in _rows(reader):
        writer.writerow(["" if value is None else _text(value) for value in row])
        out.write(text.getvalue())
        text.seek(0)
        text.truncate()
    out.write(text.getvalue())


def _text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return decode_utf8(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dict | list):
        return json.dumps(_json(value), ensure_ascii=False)
    return str(value)


def _json(value: object) -> object:
    if isinstance(value, bytes):
        return json_bytes(value)
    if isinstance(value, dict):
        return {str(name): _json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_json(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime | date):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)

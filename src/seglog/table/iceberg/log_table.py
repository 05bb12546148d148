"""A table of a topic's records: an Iceberg table that knows up to which offset it is.

The current snapshot is the truth. A commit writes the positions, manifests and metadata to the disk, then exchanges one
row of the catalog: from the metadata that this object has read to the new one. If another job was first, the commit
raises `TableInUseError`, and nothing was added.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from inspect import signature
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import pyarrow as pa
from pyarrow.parquet import ParquetWriter
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.partitioning import (
    PARTITION_FIELD_ID_START,
    UNPARTITIONED_PARTITION_SPEC,
    PartitionField,
    PartitionSpec,
)
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.update import RemoveSchemasUpdate
from pyiceberg.table.update.snapshot import ExpireSnapshots
from pyiceberg.transforms import DayTransform

from seglog.core.errors import (
    CorruptCheckpointError,
    InvalidConfigError,
    LogDirInUseError,
    TableInUseError,
    UnknownTableError,
)
from seglog.core.fs import FileStore, Fs, OsFs, make_directories
from seglog.core.lru import Lru
from seglog.records.columns import SCHEMA
from seglog.table.columns.column_types import arrow_schema, iceberg_schema, leaves
from seglog.table.columns.evolution import Addition, Widening, changes
from seglog.table.columns.pinned_formats import (
    FORMATS,
    PinnedFormats,
    check_same_formats,
    decode_formats,
    encode_formats,
)
from seglog.table.files.record_files import FileForm
from seglog.table.iceberg.catalogs import OWN_CATALOG, CatalogOptions, catalog_errors, open_catalog
from seglog.table.iceberg.key_buckets import KEY_BUCKETS, BucketFile, KeyedFacts, bucket_spec, described_file, facts_in
from seglog.table.iceberg.layout import (
    LOCK,
    METADATA,
    NAMESPACE,
    TablePath,
    local_path,
    location_of,
    table_path,
)
from seglog.table.iceberg.object_store import ObjectStore
from seglog.table.iceberg.positions import Positions, changes_as_text, decode_positions, encode_positions
from seglog.table.iceberg.time_range import ALL_TIME, TimeRange, files_within

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate

KEPT_SNAPSHOTS: Final = 100
KEPT_SCHEMAS: Final = 16
"""Schemas of kept snapshots. Each names all columns, and each load of the table reads them all: a table that evolves in
every run keeps fewer snapshots."""
_MOST_KNOWN_FILES: Final = 50_000
"""Data files whose descriptions stay in memory while a table is open: about 1 KB each."""
TOPIC: Final = "seglog.topic"
TOPIC_ID: Final = "seglog.topic-id"
POSITIONS: Final = "seglog.positions"
CHANGED: Final = "seglog.changed"
BLOOM: Final = "seglog.bloom"
"""A property of the table: columns that have Bloom filters in new files, separated by commas."""
WIDENED: Final = "seglog.widened"
"""A property of the table: the first field whose type was widened, and its type then. The schema before that goes with
its last snapshot; the files stay."""
_DAYS: Final = PartitionSpec(
    PartitionField(SCHEMA.get_field_index("timestamp") + 1, PARTITION_FIELD_ID_START, DayTransform(), "timestamp_day")
)
_PROPERTIES: Final = {
    "commit.retry.num-retries": "0",  # pyiceberg's retry would add the files of a job that lost a second time
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "32",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.metrics.column.headers.element.key": "counts",
    "write.metadata.metrics.column.headers.element.value": "counts",
}

_UNBOUNDED: Final = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC"))
"""Types of keys that can have years beyond 9999. pyiceberg makes datetimes of a file's bounds, which end there."""


class TableSnapshot(NamedTuple):
    """One version of a table: its files in the order of their paths, its number of records, its positions."""

    id: int
    timestamp_ms: int
    files: tuple[str, ...]
    records: int
    size: int
    positions: Positions


class LogTable:
    """A table that exists. Methods that change it are called by the holder of `locked`."""

    def __init__(
        self, fs: Fs, path: TablePath, catalog: Catalog, table: Table, options: CatalogOptions = OWN_CATALOG
    ) -> None:
        """Raises `InvalidConfigError` if the catalog has the name for a table elsewhere."""
        if table.location().rstrip("/") != path.location:
            catalog.close()
            raise InvalidConfigError(
                f"table {'.'.join(path.identifier)} of the catalog is {table.location()}, not {path.location}"
            )
        self._options = options
        self._catalog = catalog
        self._table = table
        self._manifests: Lru[Sequence[DataFile]] = Lru(lambda: _MOST_KNOWN_FILES)
        self.path = path
        self.files: FileStore = fs if path.is_local else ObjectStore(cast("PyArrowFileIO", table.io))

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, fs: Fs | None = None, catalog: CatalogOptions = OWN_CATALOG
    ) -> LogTable:
        """The table ``warehouse/flights``, or ``s3://bucket/warehouse/flights``. Raises `UnknownTableError`, and
        `CatalogError` if the catalog does not answer."""
        fs, where = fs or OsFs(), table_path(path)
        if where.is_local and catalog.uri is None and not fs.exists(where.catalog):
            raise UnknownTableError(f"there is no table {where.root}: {where.warehouse} is not a warehouse")
        opened = open_catalog(where, catalog)
        try:
            with catalog_errors(catalog):
                return cls(fs, where, opened, opened.load_table(where.identifier), catalog)
        except NoSuchTableError:
            opened.close()
            raise UnknownTableError(f"there is no table {where.name!r} in {where.warehouse}") from None

    @classmethod
    def open_or_create(
        cls,
        path: str | os.PathLike[str],
        *,
        columns: pa.Schema = SCHEMA,
        formats: PinnedFormats | None = None,
        by_day: bool = False,
        key_buckets: int | None = None,
        fs: Fs | None = None,
        catalog: CatalogOptions = OWN_CATALOG,
    ) -> LogTable:
        """The table at ``path``, which is created, with its warehouse, if it does not exist.

        ``columns`` and ``formats`` are those of a new table; with ``by_day`` its files have records of one day each,
        and with ``key_buckets`` it is a keyed table. A table that exists keeps its kind.
        Raises `InvalidConfigError` for a type that Iceberg lacks.
        """
        schema = iceberg_schema(columns)
        fs, where = fs or OsFs(), table_path(path)
        spec, properties = _DAYS if by_day else UNPARTITIONED_PARTITION_SPEC, dict(_PROPERTIES)
        if key_buckets is not None:
            spec, properties[KEY_BUCKETS] = bucket_spec(key_buckets), str(key_buckets)
        if formats is not None:
            properties[FORMATS] = encode_formats(formats)
        if columns.field("key").type in _UNBOUNDED:
            properties["write.metadata.metrics.column.key"] = "counts"
        if where.is_local:
            for directory in (where.data, where.metadata, where.own):
                make_directories(fs, directory)
        opened = open_catalog(where, catalog)
        with catalog_errors(catalog):
            with suppress(NamespaceAlreadyExistsError):
                opened.create_namespace(NAMESPACE)
            try:
                table = opened.load_table(where.identifier)
            except NoSuchTableError:
                try:
                    table = opened.create_table(
                        where.identifier,
                        schema,
                        location=where.location,
                        partition_spec=spec,
                        properties=properties,
                    )
                except TableAlreadyExistsError:  # another job was first
                    table = opened.load_table(where.identifier)
        if where.is_local:
            fs.fsync_dir(where.warehouse)
        return cls(fs, where, opened, table, catalog)

    def close(self) -> None:
        self._catalog.close()

    def __enter__(self) -> LogTable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    @property
    def iceberg(self) -> Table:
        """pyiceberg's object for the table as it was read last."""
        return self._table

    @property
    def form(self) -> FileForm:
        """The form of its files."""
        bloom = self._table.properties.get(BLOOM, "")
        is_by_day = any(isinstance(one.transform, DayTransform) for one in self._table.spec().fields)
        return FileForm(arrow_schema(self._table.schema()), tuple(bloom.split(",")) if bloom else (), is_by_day)

    @property
    def formats(self) -> PinnedFormats | None:
        """How keys and values are decoded; None if they are bytes."""
        text = self._table.properties.get(FORMATS)
        return None if text is None else decode_formats(text)

    @property
    def key_buckets(self) -> int | None:
        """The number of buckets of a keyed table; None of one that has all records."""
        count = self._table.properties.get(KEY_BUCKETS)
        return None if count is None else int(count)

    @property
    def widened(self) -> str | None:
        """The first field whose type was widened, with its new type. Files may have the narrower one."""
        return self._table.properties.get(WIDENED)

    def refresh(self) -> None:
        """Read the current metadata."""
        with catalog_errors(self._options):
            self._table.refresh()

    def snapshot(self, number: int | None = None, times: TimeRange = ALL_TIME) -> TableSnapshot | None:
        """The current snapshot as it was read last, or the one with that id; None before the first commit.

        ``times``: only with the files that can have records of these times.
        Raises `UnknownTableError` for a snapshot that is not kept.
        """
        current = self._table.current_snapshot() if number is None else self._table.snapshot_by_id(number)
        if current is None:
            if number is not None:
                raise UnknownTableError(f"the table {self.path.root} has no snapshot {number} now")
            return None
        files = files_within(list(self._live_files(current)), self.form.ids["timestamp"], times)
        return TableSnapshot(
            id=current.snapshot_id,
            timestamp_ms=current.timestamp_ms,
            files=tuple(sorted(local_path(one.file_path) for one in files)),
            records=sum(one.record_count for one in files),
            size=sum(one.file_size_in_bytes for one in files),
            positions=self._positions_at(current),
        )

    def positions(self) -> Positions | None:
        """Up to which offset the current snapshot is; None before the first commit."""
        current = self._table.current_snapshot()
        return None if current is None else self._positions_at(current)

    def keyed_facts(self, number: int | None = None) -> KeyedFacts | None:
        """Of the current snapshot of a keyed table, or the one with that id; None before the first commit."""
        current = self._table.current_snapshot() if number is None else self._table.snapshot_by_id(number)
        return None if current is None else facts_in(self._said_at(current))

    def _positions_at(self, snapshot: Snapshot) -> Positions:
        path = os.path.join(self.path.root, self._said_at(snapshot)[POSITIONS])
        return decode_positions(self.files.read(path), path)

    def _said_at(self, snapshot: Snapshot) -> Mapping[str, str]:
        """A snapshot of another program, such as a deletion of rows, has the positions of the one before it."""
        for one in ancestors_of(snapshot, self._table.metadata):
            if one.summary is not None and POSITIONS in one.summary.additional_properties:
                return one.summary.additional_properties
        raise CorruptCheckpointError(
            "no kept snapshot says up to which offset the table is: it was not made by seglog", file=self.path.root
        )

    def data_files(self, number: int | None = None) -> list[DataFile]:
        """The files of the current snapshot, or of the one with that id."""
        current = self._table.current_snapshot() if number is None else self._table.snapshot_by_id(number)
        return [] if current is None else list(self._live_files(current))

    def _live_files(self, snapshot: Snapshot) -> Iterator[DataFile]:
        for manifest in snapshot.manifests(self._table.io):
            yield from self._files_of(manifest)

    def _files_of(self, manifest: ManifestFile) -> Sequence[DataFile]:
        """A manifest never changes, and a run asks for each of them several times."""
        found = self._manifests.get(manifest.manifest_path)
        if found is None:
            entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            found = [entry.data_file for entry in entries]
            self._manifests.put(manifest.manifest_path, found, len(found))
        return found

    def read(self, file: DataFile) -> pa.NativeFile:
        """One of its files, opened."""
        return cast("pa.NativeFile", self._table.io.new_input(file.file_path).open())

    def named_files(self) -> set[str]:
        """The paths of all files that a kept snapshot or the metadata names."""
        metadata = self._table.metadata
        named = {self._table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
        manifests = set()
        for snapshot in metadata.snapshots:
            named.add(snapshot.manifest_list)
            positions = _property(snapshot, POSITIONS)
            if positions is not None:
                named.add(os.path.join(self.path.root, positions))
            manifests.update(snapshot.manifests(self._table.io))
        for manifest in manifests:
            named.add(manifest.manifest_path)
            named.update(one.file_path for one in self._files_of(manifest))
        return {local_path(name) for name in named}

    # Changing

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the table's lock, and read the current metadata. Raises `TableInUseError` if another job has it."""
        try:
            lock = self.files.lock(os.path.join(self.path.own, LOCK))
        except LogDirInUseError:
            raise TableInUseError(f"another job writes to the table {self.path.root}") from None
        try:
            self.refresh()
            yield
        finally:
            lock.release()

    def set_bloom(self, columns: Sequence[str]) -> None:
        """Let files that are written from now on have Bloom filters of these columns. Raises `InvalidConfigError`."""
        can_have = [path for field in self.form.schema for path in leaves(field.type, field.name)]
        for name in columns:
            if name not in can_have:
                raise InvalidConfigError(f"no Bloom filter of {name!r}: there are {', '.join(can_have)}")
        if columns and "bloom_filter_options" not in signature(ParquetWriter).parameters:
            raise InvalidConfigError(f"pyarrow {version('pyarrow')} writes no Bloom filters: install a later one")
        if tuple(columns) != self.form.bloom:
            with self._committing() as transaction:
                transaction.set_properties({BLOOM: ",".join(columns)})

    def evolve(self, columns: pa.Schema, formats: PinnedFormats | None) -> None:
        """Let files that are written from now on have ``columns``, whose keys and values are decoded by ``formats``.

        Raises `InvalidConfigError`, and changes nothing, if the table cannot have them beside those of its files.
        """
        check_same_formats(self.formats, formats)
        found = changes(self._table.schema(), columns)
        if not found and formats == self.formats:
            return
        with self._committing() as transaction:
            with transaction.update_schema() as update:
                for change in found:
                    if isinstance(change, Addition):
                        update.add_column(change.path, change.type)
                    else:
                        update.update_column(change.path, field_type=change.type)
            widened = [f"{'.'.join(one.path)} {one.type}" for one in found if isinstance(one, Widening)]
            if widened and self.widened is None:
                transaction.set_properties({WIDENED: widened[0]})
            if formats is not None:
                transaction.set_properties({FORMATS: encode_formats(formats)})
            elif self.formats is not None:
                transaction.remove_properties(FORMATS)

    @property
    def unused_schemas(self) -> list[int]:
        """The schemas that are neither the current one nor that of a kept snapshot: nothing reads by them."""
        metadata = self._table.metadata
        used = {metadata.current_schema_id, *(one.schema_id for one in metadata.snapshots)}
        return [one.schema_id for one in metadata.schemas if one.schema_id not in used]

    def remove_schemas(self, ids: Sequence[int]) -> None:
        """Let `unused_schemas` go. Raises `CatalogError`, also if the catalog does not know this update."""
        with self._committing() as transaction:
            transaction._apply((RemoveSchemasUpdate.model_validate({"schema-ids": list(ids)}),))

    def append(self, files: Sequence[str], positions: Positions, starts: Mapping[int, int]) -> None:
        """Commit new ``files`` and the ``positions`` that they lead to. ``starts``: where each changed partition began.

        The files are on the disk, their directory's entries are not yet. Raises `TableInUseError`.
        """
        properties = self._write_positions(positions, starts)
        with self._committing() as transaction, transaction.update_snapshot(properties).merge_append() as append:
            for one in self._described(files):
                append.append_data_file(one)

    def exchange(
        self,
        old: Sequence[DataFile],
        files: Sequence[BucketFile],
        positions: Positions,
        starts: Mapping[int, int],
        facts: KeyedFacts,
    ) -> None:
        """Commit to a keyed table that ``files`` take the place of ``old``, and the ``positions`` that this leads to.

        The rest is as in `append`.
        """
        properties = self._write_positions(positions, starts) | facts.as_properties()
        with self._committing() as transaction, transaction.update_snapshot(properties).overwrite() as overwrite:
            for one in old:
                overwrite.delete_data_file(one)
            for file in files:
                overwrite.append_data_file(described_file(self._table.io, self._table.metadata, file))

    def _write_positions(self, positions: Positions, starts: Mapping[int, int]) -> dict[str, str]:
        """Have all but Iceberg's files of a commit on the disk. What its summary says of the positions."""
        name = f"{METADATA}/positions-{uuid.uuid4().hex}.json"
        self.files.fsync_dir(self.path.data)
        self.files.write(os.path.join(self.path.root, name), encode_positions(positions))
        self.files.fsync_dir(self.path.metadata)
        properties = {TOPIC: positions.topic, POSITIONS: name, CHANGED: changes_as_text(starts, positions)}
        if positions.topic_id is not None:
            properties[TOPIC_ID] = positions.topic_id
        return properties

    def replace(self, old: Sequence[DataFile], files: Sequence[str]) -> None:
        """Commit that ``files`` take the place of ``old``; the positions stay. Raises `TableInUseError`."""
        self.files.fsync_dir(self.path.data)
        current = self._table.current_snapshot()
        properties = {key: value for key in (TOPIC, TOPIC_ID, POSITIONS) if (value := _property(current, key))}
        with self._committing() as transaction, transaction.update_snapshot(properties).overwrite() as overwrite:
            for one in old:
                overwrite.delete_data_file(one)
            for one in self._described(files):
                overwrite.append_data_file(one)

    def _described(self, files: Sequence[str]) -> Iterator[DataFile]:
        """Files as a manifest has them, with the statistics in their footers."""
        for path in files:
            yield parquet_file_to_data_file(self._table.io, self._table.metadata, location_of(path))

    @contextmanager
    def _committing(self) -> Iterator[Transaction]:
        """A transaction that also lets old snapshots go."""
        transaction = _Transaction(self._table)
        try:
            yield transaction
            old = _oldest(self._table)
            if old:
                ExpireSnapshots(transaction).by_ids(old).commit()
            with catalog_errors(self._options):
                transaction.commit_transaction()
        except (CommitFailedException, ValidationException) as error:
            raise TableInUseError(
                f"another job has changed the table {self.path.root} first; nothing was added: {error}"
            ) from error


class _Transaction(Transaction):
    """Keeps the metadata that its updates lead to.

    pyiceberg makes it again, with a deep copy of all snapshots, each time that it reads it: about 18 times a commit. In
    a table of 100 snapshots, that is two thirds of a commit's time.
    """

    _seen: tuple[TableUpdate, ...] | None = None
    _metadata: TableMetadata | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if self._metadata is None or self._seen is not self._updates:
            self._seen, self._metadata = self._updates, super().table_metadata
        return self._metadata


def _oldest(table: Table) -> list[int]:
    """The snapshots that are too many once there is a new one, or have too old a schema, without those that a branch or
    a tag names."""
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    too_many = max(len(snapshots) + 1 - KEPT_SNAPSHOTS, 0)
    newest = dict.fromkeys([table.metadata.current_schema_id, *(one.schema_id for one in reversed(snapshots))])
    kept = set(list(newest)[:KEPT_SCHEMAS])
    return [
        one.snapshot_id
        for number, one in enumerate(snapshots)
        if (number < too_many or one.schema_id not in kept) and one.snapshot_id not in named
    ]


def _property(snapshot: Snapshot | None, name: str) -> str | None:
    if snapshot is None or snapshot.summary is None:
        return None
    return snapshot.summary.additional_properties.get(name)

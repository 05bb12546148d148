"""Keyed tables: the newest value of each key, in files of one bucket of keys each.

The bucket is Iceberg's ``bucket[n]`` of the column ``key``, so it is a partition of the Iceberg table: manifests say
which bucket a file has, and engines that look for a key read one file. A snapshot's summary also says::

    seglog.split-keys            keys that several partitions of the topic have
    seglog.surveyed-ms           when the log was found to end where the table does
    seglog.delete-retention-ms   the topic's delete.retention.ms, if it was known
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record

from seglog.core.errors import InvalidConfigError
from seglog.table.iceberg.layout import location_of

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

KEY_BUCKETS: Final = "seglog.key-buckets"
"""A property of a keyed table: its number of buckets. Other tables do not have it."""
DEFAULT_BUCKETS: Final = 16
MOST_BUCKETS: Final = 4096
_SPLIT_KEYS: Final = "seglog.split-keys"
_SURVEYED: Final = "seglog.surveyed-ms"
_DELETE_RETENTION: Final = "seglog.delete-retention-ms"
_KEY_FIELD: Final = 1


class BucketFile(NamedTuple):
    """A file of records whose keys all are in one bucket."""

    path: str
    bucket: int


class KeyedFacts(NamedTuple):
    """The facts that a snapshot of a keyed table states beside its positions."""

    split_keys: int
    surveyed_ms: int
    delete_retention_ms: int | None = None

    def as_properties(self) -> dict[str, str]:
        said = {_SPLIT_KEYS: str(self.split_keys), _SURVEYED: str(self.surveyed_ms)}
        return said if self.delete_retention_ms is None else said | {_DELETE_RETENTION: str(self.delete_retention_ms)}


def facts_in(properties: Mapping[str, str]) -> KeyedFacts:
    """The facts of a summary that has them.

    >>> facts_in(KeyedFacts(2, 1700000000000).as_properties())
    KeyedFacts(split_keys=2, surveyed_ms=1700000000000, delete_retention_ms=None)
    """
    retention = properties.get(_DELETE_RETENTION)
    return KeyedFacts(
        int(properties[_SPLIT_KEYS]), int(properties[_SURVEYED]), None if retention is None else int(retention)
    )


def bucket_spec(count: int) -> PartitionSpec:
    """How a keyed table is partitioned. Raises `InvalidConfigError` for a number that makes no sense."""
    if not 1 <= count <= MOST_BUCKETS:
        raise InvalidConfigError(f"{count} buckets: a keyed table has from 1 to {MOST_BUCKETS}")
    field = PartitionField(_KEY_FIELD, PARTITION_FIELD_ID_START, BucketTransform(count), "key_bucket")
    return PartitionSpec(field)


def bucket_of(file: DataFile) -> int:
    bucket: int = file.partition[0]
    return bucket


def described_file(io: FileIO, metadata: TableMetadata, file: BucketFile) -> DataFile:
    """The file as a manifest has it, with the statistics in its footer. pyiceberg cannot tell a file's bucket."""
    location = location_of(file.path)
    source, schema = io.new_input(location), metadata.schema()
    with source.open() as stream:
        footer = pq.read_metadata(stream)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(file.bucket),
        file_size_in_bytes=len(source),
        sort_order_id=None,
        spec_id=metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )

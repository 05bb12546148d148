"""Topics and configurations by a copy of KRaft's metadata log, ``__cluster_metadata-0`` (``MetadataImage.java``).

Controllers and brokers have one in ``metadata.log.dir``, by default the first log directory. The newest snapshot is
read, then the log after it. Records that the quorum has not committed yet count as well: a copy may be a little ahead.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.core.topic_names import METADATA_TOPIC
from seglog.records import any_magic
from seglog.records.batch import read_header
from seglog.records.kafka_messages import MessageError, MessageReader, parse_schemas, read_message, write_message
from seglog.records.kafka_schemas import CONTROL_RECORDS, METADATA_RECORDS
from seglog.records.record import ControlType, NewRecord, encode_batch, parse_control
from seglog.storage.formats.batch_walk import walk
from seglog.storage.formats.paths import list_segments

_SNAPSHOT: Final = re.compile(r"(\d{20})-\d{10}\.checkpoint")
_FRAME: Final = 1
TOPIC_RECORD: Final = 2
PARTITION_RECORD: Final = 3
CONFIG_RECORD: Final = 4
REMOVE_TOPIC_RECORD: Final = 9
TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4


class DeletedTopic(NamedTuple):
    """A topic when it was deleted."""

    name: str
    config: Mapping[str, str]


@dataclass(slots=True)
class KraftMetadata:
    """Topics by name with their ids, and deleted topics by id, as far as the log still tells of them.

    Configurations are Kafka's texts; ``brokers`` has those of brokers by id, "" for the defaults of all.
    ``partitions`` has the last ``PartitionRecord`` of each partition of a topic, also of a deleted one, with its
    version. ``voters`` are the controllers by the last ``LeaderChangeMessage``.
    """

    path: str
    topics: dict[str, UUID] = field(default_factory=dict)
    partitions: dict[UUID, dict[int, tuple[int, Mapping[str, Any]]]] = field(default_factory=dict)
    deleted: dict[UUID, DeletedTopic] = field(default_factory=dict)
    voters: frozenset[int] = frozenset()
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)

    def apply(self, type_: int, version: int, values: Mapping[str, Any]) -> None:
        if type_ == TOPIC_RECORD:
            self.topics[values["name"]] = UUID(bytes=values["topicId"])
        elif type_ == PARTITION_RECORD:
            known = self.partitions.setdefault(UUID(bytes=values["topicId"]), {})
            known[values["partitionId"]] = version, values
        elif type_ == CONFIG_RECORD:
            tables = {TOPIC_RESOURCE: self.configs, _BROKER_RESOURCE: self.brokers}
            table = tables.get(values["resourceType"], {}).setdefault(values["resourceName"], {})
            if values["value"] is None:
                table.pop(values["name"], None)
            else:
                table[values["name"]] = values["value"]
        elif type_ == REMOVE_TOPIC_RECORD:
            topic_id = UUID(bytes=values["topicId"])
            name = next((one for one, known in self.topics.items() if known == topic_id), None)
            if name is not None:
                del self.topics[name]
                self.deleted[topic_id] = DeletedTopic(name, self.configs.pop(name, {}))


_USED: Final = (TOPIC_RECORD, PARTITION_RECORD, CONFIG_RECORD, REMOVE_TOPIC_RECORD)
_LEADER_CHANGE: Final = parse_schemas(CONTROL_RECORDS)[int(ControlType.LEADER_CHANGE)]


def read_kraft_metadata(fs: Fs, log_dir: str) -> KraftMetadata | None:
    """None if the directory has no such log. `CorruptError` names the file that cannot be read."""
    path = os.path.join(log_dir, f"{METADATA_TOPIC}-0")
    if not fs.exists(path):
        return None
    found = KraftMetadata(path)
    snapshots = sorted(name for name in fs.listdir(path) if _SNAPSHOT.fullmatch(name))
    start = 0
    if snapshots:
        start = int(snapshots[-1][:20])
        for record in _records(fs, os.path.join(path, snapshots[-1]), 0, found):
            found.apply(*record)
    segments = list_segments(fs, path)
    for at, segment in enumerate(segments):
        if at + 1 == len(segments) or segments[at + 1].base_offset > start:
            for record in _records(fs, segment.log, start, found):
                found.apply(*record)
    return found


def _records(fs: Fs, path: str, start: int, metadata: KraftMetadata) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Records from offset ``start`` on: their types, versions and fields. Notes the voters in ``metadata``."""
    schemas = parse_schemas(METADATA_RECORDS)
    with closing(fs.open(path, write=False)) as file:
        for entry, position, data in walk(file):
            header = read_header(data, entry.position)
            if header.last_offset < start:
                continue
            try:
                for record in any_magic.iterate(data, entry):
                    if record.offset < start or record.value is None:
                        continue
                    if header.is_control:
                        if parse_control(record).type is ControlType.LEADER_CHANGE:
                            change = read_message(_LEADER_CHANGE, record.value, 0)
                            metadata.voters = frozenset(voter["voterId"] for voter in change["voters"])
                        continue
                    reader = MessageReader(record.value)
                    frame, type_, version = (reader.unsigned_varint() for _ in range(3))
                    if frame == _FRAME and type_ in _USED:
                        yield type_, version, reader.message(schemas[type_], version)
            except MessageError as error:
                raise CorruptError(
                    f"a metadata record cannot be read: {error}", position=position, file=path, offset=entry.offset
                ) from error
            except CorruptError as error:
                raise error.at(file=path, base=position - entry.position, offset=entry.offset) from error


def append_records(
    fs: Fs, metadata: KraftMetadata, records: Sequence[tuple[int, int, Mapping[str, Any]]], now_ms: int
) -> None:
    """Append one batch of records (type, version, fields) to the log, durably.

    It has the leader epoch of the last batch: the next leader has a higher one. Only for a quorum of one controller
    that is stopped. A torn batch at the end is cut off, as Kafka does. `CorruptError` names a batch with a wrong CRC:
    Kafka would cut there, and this batch with it.
    """
    schemas = parse_schemas(METADATA_RECORDS)
    values = []
    for type_, version, fields in records:
        frame = bytes((_FRAME, type_, version))  # each below 128: a varint of one byte
        values.append(NewRecord(frame + write_message(schemas[type_], fields, version), timestamp=now_ms))
    segment = list_segments(fs, metadata.path)[-1]
    with closing(fs.open(segment.log)) as file:
        position, offset, epoch = 0, segment.base_offset, 0
        for entry, at, data in walk(file):
            try:
                any_magic.check(data, entry)
            except CorruptError as error:
                raise error.at(file=segment.log, base=at - entry.position, offset=entry.offset) from error
            header = read_header(data, entry.position)
            position, offset, epoch = at + entry.size, header.next_offset, header.leader_epoch
        if position != file.size():
            file.truncate(position)
        file.pwrite(encode_batch(values, base_offset=offset, leader_epoch=epoch), position)
        file.fsync()

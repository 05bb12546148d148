"""Topics and configurations by a copy of KRaft's metadata log, ``__cluster_metadata-0`` (``MetadataImage.java``).

Controllers and brokers have one in ``metadata.log.dir``, by default the first log directory. The newest snapshot is
read, then the log after it. Records that the quorum has not committed yet count as well: a copy may be a little ahead.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from seglog.core.errors import CorruptError
from seglog.core.fs import Fs
from seglog.core.topic_names import METADATA_TOPIC
from seglog.records import any_magic
from seglog.records.batch import read_header
from seglog.records.kafka_messages import MessageError, MessageReader, parse_schemas
from seglog.records.kafka_schemas import METADATA_RECORDS
from seglog.storage.formats.batch_walk import walk
from seglog.storage.formats.paths import list_segments

_SNAPSHOT: Final = re.compile(r"(\d{20})-\d{10}\.checkpoint")
_FRAME: Final = 1
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4


@dataclass(slots=True)
class KraftMetadata:
    """Topics by name with their ids, and the names of deleted topics by id; configurations as Kafka's texts.

    ``brokers`` has the configurations of brokers by id, "" for the defaults of all.
    """

    path: str
    topics: dict[str, UUID] = field(default_factory=dict)
    partitions: dict[UUID, set[int]] = field(default_factory=dict)
    deleted: dict[UUID, str] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    brokers: dict[str, dict[str, str]] = field(default_factory=dict)

    def apply(self, type_: int, values: Mapping[str, Any]) -> None:
        if type_ == 2:
            self.topics[values["name"]] = UUID(bytes=values["topicId"])
        elif type_ == 3:
            self.partitions.setdefault(UUID(bytes=values["topicId"]), set()).add(values["partitionId"])
        elif type_ == 4:
            tables = {_TOPIC_RESOURCE: self.configs, _BROKER_RESOURCE: self.brokers}
            table = tables.get(values["resourceType"], {}).setdefault(values["resourceName"], {})
            if values["value"] is None:
                table.pop(values["name"], None)
            else:
                table[values["name"]] = values["value"]
        elif type_ == 9:
            topic_id = UUID(bytes=values["topicId"])
            name = next((one for one, known in self.topics.items() if known == topic_id), None)
            if name is not None:
                del self.topics[name]
                self.configs.pop(name, None)
                self.deleted[topic_id] = name


_USED: Final = (2, 3, 4, 9)


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
        for type_, values in _records(fs, os.path.join(path, snapshots[-1]), 0):
            found.apply(type_, values)
    segments = list_segments(fs, path)
    for at, segment in enumerate(segments):
        if at + 1 == len(segments) or segments[at + 1].base_offset > start:
            for type_, values in _records(fs, segment.log, start):
                found.apply(type_, values)
    return found


def _records(fs: Fs, path: str, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Records from offset ``start`` on: their types and fields."""
    schemas = parse_schemas(METADATA_RECORDS)
    with closing(fs.open(path, write=False)) as file:
        for entry, position, data in walk(file):
            header = read_header(data, entry.position)
            if header.is_control or header.last_offset < start:
                continue
            try:
                for record in any_magic.iterate(data, entry):
                    if record.offset < start or record.value is None:
                        continue
                    reader = MessageReader(record.value)
                    frame, type_, version = (reader.unsigned_varint() for _ in range(3))
                    if frame == _FRAME and type_ in _USED:
                        yield type_, reader.message(schemas[type_], version)
            except MessageError as error:
                raise CorruptError(
                    f"a metadata record cannot be read: {error}", position=position, file=path, offset=entry.offset
                ) from error
            except CorruptError as error:
                raise error.at(file=path, base=position - entry.position, offset=entry.offset) from error

"""Kafka's small text files: offset checkpoints, leader epochs, ``meta.properties``, ``partition.metadata``, clean
shutdown.

Checkpoints share one text format (``CheckpointFile.java``): UTF-8, every line ends in a newline::

    0        <- version
    <n>      <- number of lines that follow
    ...

Each file has a pure pair of encoder and decoder, and a pair that reads and writes through an `Fs`. They write what
Kafka writes, byte for byte except the date in ``meta.properties``, and read as leniently as Kafka reads. They refuse
what Kafka refuses with a `CorruptCheckpointError` that names file and line.
"""

from __future__ import annotations

import json
import os.path
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from seglog.core.errors import CorruptCheckpointError
from seglog.core.fs import Fs, write_atomically
from seglog.core.types import MAX_INT32, MAX_INT64, TopicPartition
from seglog.storage.formats.paths import CLEAN_SHUTDOWN, LEADER_EPOCHS, META_PROPERTIES, PARTITION_METADATA
from seglog.storage.formats.properties import Property, decode_properties, encode_properties

VERSION: Final = 0
_NUMBER: Final = re.compile("[0-9]{1,19}")


def encode_lines(lines: Sequence[str]) -> bytes:
    return "".join([f"{VERSION}\n{len(lines)}\n", *(f"{line}\n" for line in lines)]).encode()


def decode_lines(data: bytes, file: str | None = None) -> Iterator[tuple[int, str]]:
    """The lines after the count, each with its number in the file (the version is line 1).

    No bytes at all, or a version alone, mean no lines: Kafka creates these files before it first writes them. Anything
    that Kafka would not read is a `CorruptCheckpointError` that names file and line.
    """
    try:
        lines = re.split("\r\n|\r|\n", data.decode())
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError("not UTF-8", position=error.start, file=file) from error
    if not lines[-1]:
        lines.pop()
    if not lines:
        return
    version = number(lines[0], 1, file)
    if version != VERSION:
        raise CorruptCheckpointError(f"line 1: version {version} is unknown, {VERSION} is expected", file=file)
    if len(lines) == 1:
        return
    announced, found = number(lines[1], 2, file), len(lines) - 2
    if announced != found:
        raise CorruptCheckpointError(f"line 2: {announced} entries are announced, {found} are there", file=file)
    yield from enumerate(lines[2:], start=3)


def number(text: str, line: int, file: str | None, limit: int = MAX_INT32) -> int:
    """The whole number from 0 to ``limit`` that stands in ``line``."""
    if not _NUMBER.fullmatch(text) or int(text) > limit:
        raise CorruptCheckpointError(f"line {line}: {text[:80]!r} is not a number from 0 to {limit}", file=file)
    return int(text)


T = TypeVar("T")

ZERO_ID: Final = UUID(int=0)

# Ids


def encode_id(value: UUID) -> str:
    """A topic's or directory's id as Kafka writes it: 22 characters of URL-safe base64.

    >>> encode_id(UUID("f3a1b2c3-d4e5-4f60-8171-8293a4b5c6d7"))
    '86Gyw9TlT2CBcYKTpLXG1w'
    """
    return urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def decode_id(text: str) -> UUID:
    """The reverse; ValueError if ``text`` is not such an id.

    >>> decode_id("86Gyw9TlT2CBcYKTpLXG1w")
    UUID('f3a1b2c3-d4e5-4f60-8171-8293a4b5c6d7')
    """
    if not re.fullmatch("[A-Za-z0-9_-]{22}(==)?", text):
        raise ValueError(f"{text[:40]!r} is not an id: 22 of the characters A-Z a-z 0-9 - _")
    return UUID(bytes=urlsafe_b64decode(text[:22] + "=="))


def new_id(rng: Random) -> UUID:
    """A random id as Kafka makes them: no small number, and no text that begins with a dash (``Uuid.randomUuid``)."""
    while True:
        made = UUID(int=rng.getrandbits(128), version=4)
        if not encode_id(made).startswith("-"):
            return made


def new_cluster_id(rng: Random) -> str:
    return encode_id(new_id(rng))


# Offset checkpoints: recovery points, log start offsets, high watermarks, cleaner offsets


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """``topic partition offset`` a line, in the mapping's order (Kafka's is that of a hash map).

    >>> encode_offsets({TopicPartition("web", 0): 12})
    b'0\\n1\\nweb 0 12\\n'
    """
    return join_offsets([encode_offset(partition, offset) for partition, offset in offsets.items()])


def encode_offset(partition: TopicPartition, offset: int) -> bytes:
    """One line of an offset checkpoint."""
    return f"{partition.topic} {partition.partition} {offset}\n".encode()


def join_offsets(lines: Collection[bytes]) -> bytes:
    """The file of these lines."""
    return b"%d\n%d\n" % (VERSION, len(lines)) + b"".join(lines)


def decode_offsets(data: bytes, file: str | None = None) -> dict[TopicPartition, int]:
    offsets = {}
    for at, line in decode_lines(data, file):
        fields = line.split()
        if len(fields) != 3:
            raise CorruptCheckpointError(f"line {at}: {line[:80]!r} is not a topic, partition and offset", file=file)
        partition = number(fields[1], at, file, MAX_INT32)
        offsets[TopicPartition(fields[0], partition)] = number(fields[2], at, file, MAX_INT64)
    return offsets


def read_offsets(fs: Fs, path: str) -> dict[TopicPartition, int]:
    """Of the checkpoint at ``path``; empty where there is none."""
    data = _read(fs, path)
    return decode_offsets(data, path) if data is not None else {}


def line_of_offset(fs: Fs, path: str, partition: str) -> int | None:
    """The line, counted from 1, that the checkpoint at ``path`` has about a partition ("web-0"); None: it has none."""
    data = _read(fs, path) or b""
    for at, line in decode_lines(data, path):
        if "-".join(line.split()[:2]) == partition:
            return at
    return None


def write_offsets(fs: Fs, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    write_atomically(fs, path, encode_offsets(offsets))


def encode_partition_metadata(topic_id: UUID) -> bytes:
    """
    >>> encode_partition_metadata(UUID("f3a1b2c3-d4e5-4f60-8171-8293a4b5c6d7"))
    b'version: 0\\ntopic_id: 86Gyw9TlT2CBcYKTpLXG1w'
    """
    return f"version: 0\ntopic_id: {encode_id(topic_id)}".encode()


def decode_partition_metadata(data: bytes, file: str | None = None) -> UUID:
    """The topic's id."""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise CorruptCheckpointError("not UTF-8", position=error.start, file=file) from error
    number(_after("version", lines, 1, file), 1, file)  # Kafka reads later versions as this one
    try:
        topic_id = decode_id(_after("topic_id", lines, 2, file))
    except ValueError as error:
        raise CorruptCheckpointError(f"line 2: {error}", file=file) from error
    if topic_id == ZERO_ID:
        raise CorruptCheckpointError("line 2: the topic id is zero", file=file)
    return topic_id


def _after(key: str, lines: list[str], at: int, file: str | None) -> str:
    line = lines[at - 1] if len(lines) >= at else ""
    found, _, value = line.partition(":")
    if found != key or not value:
        raise CorruptCheckpointError(f"line {at}: {line[:80]!r} is not '{key}: …'", file=file)
    return value.strip()


def read_partition_metadata(fs: Fs, partition_path: str) -> UUID | None:
    """The id of a partition's topic; None without a file (topics created by Kafka before 2.8)."""
    path = os.path.join(partition_path, PARTITION_METADATA)
    data = _read(fs, path)
    return decode_partition_metadata(data, path) if data is not None else None


def write_partition_metadata(fs: Fs, partition_path: str, topic_id: UUID) -> None:
    write_atomically(fs, os.path.join(partition_path, PARTITION_METADATA), encode_partition_metadata(topic_id))


def is_torn(fs: Fs, partition_path: str, topic_id: UUID) -> bool:
    """Whether ``partition.metadata`` is what a power cut left of one with this id that was not fsynced: its beginning,
    or bytes that are zeros instead."""
    data = _read(fs, os.path.join(partition_path, PARTITION_METADATA))
    whole = encode_partition_metadata(topic_id)
    if data is None or data == whole or len(data) > len(whole):
        return False
    return all(found in (0, right) for found, right in zip(data, whole, strict=False))


# meta.properties


class MetaProperties(NamedTuple):
    """Whose a log directory is. Version 1 has ``node.id`` (KRaft), version 0 ``broker.id`` (before 4.0)."""

    version: int = 1
    cluster_id: str | None = None
    node_id: int | None = None
    directory_id: UUID | None = None


_ID_KEYS: Final = {0: "broker.id", 1: "node.id"}


def encode_meta_properties(properties: MetaProperties, now_ms: int) -> bytes:
    """As Java's ``Properties.store`` writes it: a comment, a date (in UTC here), then the keys in order of their
    names."""
    values = {"version": str(properties.version)}
    if properties.cluster_id is not None:
        values["cluster.id"] = properties.cluster_id
    if properties.node_id is not None:
        values[_ID_KEYS[properties.version]] = str(properties.node_id)
    if properties.directory_id is not None:
        values["directory.id"] = encode_id(properties.directory_id)
    return encode_properties(values, now_ms)


def decode_meta_properties(data: bytes, file: str | None = None) -> MetaProperties:
    """Any properties file with these keys; others are passed over. A file without a version is of version 0."""
    found = decode_properties(data, file)
    version = 0
    if "version" in found:
        version = _parsed(found["version"], lambda text: {"0": 0, "1": 1}[text], "0 or 1", file)
    id_key = _ID_KEYS[version]
    node_id = _parsed(found[id_key], _integer, "an id", file) if id_key in found else None
    directory_id = _parsed(found["directory.id"], decode_id, "an id", file) if "directory.id" in found else None
    cluster_id = found["cluster.id"].value if "cluster.id" in found else None
    if version == 1 and (cluster_id is None or node_id is None):
        raise CorruptCheckpointError(f"{'cluster.id' if cluster_id is None else id_key} is missing", file=file)
    return MetaProperties(version, cluster_id, node_id, directory_id)


def _integer(text: str) -> int:
    if not re.fullmatch("[+-]?[0-9]{1,10}", text) or abs(int(text)) > MAX_INT32:
        raise ValueError("not a number of 32 bits")
    return int(text)


def _parsed(entry: Property, parse: Callable[[str], T], expected: str, file: str | None) -> T:
    try:
        return parse(entry.value)
    except (ValueError, KeyError) as error:
        raise CorruptCheckpointError(f"line {entry.line}: {entry.value[:80]!r} is not {expected}", file=file) from error


def read_meta_properties(fs: Fs, log_dir: str) -> MetaProperties | None:
    """The marker of a log directory; None if it has none."""
    path = os.path.join(log_dir, META_PROPERTIES)
    data = _read(fs, path)
    return decode_meta_properties(data, path) if data is not None else None


def write_meta_properties(fs: Fs, log_dir: str, properties: MetaProperties, now_ms: int) -> None:
    write_atomically(fs, os.path.join(log_dir, META_PROPERTIES), encode_meta_properties(properties, now_ms))


# .kafka_cleanshutdown


class CleanShutdown(NamedTuple):
    """The marker of a clean shutdown, with the epoch of the broker that wrote it (KIP-966), None if it does not say."""

    broker_epoch: int | None


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    """
    >>> encode_clean_shutdown(-1)
    b'{"version":0,"brokerEpoch":-1}'
    """
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes) -> CleanShutdown:
    """Any content is a clean shutdown: that of an old Kafka is empty."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return CleanShutdown(None)
    epoch = content.get("brokerEpoch") if isinstance(content, dict) else None
    return CleanShutdown(epoch if type(epoch) is int else None)


def read_clean_shutdown(fs: Fs, log_dir: str) -> CleanShutdown | None:
    """None where the log directory has no marker: it was not shut down cleanly, or it is in use."""
    data = _read(fs, os.path.join(log_dir, CLEAN_SHUTDOWN))
    return decode_clean_shutdown(data) if data is not None else None


def write_clean_shutdown(fs: Fs, log_dir: str, broker_epoch: int = -1) -> None:
    write_atomically(fs, os.path.join(log_dir, CLEAN_SHUTDOWN), encode_clean_shutdown(broker_epoch))


def remove_clean_shutdown(fs: Fs, log_dir: str) -> None:
    """Remove the marker for good, if there is one: from the first append on, a crash must be recovered from."""
    path = os.path.join(log_dir, CLEAN_SHUTDOWN)
    if fs.exists(path):
        fs.unlink(path)
        fs.fsync_dir(log_dir)


def _read(fs: Fs, path: str) -> bytes | None:
    try:
        return fs.read(path)
    except FileNotFoundError:
        return None


class EpochEntry(NamedTuple):
    epoch: int
    start_offset: int


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Version 0, count, then ``epoch start`` a line.

    >>> encode_epochs([(0, 0), (3, 120)])
    b'0\\n2\\n0 0\\n3 120\\n'
    """
    return encode_lines([f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(data: bytes, file: str | None = None) -> list[EpochEntry]:
    """Read that text; `CorruptCheckpointError` names the file and line that are wrong."""
    entries = []
    for at, line in decode_lines(data, file):
        fields = line.split()
        if len(fields) != 2:
            raise CorruptCheckpointError(f"line {at}: {line[:80]!r} is not an epoch and an offset", file=file)
        entries.append(EpochEntry(number(fields[0], at, file), number(fields[1], at, file, MAX_INT64)))
    return entries


def read_leader_epochs(fs: Fs, partition_path: str) -> list[EpochEntry]:
    """The epochs of a partition; none if it has no such file."""
    path = os.path.join(partition_path, LEADER_EPOCHS)
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return []
    return decode_epochs(data, path)


def write_leader_epochs(fs: Fs, partition_path: str, entries: Iterable[tuple[int, int]]) -> None:
    write_atomically(fs, os.path.join(partition_path, LEADER_EPOCHS), encode_epochs(entries))

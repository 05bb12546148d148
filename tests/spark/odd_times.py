"""Logs with a timestamp that is no milliseconds, in each form in which Kafka's records have timestamps."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from seglog.core.types import MAX_INT64, TimestampType
from seglog.records.batch import BATCH_OVERHEAD, build_batch, read_header
from seglog.records.compression import Codec
from seglog.records.record import NewRecord, encode_batch
from seglog.records.timestamps import CALENDAR, STORABLE
from seglog.storage.directory.log_dir import LogDir
from tests.records.old_messages import message_set
from tests.records.peers import PEERS

NOW: Final = 1_790_000_000_000
TOPIC: Final = "flights"
ODD: Final = (
    NOW * 1000,
    NOW * 1_000_000,
    CALENDAR.last,
    CALENDAR.last + 1,
    STORABLE.last,
    STORABLE.last + 1,
    MAX_INT64,
    -1,
    -2,
    CALENDAR.first,
    CALENDAR.first - 1,
    STORABLE.first,
    STORABLE.first - 1,
    -MAX_INT64 - 1,
)
"""Microseconds, nanoseconds, and both sides of each bound."""
FORMS: Final = ("create", "append", "zstd", "v1", "v1 gzip")
"""Of the batch with the odd timestamp."""


def batch(form: str, offset: int, timestamp: int) -> bytes:
    """A batch of one record. Our encoders refuse some of the timestamps, so the header is changed."""
    key, value = b"key %d" % offset, b'{"n": %d}' % offset
    if form.startswith("v1"):
        record = NewRecord(value, key, timestamp)
        return message_set(PEERS[0], [record], 1, Codec.GZIP if "gzip" in form else Codec.NONE, offset)
    codec = Codec.ZSTD if form == "zstd" else Codec.NONE
    kind = TimestampType.LOG_APPEND_TIME if form == "append" else TimestampType.CREATE_TIME
    made = encode_batch(
        [NewRecord(value, key, 0)], base_offset=offset, codec=codec, timestamp_type=kind, log_append_time=0
    )
    header = read_header(made)._replace(base_timestamp=timestamp, max_timestamp=timestamp)
    return bytes(build_batch(header, made[BATCH_OVERHEAD:]))


def write_log(root: Path, timestamp: int, form: str = "create") -> Path:
    """A log directory whose topic has three records; the one at offset 1 has that timestamp."""
    with LogDir.open(root) as directory:
        directory.create_topic(TOPIC, 1, {"retention.ms": -1})
        path = Path(directory.log(TOPIC).active.paths.log)
    newer = "create" if form.startswith("v1") else form
    with path.open("wb") as file:
        file.write(batch(newer, 0, NOW) + batch(form, 1, timestamp) + batch(newer, 2, NOW + 2))
    (root / ".kafka_cleanshutdown").unlink()
    with LogDir.open(root):  # makes the indexes
        pass
    return root

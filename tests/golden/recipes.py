"""The topics of the golden set: name, configuration, and what each is there to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["CODECS", "CURRENT_TOPICS", "OLD_CODECS", "OLD_TOPICS", "Topic"]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
OLD_CODECS = ("none", "gzip", "snappy", "lz4")

_SMALL_SEGMENTS = {"internal.segment.bytes": "4096"}
_COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "2048",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "1000000000000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """`transactional` topics are also read with read_committed; `cleaned` ones are waited for."""

    name: str
    shows: str
    config: Mapping[str, str] = field(default_factory=dict)
    partitions: int = 1
    transactional: bool = False
    cleaned: bool = False


CURRENT_TOPICS = (
    *(Topic(name=f"codec-{codec}", shows=f"{codec} batches of odd records with headers") for codec in CODECS),
    Topic(name="append-time", shows="LogAppendTime", config={"message.timestamp.type": "LogAppendTime"}),
    Topic(name="recompressed", shows="gzip batches stored as zstd by the broker", config={"compression.type": "zstd"}),
    Topic(name="txn", shows="two producers' transactions interleaved; the first marker rolls", transactional=True),
    Topic(name="txn-open", shows="a transaction that nobody ended: last stable offset < end", transactional=True),
    Topic(
        name="txn-rolled",
        shows="transactions over segment borders, a .txnindex in several segments",
        # Markers carry the coordinator's clock, records 2023: with segment.ms every marker would roll.
        config={**_SMALL_SEGMENTS, "segment.ms": "1000000000000"},
        transactional=True,
    ),
    Topic(name="idempotent", shows="several producers with sequences, one reopened"),
    Topic(
        name="rolled", shows="small segments, dense index", config={**_SMALL_SEGMENTS, "index.interval.bytes": "100"}
    ),
    Topic(name="rolled-by-time", shows="rolled by segment.ms in record time", config={"segment.ms": "60000"}),
    Topic(name="a.b-c_d", shows="a name with dot, dash and underscore", partitions=2),
    Topic(name="deleted-prefix", shows="DeleteRecords: whole segments and a part", config=_SMALL_SEGMENTS),
    Topic(name="deleted-part", shows="DeleteRecords inside the only segment"),
    Topic(name="deleted-all", shows="DeleteRecords up to the end: no record left"),
    Topic(name="empty", shows="a partition nobody wrote to"),
    Topic(name="epochs", shows="leader epochs over restarts"),
    Topic(name="compacted", shows="cleaned, tombstones kept with their delete horizon", config=_COMPACT, cleaned=True),
    Topic(
        name="compacted-purged",
        shows="cleaned twice, tombstones gone after their horizon",
        config={**_COMPACT, "delete.retention.ms": "1"},
        cleaned=True,
    ),
    Topic(name="compacted-lz4", shows="cleaned: batches recompressed and emptied", config=_COMPACT, cleaned=True),
    Topic(
        name="compacted-txn",
        shows="cleaned with commits and aborts",
        config=_COMPACT,
        transactional=True,
        cleaned=True,
    ),
)

_V0 = {"message.format.version": "0.9.0"}
_V1 = {"message.format.version": "0.10.0"}
_OLD_SEGMENTS = {"segment.bytes": "4096", "index.interval.bytes": "100"}
_OLD_COMPACT = {
    "cleanup.policy": "compact",
    "segment.bytes": "2048",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "1000000000000",
}

OLD_TOPICS = (
    *(Topic(name=f"v0-{codec}", shows=f"message format 0, {codec}", config=_V0) for codec in OLD_CODECS),
    *(Topic(name=f"v1-{codec}", shows=f"message format 1, {codec}", config=_V1) for codec in OLD_CODECS),
    Topic(
        name="v1-append-time",
        shows="format 1, LogAppendTime, gzip: inner timestamps come from the wrapper",
        config={**_V1, "message.timestamp.type": "LogAppendTime"},
    ),
    Topic(name="v0-rolled", shows="format 0 in small segments", config={**_V0, **_OLD_SEGMENTS}),
    Topic(name="v1-rolled", shows="format 1 in small segments", config={**_V1, **_OLD_SEGMENTS}),
    Topic(name="v1-compacted", shows="format 1 after cleaning", config={**_V1, **_OLD_COMPACT}, cleaned=True),
    Topic(name="mixed", shows="formats 0, 1 and 2 in one log, by changing the topic's configuration", config=_V0),
    Topic(name="v2-none", shows="format 2 as 2.8.2 writes it"),
    Topic(name="v2-zstd", shows="format 2, zstd"),
    Topic(name="v2-rolled", shows="format 2 in small segments, the old index rule", config=_OLD_SEGMENTS),
    Topic(name="v2-txn", shows="transactions of 2.8.2: one epoch for all", transactional=True),
)

"""Kafka 4.4.0's own log and cleaner over a directory, without a broker: the oracle for every file in a partition.

The clock is an argument, nothing runs in the background, and closing is what a broker's clean stop does (flush,
producer snapshot, indexes trimmed). The same steps therefore give the same bytes, and ours can be compared with `==`.
"""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tests.kafka.tools import run_java

__all__ = [
    "Origin",
    "append_batches",
    "clean_log",
    "delete_old_segments",
    "delete_records_before",
    "high_watermark",
    "roll",
    "set_clock",
    "set_leader_epoch",
    "truncate_to",
]

Origin = Literal["AUTO", "CLIENT", "COORDINATOR", "REPLICATION", "RAFT_LEADER", "FOLLOWER"]
"""AUTO appends as a leader: control batches as its coordinator would, all others as from a client."""


def set_clock(now_ms: int) -> bytes:
    """From here on it is `now_ms`."""
    return _command(-1, now_ms)


def set_leader_epoch(epoch: int) -> bytes:
    """Become leader in this epoch: it begins at the log's end, and later leader appends carry it."""
    return _command(-2, epoch)


def roll(expected_next_offset: int = -1) -> bytes:
    """Roll now, as `UnifiedLog.roll` does."""
    return _command(-3, expected_next_offset)


def truncate_to(offset: int) -> bytes:
    """Drop what is at `offset` and after it, as a follower does."""
    return _command(-4, offset)


def delete_records_before(offset: int) -> bytes:
    """Move the log start offset, as DeleteRecords does; no segment goes away by this alone."""
    return _command(-5, offset)


def high_watermark(offset: int) -> bytes:
    """Set the high watermark, which from here on no longer follows the log's end by itself."""
    return _command(-6, offset)


def delete_old_segments() -> bytes:
    """One round of retention: by time, by size and by log start offset."""
    return _command(-7, 0)


def append_batches(
    partition_dir: Path,
    steps: Sequence[bytes],
    *,
    now_ms: int,
    config: Mapping[str, str] | None = None,
    leader_epoch: int = 0,
    origin: Origin = "AUTO",
    transaction_version: int = 2,
    log_start: int = 0,
    recovery_point: int = 0,
    clean: bool = True,
) -> list[dict[str, Any]]:
    """Open `partition_dir` (named `topic-N`, made if absent), do the steps, close cleanly; costs about 1 s.

    A step is the bytes of one append (one or more v2 batches, as they come from the wire) or one of this module's
    commands. `config` has a topic's own keys; small segments by `internal.segment.bytes`. `clean=False` opens as after
    a crash: everything from `recovery_point` is recovered. `transaction_version` is the cluster's feature: at 2, as in
    a new 4.4 cluster, a marker's producer epoch must be above its transaction's; 0 also takes the same epoch. Returns
    one dict per step and the state at the end:

    * append: firstOffset, lastOffset, maxTimestamp, logAppendTime, lastStableOffset
    * refused: error (Java's class name), message; the log goes on with the next step
    * command and end: logStartOffset, logEndOffset, lastStableOffset, recoveryPoint, segments (base offsets)
    """
    partition_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(suffix=".steps") as file:
        for step in steps:
            file.write(step if _is_command(step) else struct.pack(">i", len(step)) + step)
        file.flush()
        arguments = _common(partition_dir, now_ms, config, log_start)
        arguments += ["--recovery-point", str(recovery_point), "--clean", str(clean).lower()]
        arguments += ["--steps", file.name, "--leader-epoch", str(leader_epoch), "--origin", origin]
        arguments += ["--transaction-version", str(transaction_version)]
        return _json_lines(run_java("AppendBatches", arguments, with_ours=True))


def clean_log(
    partition_dir: Path,
    *,
    now_ms: int,
    config: Mapping[str, str] | None = None,
    first_dirty: int = 0,
    first_uncleanable: int | None = None,
    map_bytes: int = 1 << 20,
    log_start: int = 0,
) -> list[dict[str, Any]]:
    """One round of Kafka's cleaner over `partition_dir`, from `first_dirty` up to `first_uncleanable`.

    The default bound is the active segment's base offset. `map_bytes` is the dedupe buffer (24 bytes a key): a small
    one shows what happens when the map is full. Returns the round's figures (nextDirtyOffset, messagesRead,
    messagesWritten, bytesRead, bytesWritten, ...) and the log's state at the end.
    """
    arguments = _common(partition_dir, now_ms, config, log_start)
    arguments += ["--first-dirty", str(first_dirty), "--map-bytes", str(map_bytes)]
    if first_uncleanable is not None:
        arguments += ["--first-uncleanable", str(first_uncleanable)]
    return _json_lines(run_java("CleanLog", arguments, with_ours=True))


def _common(partition_dir: Path, now_ms: int, config: Mapping[str, str] | None, log_start: int) -> list[str]:
    arguments = ["--dir", str(partition_dir.absolute()), "--now-ms", str(now_ms), "--log-start", str(log_start)]
    for key, value in (config or {}).items():
        arguments += ["--config", f"{key}={value}"]
    return arguments


class _Command(bytes):
    """Bytes that go to the steps file as they are, without a length before them."""

    __slots__ = ()


def _command(code: int, argument: int) -> bytes:
    return _Command(struct.pack(">iq", code, argument))


def _is_command(step: bytes) -> bool:
    return isinstance(step, _Command)


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.split("\n") if line]

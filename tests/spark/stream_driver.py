"""A small ``MicroBatchExecution`` of Spark: its calls of a stream's reader, in its order, and its checkpoint.

It can be killed between any two steps, as Spark's driver can. Offsets go through JSON, as they do there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

import seglog
from seglog.core.clock import Clock
from seglog.records.record import NewRecord
from seglog.sources.options.read_options import parse_options
from seglog.spark.read.schema import COLUMNS
from seglog.spark.read.stream_reader import SeglogStreamReader

START_MS: Final = 1_700_000_000_000
SMALL: Final = {"internal.segment.bytes": "1024"}
"""Of a topic that rolls every few batches."""
_PICKLING: Final[Any] = cloudpickle
SCHEMA: Final = StructType([COLUMNS["topic"], COLUMNS["partition"], COLUMNS["offset"]])

Rows = list[tuple[str, int, int]]
"""Topic, partition and offset of each record, sorted."""


class KilledError(Exception):
    """The driver was killed; its checkpoint stays."""


class Checkpoint:
    """The state that survives a driver: offsets, commits and the rows of the sink, by batch."""

    def __init__(self) -> None:
        self.offsets: dict[int, str] = {}
        self.commits: set[int] = set()
        self.sink: dict[int, Rows] = {}

    def committed(self) -> dict[str, dict[str, int]]:
        """Up to where the stream is done for good."""
        number = max(self.commits, default=None)
        found: dict[str, dict[str, int]] = json.loads(self.offsets[number]) if number is not None else {}
        return found

    def rows(self) -> Rows:
        """All that is in the sink, in the order of batches."""
        return [row for _, rows in sorted(self.sink.items()) for row in rows]


class Driver:
    """One run of a query. ``kill_at`` counts steps: at that one it dies. ``schema`` has at least our columns."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        options: Mapping[str, str],
        *,
        available_now: bool = False,
        kill_at: int | None = None,
        clock: Clock | None = None,
        schema: StructType = SCHEMA,
    ) -> None:
        self._checkpoint = checkpoint
        self._left = kill_at
        self._options = parse_options(options, stream=True)
        self.reader = SeglogStreamReader(schema, self._options, clock)
        # A reader of the same kind is sent to the workers.
        self._worker = _PICKLING.loads(_PICKLING.dumps(SeglogStreamReader(schema, self._options)))
        if available_now:
            self.reader.prepareForTriggerAvailableNow()
        self._limit = self.reader.getDefaultReadLimit()
        self._is_started = False
        self._committed: str | None = None
        self._available: str | None = None
        self._batch = 0

    def trigger(self, limit: ReadLimit | None = None) -> bool:
        """One batch, if there is something to do; as the first one, the batch that was not committed."""
        if not self._is_started:
            self._is_started = True
            if self._populate():
                self._run_batch()
                return True
        before = self._available
        start = before if before is not None else json.dumps(self.reader.initialOffset())
        self._step()
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit or self._limit))
        if before is not None and end == before:
            return False
        self._available = end
        self._step()
        self._checkpoint.offsets[self._batch] = end
        self._step()
        self._run_batch()
        return True

    def drain(self) -> None:
        """Until there is nothing more to do."""
        while self.trigger():
            pass

    def _populate(self) -> bool:
        """Take up the checkpoint; whether its last batch has to be done again."""
        numbers = sorted(self._checkpoint.offsets)
        if not numbers:
            return False
        last = numbers[-1]
        self._available = self._checkpoint.offsets[last]
        if last in self._checkpoint.commits:
            self._committed, self._batch = self._available, last + 1
            return False
        self._committed = self._checkpoint.offsets[last - 1] if last else None
        self._batch = last
        return True

    def _run_batch(self) -> None:
        assert self._available is not None
        begin = self._committed if self._committed is not None else json.dumps(self.reader.initialOffset())
        self._step()
        tasks = self.reader.partitions(json.loads(begin), json.loads(self._available))
        self._step()
        rows: Rows = []
        for task in tasks:
            for batch in self._worker.read(_PICKLING.loads(_PICKLING.dumps(task))):
                rows += zip(*(batch.column(name).to_pylist() for name in SCHEMA.names), strict=True)
                self._watch(batch)
        self._step()
        before = self._checkpoint.sink.get(self._batch)
        if before is not None and sorted(rows) != before:
            raise AssertionError(f"batch {self._batch} had other records when it was run again")
        self._checkpoint.sink[self._batch] = sorted(rows)
        self._step()
        self._checkpoint.commits.add(self._batch)
        self._committed, self._batch = self._available, self._batch + 1
        self._step()
        self.reader.commit(json.loads(self._available))

    def _watch(self, batch: pa.RecordBatch) -> None:
        """A task has returned these records. For models that look at other columns, too."""

    def _step(self) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left < 0:
                raise KilledError


def append(log: seglog.Log, count: int, key: bytes | None = None) -> None:
    """``count`` records, three to a batch, a second apart."""
    end = log.log_end_offset + count
    while (first := log.log_end_offset) < end:
        log.append_records(
            [NewRecord(b"%d" % at, key, START_MS + at * 1000) for at in range(first, min(first + 3, end))]
        )


def options(path: Path | str, **more: str) -> dict[str, str]:
    return {"path": str(path), "until": "logEnd", "startingOffsets": "earliest", **more}


def offsets(rows: Rows, partition: int = 0) -> list[int]:
    return [offset for _, number, offset in rows if number == partition]


def reader(path: Path | str, **more: str) -> SeglogStreamReader:
    return SeglogStreamReader(SCHEMA, parse_options(options(path, **more), stream=True))

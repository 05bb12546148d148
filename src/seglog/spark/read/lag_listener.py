"""The lag of streams, from the progress that Spark reports after each trigger.

Spark's Kafka connector puts ``minOffsetsBehindLatest``, ``maxOffsetsBehindLatest`` and ``avgOffsetsBehindLatest`` into
the ``metrics`` of a source. A Python source cannot do that, but a listener can compute them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyspark.sql.streaming.listener import StreamingQueryListener

from seglog.sources.stream_planning import lag_between, parse_progress_offsets

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )


class SourceLag(NamedTuple):
    """The lag of one source of a query, in offsets, when a batch was planned."""

    query_id: str
    query_name: str | None
    batch_id: int
    source: int
    """Its number in the query, from 0."""
    min: int
    max: int
    avg: float

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics with the names of Spark's Kafka connector, and values as text."""
        return {
            "minOffsetsBehindLatest": str(self.min),
            "maxOffsetsBehindLatest": str(self.max),
            "avgOffsetsBehindLatest": str(self.avg),
        }

    def __str__(self) -> str:
        name = self.query_name or self.query_id
        return (
            f"query {name}, batch {self.batch_id}, source {self.source}: behind by {self.min} to {self.max} offsets a "
            f"partition, {self.avg:.1f} on average"
        )


class SourceProgress(Protocol):
    """The part of ``StreamingQueryProgress.sources`` that is used: two lines of JSON."""

    @property
    def endOffset(self) -> str: ...
    @property
    def latestOffset(self) -> str: ...


def source_lags(
    query_id: str, query_name: str | None, batch_id: int, sources: Sequence[SourceProgress]
) -> list[SourceLag]:
    """The lag of each source of ``format("seglog")`` or ``format("kafka")``."""
    lags = []
    for number, source in enumerate(sources):
        consumed, latest = parse_progress_offsets(source.endOffset), parse_progress_offsets(source.latestOffset)
        if consumed is not None and latest is not None and (lag := lag_between(consumed, latest)) is not None:
            lags.append(SourceLag(query_id, query_name, batch_id, number, lag.min, lag.max, lag.avg))
    return lags


class LagListener(StreamingQueryListener):
    """Keeps the last known lag of each query's sources::

        lags = LagListener(log=logging.getLogger("lag").info)
        spark.streams.addListener(lags)
        ...
        lags.of(query.id)[0].max

    ``log`` is called with each `SourceLag` as text. Spark calls a listener from a thread of its own, some time after
    the batch. The lag of a query that ended is kept until `forget`.
    """

    def __init__(self, log: Callable[[str], object] | None = None) -> None:
        self._log = log
        self._lock = Lock()
        self._lags: dict[str, tuple[SourceLag, ...]] = {}

    def of(self, query_id: object) -> tuple[SourceLag, ...]:
        """The lags of a query's sources at its last progress; empty before the first."""
        with self._lock:
            return self._lags.get(str(query_id), ())

    def forget(self, query_id: object) -> None:
        """Forget the lag of a query."""
        with self._lock:
            self._lags.pop(str(query_id), None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """There is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Store the lags of one progress."""
        progress = event.progress
        lags = source_lags(str(progress.id), progress.name, progress.batchId, progress.sources)
        if not lags:
            return
        with self._lock:
            self._lags[str(progress.id)] = tuple(lags)
        if self._log is not None:
            for lag in lags:
                self._log(str(lag))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Without new data the lag does not change."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """The last lag stays until `forget`."""

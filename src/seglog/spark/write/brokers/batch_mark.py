"""The mark of the last batch of a query that is decided, and the rules about it. No I/O.

The mark names the transactions of its batch. Once it is durable they will be committed, by whoever reads it. It is
changed by one process at a time (`GroupMark`), so of several attempts at a batch exactly one is decided.

A *run* is one start of a query. Runs have generations: the transactions of a generation below the mark's can no longer
be decided, and may be aborted by anybody at any time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from seglog.client.produce.mark_value import MarkValue
from seglog.client.produce.transaction import TransactionHandle
from seglog.core.errors import SeglogError
from seglog.core.types import ProducerIdAndEpoch
from seglog.spark.write.brokers.names import SinkNames

_NO_BATCH = -1


class BatchMarkError(SeglogError):
    """A batch that cannot be written exactly once; the message says why."""


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """The transaction in which a task has written ``records``; ``process`` and ``number`` are parts of its id."""

    task: int
    process: str
    number: int
    producer: ProducerIdAndEpoch
    implicit: bool
    records: int

    def handle(self, names: SinkNames, generation: int) -> TransactionHandle:
        return TransactionHandle(names.task(generation, self.process, self.number), self.producer, self.implicit)

    def to_json(self) -> list[object]:
        return [self.task, self.process, self.number, *self.producer, int(self.implicit), self.records]

    @classmethod
    def from_json(cls, fields: list[object]) -> TaskTransaction:
        task, process, number, producer_id, epoch, implicit, records = fields
        return cls(
            int(str(task)),
            str(process),
            int(str(number)),
            ProducerIdAndEpoch(int(str(producer_id)), int(str(epoch))),
            bool(implicit),
            int(str(records)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMark:
    """``job`` has written the batch. Generations up to ``closed`` may not decide a batch any more."""

    batch: int
    job: str
    run: str
    generation: int
    transactions: tuple[TaskTransaction, ...] = ()
    closed: int = -1

    def handles(self, names: SinkNames) -> dict[TransactionHandle, TaskTransaction]:
        return {one.handle(names, self.generation): one for one in self.transactions}

    def to_value(self) -> MarkValue:
        document = {
            "version": 1,
            "batch": self.batch,
            "job": self.job,
            "run": self.run,
            "generation": self.generation,
            "transactions": [one.to_json() for one in self.transactions],
            "closed": self.closed,
        }
        return MarkValue(self.batch + 1, json.dumps(document, separators=(",", ":")))


def read_mark(value: MarkValue | None) -> BatchMark | None:
    """`BatchMarkError` for a mark of another program, or of a newer version."""
    if value is None:
        return None
    try:
        document = json.loads(value.text)
        if document["version"] != 1:
            raise ValueError(f"version {document['version']}")
        return BatchMark(
            batch=int(document["batch"]),
            job=str(document["job"]),
            run=str(document["run"]),
            generation=int(document["generation"]),
            transactions=tuple(TaskTransaction.from_json(one) for one in document["transactions"]),
            closed=int(document["closed"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise BatchMarkError(f"the mark {value.text[:200]!r} is not of this sink: {error!r}") from error


def generation_for(mark: BatchMark | None, run: str) -> int:
    """The generation of a run that begins to write, as it sees the mark."""
    if mark is None:
        return 0
    if mark.run == run and mark.generation > mark.closed:
        return mark.generation
    return max(mark.generation, mark.closed) + 1


def is_decided(mark: BatchMark | None, batch: int, *, consecutive: bool) -> bool:
    """Whether the batch needs no more writing.

    Batches of a stream are ``consecutive``: only the last one is ever repeated, so an older one is an error. The
    versions of an application only rise.
    """
    if mark is None or mark.batch < batch:
        return False
    if consecutive and mark.batch > batch:
        raise BatchMarkError(
            f"batch {batch} is over: the mark is of batch {mark.batch}. A task of a lost run has come back, or the "
            "checkpoint is older than the topics: start the query with a new one"
        )
    return True


def missing_before(mark: BatchMark | None, batch: int) -> str | None:
    """Why it is not certain that all batches of a stream before ``batch`` are in the topics; None if it is."""
    last = _NO_BATCH if mark is None else mark.batch
    if last == batch - 1:
        return None
    found = "there is none" if mark is None or last == _NO_BATCH else f"it is of batch {last}"
    return (
        f"before batch {batch} the mark must be of batch {batch - 1}, and {found}. Brokers forget a mark that did not "
        "change for offsets.retention.minutes (7 days). If the batches before are in the topics, go on with "
        "failOnDataLoss=false"
    )


def decide(mark: BatchMark | None, proposal: BatchMark) -> BatchMark:
    """The mark that makes the proposal's batch decided; the batch must not be (`is_decided`)."""
    wanted = generation_for(mark, proposal.run)
    if proposal.generation != wanted:
        raise BatchMarkError(
            f"batch {proposal.batch} was written in generation {proposal.generation}, and now {wanted} is due: it was "
            "aborted, or another run of the query writes, too"
        )
    return proposal


def abort(mark: BatchMark | None, proposal: BatchMark) -> BatchMark | None:
    """The mark after which the proposal's generation can never be decided; None if its batch has been decided."""
    if mark is None:
        mark = BatchMark(batch=_NO_BATCH, job="", run="", generation=0)
    if mark.batch >= proposal.batch:
        return None
    return replace(mark, closed=max(mark.closed, proposal.generation))

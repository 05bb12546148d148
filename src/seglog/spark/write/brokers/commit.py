"""Makes the transactions of a job visible together, or none of them.

With a mark the decision is durable first: then every transaction that it names will be committed, now or by the next
reader. A driver that dies in between leaves either nothing, or a decision that the repeated batch finds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.kept_connections import connections
from seglog.client.produce.mark_value import MarkValue
from seglog.client.produce.transaction import (
    TransactionHandle,
    end_transactions,
    endangered_transactions,
    open_transactions,
)
from seglog.client.retries import Retries
from seglog.core.clock import SystemClock
from seglog.core.errors import ProducerFencedError, RequestFailedError
from seglog.spark.write.brokers import batch_mark
from seglog.spark.write.brokers.batch_mark import BatchMark, BatchMarkError, is_decided, read_mark
from seglog.spark.write.brokers.names import SinkNames
from seglog.spark.write.brokers.task import BatchId, TaskResult, check_before, mark_of, timeout_hint
from seglog.spark.write.write_options import BrokerOptions

_log: Final = logging.getLogger("seglog.spark")
_MARGIN_MS: Final = 5_000
"""A transaction that times out sooner than this is not committed: that it ends in time would be luck."""
_SWEEP_SECONDS: Final = 10.0
"""How often transactions are looked for that killed tasks have left open. Until then readers wait for them."""
_LAST_OPENED_SECONDS: Final = 6.0
"""So long after a job has failed its other tasks may still open transactions. Spark looks every 2 seconds for Python
workers of tasks that it has cancelled, and kills them 2 seconds later (``PythonRunner.MonitorThread``)."""
_MOST_SWEPT: Final = 1000
_swept: Final[dict[tuple[SinkNames, int], float]] = {}


class JobCommit:
    """The end of one job, in the driver's process. ``id_`` is None for a job that no mark remembers."""

    def __init__(self, brokers: BrokerOptions, names: SinkNames, id_: BatchId | None, job: str) -> None:
        self._brokers = brokers
        self._names = names
        self._id = id_
        self._job = job

    @property
    def _cluster(self) -> ClusterConnections:
        return connections(self._brokers.client)

    def commit(self, results: Sequence[TaskResult]) -> None:
        """Commit what the tasks have written, or what an earlier attempt at this batch has.

        After an error nothing is visible, or the decision is durable and `commit` of the repeated batch completes it.
        Raises `BatchMarkError`, `ProducerFencedError` and other `RequestFailedError`.
        """
        generation = max((result.generation for result in results), default=0)
        proposal = self._proposal(results, generation)
        coordinators = _coordinators(proposal, results, self._names)
        handles = proposal.handles(self._names)
        if self._id is None:
            self._check_alive(list(handles), coordinators)
            self._end(proposal, coordinators)
        else:
            decided = self._decide(self._id, proposal, handles, coordinators, results)
            if decided.job != self._job and handles:
                end_transactions(self._cluster, list(handles), commit=False, coordinators=coordinators)
            self._end(decided, coordinators)
        self._sweep(generation)

    def abort_unfinished(self) -> None:
        """Abort the transactions that cancelled tasks of this job open within the next seconds.

        For a job that no mark remembers: only the timeout would end these transactions.
        """
        retries = Retries(self._brokers.client, _LAST_OPENED_SECONDS)
        with suppress(RequestFailedError):
            while True:
                self._abort_left(0)
                retries.wait("the time is over")

    def abort(self, results: Iterable[TaskResult]) -> None:
        """Abort what the tasks have written, unless it has been decided."""
        known = list(results)
        generation = max((result.generation for result in known), default=0)
        proposal = self._proposal(known, generation)
        if not proposal.transactions:
            return
        if self._id is not None:
            register = mark_of(self._brokers, self._names)
            mark = read_mark(register.read())
            if mark is None or mark.batch < proposal.batch:
                closed = register.change(lambda value: _value(batch_mark.abort(read_mark(value), proposal)))
                mark = read_mark(closed)
            if mark is not None and mark.job == self._job:
                return
        coordinators = _coordinators(proposal, known, self._names)
        end_transactions(self._cluster, list(proposal.handles(self._names)), commit=False, coordinators=coordinators)

    def _proposal(self, results: Iterable[TaskResult], generation: int) -> BatchMark:
        return BatchMark(
            batch=0 if self._id is None else self._id.batch,
            job=self._job,
            run=self._job if self._id is None else self._id.run,
            generation=generation,
            transactions=tuple(result.transaction for result in results if result.transaction is not None),
        )

    def _decide(
        self,
        id_: BatchId,
        proposal: BatchMark,
        handles: Mapping[TransactionHandle, object],
        coordinators: Mapping[str, HostPort],
        results: Sequence[TaskResult],
    ) -> BatchMark:
        """The mark of this batch, which is durable: the proposal, or what was decided before."""
        register = mark_of(self._brokers, self._names)
        if results and all(result.decided for result in results):
            mark = read_mark(register.read())
            if mark is not None and is_decided(mark, id_.batch, consecutive=id_.consecutive):
                return mark
            raise BatchMarkError(f"the mark of batch {id_.batch} existed, and is gone: {mark}")

        def choose(value: MarkValue | None) -> MarkValue | None:
            mark = read_mark(value)
            if is_decided(mark, id_.batch, consecutive=id_.consecutive):
                return None
            problem = check_before(mark, id_, self._brokers)
            if problem is not None:
                _log.warning("seglog: %s", problem)
            chosen = batch_mark.decide(mark, proposal)
            self._check_alive(list(handles), coordinators)
            return chosen.to_value()

        found = read_mark(register.change(choose))
        assert found is not None
        return found

    def _check_alive(self, handles: Sequence[TransactionHandle], coordinators: Mapping[str, HostPort]) -> None:
        now = SystemClock().now_ms()
        endangered = endangered_transactions(self._cluster, handles, coordinators, now_ms=now, margin_ms=_MARGIN_MS)
        for handle, reason in endangered.items():
            name = handle.transactional_id
            hint = timeout_hint(self._brokers)
            raise ProducerFencedError(f"transactional id {name} cannot be committed: {reason}. {hint}")

    def _end(self, decided: BatchMark, coordinators: Mapping[str, HostPort]) -> None:
        """Commit the transactions of a decided batch. `BatchMarkError` names what cannot be committed any more."""
        handles = decided.handles(self._names)
        lost = end_transactions(self._cluster, list(handles), commit=True, coordinators=coordinators)
        if not lost:
            return
        parts = [f"{(task := handles[one]).records} records of task {task.task}: {why}" for one, why in lost.items()]
        message = (
            f"batch {decided.batch} was decided, and {len(lost)} of its {len(handles)} transactions cannot be "
            f"committed any more, so these records are missing: {'; '.join(parts[:5])}. {timeout_hint(self._brokers)}"
        )
        if self._brokers.fail_on_data_loss:
            raise BatchMarkError(f"{message}. Write them by other means, then continue with failOnDataLoss=false")
        _log.warning("seglog: %s", message)

    def _sweep(self, generation: int) -> None:
        """Abort what killed tasks of this job, and earlier runs, have left open: readers wait for it.

        The epoch in each request guards it: a transaction that has begun since is not touched.
        """
        now = SystemClock().monotonic()
        key = (self._names, generation)
        if now - _swept.get(key, -_SWEEP_SECONDS) < _SWEEP_SECONDS:
            return
        _swept.pop(key, None)
        _swept[key] = now
        while len(_swept) > _MOST_SWEPT:
            _swept.pop(next(iter(_swept)))
        try:
            self._abort_left(generation)
        except RequestFailedError as error:
            _log.info("seglog: transactions that tasks have left open end by their timeout: %s", error)

    def _abort_left(self, generation: int) -> None:
        found = open_transactions(self._cluster, self._names.tasks)
        own = [self._names.generation_of(one.transactional_id) for one in found]
        left = [one for one, its in zip(found, own, strict=True) if its is not None and its <= generation]
        if left:
            end_transactions(self._cluster, left, commit=False)


def _coordinators(proposal: BatchMark, results: Iterable[TaskResult], names: SinkNames) -> dict[str, HostPort]:
    return {
        result.transaction.handle(names, proposal.generation).transactional_id: result.coordinator
        for result in results
        if result.transaction is not None and result.coordinator is not None
    }


def _value(mark: BatchMark | None) -> MarkValue | None:
    return None if mark is None else mark.to_value()

"""The sink without Spark: tasks and commits of a query as Spark calls them, in threads that stand for processes.

A thread may die at any request that it sends, before or after the broker has carried it out. Or it stands still there,
and goes on when others have long continued.
"""

from __future__ import annotations

import itertools
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from seglog.client import kept_connections as broker_connections
from seglog.client.cluster_connections import ClusterConnections
from seglog.client.connection import BrokerConnection
from seglog.client.produce.mark_topic import MarkTopic
from seglog.client.produce.transaction import open_transactions
from seglog.core.errors import SeglogError
from seglog.core.types import TopicPartition
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message
from seglog.spark.write.brokers import commit, process_ids
from seglog.spark.write.brokers.commit import JobCommit
from seglog.spark.write.brokers.names import SinkNames
from seglog.spark.write.brokers.task import BatchId, TaskResult, write_in_transaction
from seglog.spark.write.write_options import BrokerOptions, WriteOptions, parse_write_options
from tests.client.produce.written import config, numbers
from tests.kit.waiting import wait_until

SECONDS: Final = 60


class KilledError(BaseException):
    """The process has died. No error handler may catch this."""


class Steps:
    """Counts what a thread sends, and stops it at one step. ``sent``: whether that request still arrives.

    A step that ``waits`` stands still until `go_on`.
    """

    def __init__(self, stop_at: int | None = None, *, sent: bool = False, waits: bool = False) -> None:
        self.count = 0
        self._stop_at = stop_at
        self._sent = sent
        self._waits = waits
        self._is_dead = False
        self.stands = threading.Event()
        self._may_go_on = threading.Event()

    def go_on(self) -> None:
        self._may_go_on.set()

    def before_send(self) -> None:
        if self._is_dead:
            raise KilledError
        self.count += 1
        if self.count - 1 == self._stop_at and (self._waits or not self._sent):
            self._stop()

    def before_receive(self) -> None:
        if self._is_dead or (self.count - 1 == self._stop_at and self._sent and not self._waits):
            self._is_dead = True
            raise KilledError

    def _stop(self) -> None:
        self.stands.set()
        if not self._waits:
            self._is_dead = True
            raise KilledError
        assert self._may_go_on.wait(SECONDS)


_steps: Final = threading.local()
_processes: Final = itertools.count()


def _process() -> int:
    """A number of this thread that no other one ever has."""
    if not hasattr(_steps, "process"):
        _steps.process = next(_processes)
    number: int = _steps.process
    return number


@contextmanager
def steps(wanted: Steps) -> Iterator[Steps]:
    """Install the steps for this thread inside the ``with``."""
    _steps.now = wanted
    try:
        yield wanted
    finally:
        _steps.now = None


def steps_now() -> Steps | None:
    """Those of this thread."""
    found: Steps | None = getattr(_steps, "now", None)
    return found


@contextmanager
def threads_as_processes() -> Iterator[None]:
    """Each thread has its own connections and transactional ids, and its own `Steps`."""
    send, receive = BrokerConnection.send, BrokerConnection.receive

    def counted_send(
        self: BrokerConnection, key: ApiKey, contents: Mapping[str, Any], *, most: int | None = None
    ) -> None:
        now = steps_now()
        if now is not None:
            now.before_send()
        send(self, key, contents, most=most)

    def counted_receive(self: BrokerConnection) -> Message:
        now = steps_now()
        if now is not None:
            now.before_receive()
        return receive(self)

    with pytest.MonkeyPatch.context() as patch:
        for module in (broker_connections, process_ids):
            patch.setattr(f"{module.__name__}.os.getpid", _process)
        patch.setattr(BrokerConnection, "send", counted_send)
        patch.setattr(BrokerConnection, "receive", counted_receive)
        patch.setattr(commit, "_SWEEP_SECONDS", 0.0)
        yield
        broker_connections.close_all()


def rows(values: Sequence[int], partition: int | None = None) -> pa.RecordBatch:
    """With a key, so that each value has its place, or all in one partition."""
    columns: dict[str, pa.Array] = {
        "key": pa.array([b"%d" % value for value in values], pa.binary()),
        "value": pa.array([b"%d" % value for value in values], pa.binary()),
    }
    if partition is not None:
        columns["partition"] = pa.array([partition] * len(values), pa.int32())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class SinkRun:
    """A run of query ``query``: its process is over with the object. ``tasks`` are the values that each task writes.

    With the option ``txnVersion`` it is a batch job of the application ``query``.
    """

    def __init__(self, bootstrap: str, query: str, **options: str) -> None:
        named = {name.replace("__", "."): text for name, text in options.items()}
        if "txnVersion" in named:
            named["txnAppId"] = query
        self.options: WriteOptions = parse_write_options(
            {
                "kafka.bootstrap.servers": bootstrap,
                "topic": "t",
                "kafka.delivery.timeout.ms": "20000",
                "kafka.request.timeout.ms": "20000",
                **named,
            }
        )
        assert self.options.brokers is not None
        self.brokers: BrokerOptions = self.options.brokers
        self._is_stream = self.options.transaction is None
        self.names = SinkNames(self.brokers.prefix, query if self._is_stream else f"txn-{query}")
        self.run = uuid.uuid4().hex

    def task(self, batch: int, job: str, task: int, values: Sequence[int]) -> TaskResult:
        id_ = self._id(batch)
        return write_in_transaction(self.options, [rows(values)], task=task, job=job, names=self.names, id_=id_)

    def end(self, batch: int, job: str) -> JobCommit:
        return JobCommit(self.brokers, self.names, self._id(batch), job)

    def _id(self, batch: int) -> BatchId:
        return BatchId(names=self.names, batch=batch, run=self.run, consecutive=self._is_stream)

    def batch(self, number: int, tasks: Sequence[Sequence[int]]) -> None:
        """All of a micro-batch. As Spark does, it is aborted if it fails."""
        job = uuid.uuid4().hex
        results: list[TaskResult] = []
        try:
            for task, values in enumerate(tasks):
                results.append(self.task(number, job, task, values))
            self.end(number, job).commit(results)
        except Exception:
            self.end(number, job).abort(results)
            raise


TASKS: Final[Sequence[Sequence[int]]] = ([1, 2, 3], [4, 5], [])
NEXT: Final[Sequence[Sequence[int]]] = ([6], [7, 8], [9])
ALL: Final = list(range(1, 10))
"""The values of both batches."""


def written(bootstrap: str, topic: str) -> list[int]:
    """The values that a read_committed reader sees in two partitions, up to the last stable offset."""
    return sorted(value for number in range(2) for value in numbers(bootstrap, TopicPartition(topic, number)))


def left_open(bootstrap: str, query: str) -> list[str]:
    """Transactions of the query that are not ended."""
    with ClusterConnections(config(bootstrap)) as cluster:
        return [one.transactional_id for one in open_transactions(cluster, f"seglog-{query}-")]


def apart(call: Callable[[], object], at: Steps) -> threading.Thread:
    """Run ``call`` in a thread that stands for another process: it may die, and its errors are ignored."""

    def live() -> None:
        with steps(at), suppress(KilledError, SeglogError):
            call()

    thread = threading.Thread(target=live)
    thread.start()
    return thread


def join(thread: threading.Thread) -> None:
    thread.join(SECONDS)
    assert not thread.is_alive()


def _count(bootstrap: str, new_topic: Callable[[], str], query: str) -> int:
    """The requests of a driver and its tasks for the batch of `TASKS`: the fewer of two runs, since one may repeat
    some."""
    counts = []
    for number in range(2):
        counted = Steps()
        run = SinkRun(bootstrap, f"{query}-count-{number}", topic=new_topic())
        join(apart(partial(run.batch, 0, TASKS), counted))
        counts.append(counted.count)
    assert min(counts) > 20
    return min(counts)


def check_deaths(
    bootstrap: str,
    new_topic: Callable[[], str],
    query: str,
    *,
    sent: bool,
    chosen: slice,
    timeout_ms: int | None = None,
) -> None:
    """A driver dies with its tasks at each of the chosen requests, before or after it has been ``sent``. The batch is
    repeated with other tasks, as nothing says that they are the same.

    ``timeout_ms`` is that of transactions, where the broker cannot list what is left open: then it ends by itself.
    """
    options = {} if timeout_ms is None else {"kafka__transaction__timeout__ms": str(timeout_ms)}
    count = _count(bootstrap, new_topic, query)
    for stop_at in range(count)[chosen]:
        name, topic = f"{query}-{stop_at}", new_topic()
        first = SinkRun(bootstrap, name, topic=topic, **options)
        join(apart(partial(first.batch, 0, TASKS), Steps(stop_at, sent=sent)))
        again = SinkRun(bootstrap, name, topic=topic, **options)
        again.batch(0, ([5, 4, 3], [2, 1]))
        again.batch(1, NEXT)
        if timeout_ms is not None:
            wait_until(partial(_is_whole, bootstrap, topic), "transactions to time out", SECONDS)
        assert written(bootstrap, topic) == ALL, f"killed at request {stop_at} of {count}"
        assert left_open(bootstrap, name) == [], stop_at


def _is_whole(bootstrap: str, topic: str, size: int = len(ALL)) -> bool:
    return len(written(bootstrap, topic)) >= size


def check_versions(
    bootstrap: str, new_topic: Callable[[], str], query: str, *, chosen: slice, timeout_ms: int | None = None
) -> None:
    """A job with a version dies at each of the chosen requests. It is repeated, and once more when the broker has
    deleted its mark (``offsets.retention.minutes``). ``timeout_ms`` as in `check_deaths`."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    options = {} if timeout_ms is None else {"kafka__transaction__timeout__ms": str(timeout_ms)}

    def job(name: str, topic: str) -> SinkRun:
        run = SinkRun(bootstrap, name, topic=topic, txnVersion="7", **options)
        with ClusterConnections(config(bootstrap)) as cluster:
            MarkTopic(cluster, run.brokers.txn_topic or "").prepare()
        return run

    counted = Steps()
    join(apart(partial(job(f"{query}-count", new_topic()).batch, 7, TASKS), counted))
    for stop_at in range(counted.count)[chosen]:
        name, topic = f"{query}-{stop_at}", new_topic()
        join(apart(partial(job(name, topic).batch, 7, TASKS), Steps(stop_at)))
        job(name, topic).batch(7, ([5, 4, 3], [2, 1]))
        (deleted,) = admin.delete_consumer_groups([f"seglog-txn-{name}"]).values()
        deleted.result(SECONDS)
        job(name, topic).batch(7, TASKS)
        if timeout_ms is not None:
            wait_until(partial(_is_whole, bootstrap, topic, 5), "transactions to time out", SECONDS)
        found = written(bootstrap, topic)
        assert found == [1, 2, 3, 4, 5], f"killed at request {stop_at} of {counted.count}: {found}"


def check_returns(bootstrap: str, new_topic: Callable[[], str], query: str, *, chosen: slice) -> None:
    """A driver stands still at each of the chosen requests, while another run repeats its batch and has written the
    next one; then it goes on to its end."""
    for stop_at in range(_count(bootstrap, new_topic, query))[chosen]:
        name, topic = f"{query}-{stop_at}", new_topic()
        at = Steps(stop_at, waits=True)
        first = SinkRun(bootstrap, name, topic=topic)
        zombie = apart(partial(first.batch, 0, TASKS), at)
        assert at.stands.wait(SECONDS)
        again = SinkRun(bootstrap, name, topic=topic)
        again.batch(0, ([5, 4, 3], [2, 1]))
        job = uuid.uuid4().hex
        results = [again.task(1, job, task, values) for task, values in enumerate(NEXT)]
        at.go_on()
        join(zombie)
        again.end(1, job).commit(results)
        again.batch(2, ([10],))
        assert written(bootstrap, topic) == [*ALL, 10], f"stopped at request {stop_at}"


def check_twins(bootstrap: str, new_topic: Callable[[], str], query: str) -> None:
    """A speculative attempt of a task stands still at each of its requests, until the next batch is written."""
    counted = Steps()
    counting = SinkRun(bootstrap, f"{query}-count", topic=new_topic())
    join(apart(partial(counting.task, 0, "job", 0, [1]), counted))
    for stop_at in range(counted.count):
        name, topic = f"{query}-{stop_at}", new_topic()
        run = SinkRun(bootstrap, name, topic=topic)
        job, later = uuid.uuid4().hex, uuid.uuid4().hex
        at = Steps(stop_at, waits=True)
        twin = apart(partial(run.task, 0, job, 0, [1, 2]), at)
        assert at.stands.wait(SECONDS)
        run.end(0, job).commit([run.task(0, job, 0, [1, 2]), run.task(0, job, 1, [3])])
        results = [run.task(1, later, 0, [4])]
        at.go_on()
        join(twin)
        run.end(1, later).commit(results)
        run.batch(2, ([5],))
        assert written(bootstrap, topic) == [1, 2, 3, 4, 5], stop_at
        assert left_open(bootstrap, name) == [], stop_at

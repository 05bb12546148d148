"""Stock clients that use transactions all the time, whatever happens to the brokers: the workload of a storm.

Producers have no delivery callbacks, and do not learn offsets. confluent-kafka 2.16 raises the fatal error of a fenced
producer inside of `flush`, `commit_transaction` and `abort_transaction`, and calls the remaining delivery callbacks
while that exception is set: whatever a callback then does ends in SystemError. A commit fails if any delivery does, and
the final polls tell the offsets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
    admin,
)

from seglog.client.bootstrap import parse_bootstrap
from seglog.client.transactions import ActiveProducer, TransactionAdmin
from seglog.core.errors import SeglogError
from tests.cluster_run.history import FAIL, INFO, OK, History, Key, Op, Outcome, Read, Recorder, Send
from tests.cluster_run.reading import PATIENT, reads_of
from tests.kit.service import Service
from tests.kit.waiting import wait_until

GROUP: Final = "processors"
INPUT: Final = "in"
OUTPUT: Final = "out"
TOPICS: Final[Mapping[str, int]] = {INPUT: 2, OUTPUT: 3}
"""Partitions by topic."""
SECONDS: Final = 90.0
_IDS: Final = ("a", "b", "c")
_TIMEOUT_MS: Final = 8_000
_CALL_SECONDS: Final = 10.0
"""Of one call of a client."""
_DEADLINE_SECONDS: Final = 20.0
"""Of an operation: calls are repeated as long as their error can be retried. After that its outcome is unknown."""
_HANGING_MS: Final = 30_000
"""After so long a transaction hangs that no coordinator knows."""
_ADMIN: Any = admin
_REWINDS: Final = 3
_REWIND_SECONDS: Final = 3.0
_ABORTS: Final = 0.2
_STEALS: Final = 0.05
_PLACES: Final = [TopicPartition(topic, number) for topic, count in TOPICS.items() for number in range(count)]


class TransactionWorkload(Service):
    """``with TransactionWorkload(bootstrap, seed) as load``: appenders, which share transactional ids and write to all
    partitions, and processors, which read ``in`` and write ``out`` as members of a group; then `finish`. ``wrong``:
    answers that no client must get. ``hanging``: transactions that no coordinator would have ended, and `finish` has
    aborted, as an operator does."""

    def __init__(self, bootstrap: str, seed: int, *, pace: float = 0.01) -> None:
        self.history = History()
        self.wrong: list[str] = []
        self.hanging: list[ActiveProducer] = []
        self.committed = self.processings = 0
        self._bootstrap = bootstrap
        self._pace = pace
        self._is_over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            *(self._thread(partial(self._append, f"w{at}", Random(seed + at))) for at in range(3)),
            *(self._thread(partial(self._process, f"x{at}", Random(seed + 10 + at))) for at in range(2)),
            self._thread(self._read),
        ]

    def _thread(self, act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                act()
            except Exception as error:  # in its own thread: `finish` is in another
                self.wrong.append(f"{type(error).__name__}: {error}")
                raise

        return threading.Thread(target=run, daemon=True)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def leave(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)

    def wait_for_more(self, count: int = 5) -> None:
        """Wait until ``count`` further transactions are committed, two of them by processors."""
        wanted, processings = self.committed + count, self.processings + 2

        def are_there() -> bool:
            assert not self.wrong, self.wrong
            return self.committed >= wanted and self.processings >= processings

        wait_until(are_there, "commits", SECONDS)

    def finish(self) -> dict[Key, int]:
        """Return the group's offsets, after all clients have ended, every transaction is decided, and a new client has
        read everything from the beginning."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(2 * SECONDS)
            assert not thread.is_alive(), "a client does not end"
        self._wait_for_decisions()
        self._read_all()
        return self._offsets()

    def _done(self, op: Op) -> None:
        self.history.add(op)
        if op.outcome == OK:
            with self._lock:
                self.committed += 1
                self.processings += bool(op.group)

    # Clients

    def _append(self, name: str, rng: Random) -> None:
        """Some of what it read is in each transaction. Now and then it takes another id: its last owner is fenced."""
        recorder, consumer = Recorder(self.history, name), self._consumer(name)
        consumer.assign([TopicPartition(one.topic, one.partition, 0) for one in _PLACES])
        producer: _Producer | None = None
        while not self._is_over.is_set():
            if producer is None or rng.random() < _STEALS:
                producer = _Producer.begin(self._bootstrap, rng.choice(_IDS), self._is_over)
                continue
            began, transaction = recorder.now(), _Transaction(recorder)
            outcome: Outcome = FAIL
            try:
                producer.begin_transaction()
                for _ in range(rng.randrange(1, 4)):
                    for place in rng.sample(_PLACES, rng.randrange(1, len(_PLACES) + 1)):
                        transaction.send(producer, place)
                    if rng.random() < 0.4:
                        transaction.steps += reads_of(consumer.consume(20, 0.01), self.wrong)
                outcome = producer.end(commit=rng.random() > _ABORTS)
            except KafkaException as error:
                outcome = producer.gave_up(error)
            self._done(transaction.op(outcome, began))
            if producer.is_over:
                producer = None
            self._is_over.wait(self._pace)
        consumer.close()

    def _process(self, name: str, rng: Random) -> None:
        """Consume, produce and commit offsets in one transaction (KIP-447). If it is not committed, read from the
        group's offsets again."""
        recorder, consumer = Recorder(self.history, name), self._consumer(name, GROUP)
        state = _Positions(consumer)
        producer: _Producer | None = None
        while not self._is_over.is_set():
            if producer is None:
                producer = _Producer.begin(self._bootstrap, name, self._is_over)
                continue
            began = recorder.now()
            reads = reads_of(consumer.consume(10, 0.1), self.wrong)
            if not reads:
                continue
            transaction = _Transaction(recorder)
            transaction.steps += reads
            outcome: Outcome = FAIL
            try:
                producer.begin_transaction()
                for number in rng.sample(range(TOPICS[OUTPUT]), 2):
                    transaction.send(producer, TopicPartition(OUTPUT, number))
                positions = [TopicPartition(INPUT, number, at) for number, at in _ends(reads).items()]
                producer.send_offsets(positions, consumer.consumer_group_metadata())
                outcome = producer.end(commit=rng.random() > _ABORTS)
            except KafkaException as error:
                outcome = producer.gave_up(error)
            self._done(transaction.op(outcome, began, is_fresh=state.take_fresh(), group=GROUP))
            if producer.is_over:
                producer = None
            if outcome != OK:
                state.rewind()
        consumer.close()

    def _read(self) -> None:
        """Everything, as it comes."""
        recorder, consumer = Recorder(self.history, "reader"), self._consumer("reader")
        consumer.assign([TopicPartition(one.topic, one.partition, 0) for one in _PLACES])
        is_fresh = True
        while not self._is_over.is_set():
            began = recorder.now()
            reads = reads_of(consumer.consume(100, 0.1), self.wrong)
            if reads:
                recorder.polled(began, reads, is_fresh=is_fresh)
                is_fresh = False
        consumer.close()

    def _consumer(self, name: str, group: str = "none", *, tells_end: bool = False) -> Consumer:
        return Consumer(
            {
                **PATIENT,
                "bootstrap.servers": self._bootstrap,
                "client.id": name,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 20,
                "enable.partition.eof": tells_end,
            }
        )

    # The end

    def _wait_for_decisions(self) -> None:
        """Until the last stable offset is the high watermark: transactions that were left are aborted by then."""
        client = admin.AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
        latest = _ADMIN.OffsetSpec.latest()

        answer = ""

        def ends(level: IsolationLevel) -> dict[Key, int]:
            futures = client.list_offsets(dict.fromkeys(_PLACES, latest), isolation_level=level)
            return {_key(one): future.result(_CALL_SECONDS).offset for one, future in futures.items()}

        def are_decided() -> bool:
            nonlocal answer
            try:
                stable, high = ends(IsolationLevel.READ_COMMITTED), ends(IsolationLevel.READ_UNCOMMITTED)
            except KafkaException as error:
                answer = str(error)
                return False
            answer = f"last stable offsets {stable}, high watermarks {high}"
            if stable != high:
                self._abort_hanging()
            return stable == high

        wait_until(are_decided, lambda: f"every transaction to be decided: {answer}", SECONDS, every=0.5)

    def _abort_hanging(self) -> None:
        """As ``seglog transactions find-hanging`` and ``abort`` do."""
        with (
            suppress(SeglogError, OSError),
            TransactionAdmin(parse_bootstrap(self._bootstrap), _CALL_SECONDS) as client,
        ):
            now_ms = int(time.time() * 1000)
            for one in client.hanging(client.all_places(None, None), older_than_ms=_HANGING_MS, now_ms=now_ms):
                client.abort(one)
                self.hanging.append(one)

    def _read_all(self) -> None:
        recorder, consumer = Recorder(self.history, "final"), self._consumer("final", tells_end=True)
        consumer.assign([TopicPartition(one.topic, one.partition, 0) for one in _PLACES])
        left = {(one.topic, one.partition) for one in _PLACES}
        deadline = time.monotonic() + SECONDS
        is_fresh = True
        while left:
            assert time.monotonic() < deadline, f"final polls do not come to the end of {left}"
            began, messages = recorder.now(), consumer.consume(1000, 0.2)
            recorder.polled(began, reads_of(messages, self.wrong), is_fresh=is_fresh, is_final=True)
            is_fresh = False
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    left.discard((str(message.topic()), int(message.partition() or 0)))
        consumer.close()

    def _offsets(self) -> dict[Key, int]:
        consumer = self._consumer("offsets", GROUP)
        found: Sequence[TopicPartition] = ()
        answer = ""

        def are_told() -> bool:
            nonlocal found, answer
            try:
                found = consumer.committed([TopicPartition(INPUT, at) for at in range(TOPICS[INPUT])], timeout=20.0)
            except KafkaException as error:
                answer = str(error)
                self._abort_hanging()
                return False
            answer = str(found)
            are_stable = all(one.error is None for one in found)
            if not are_stable:
                self._abort_hanging()
            return are_stable

        wait_until(are_told, lambda: f"the group's offsets: {answer}", SECONDS)
        consumer.close()
        return {_key(one): max(one.offset, 0) for one in found}


class _Transaction:
    """The steps of one transaction."""

    def __init__(self, recorder: Recorder) -> None:
        self.steps: list[Send | Read] = []
        self._recorder = recorder

    def send(self, producer: _Producer, place: TopicPartition) -> None:
        value = self._recorder.value()
        self.steps.append(Send(_key(place), value))
        producer.send(place, value)

    def op(self, outcome: Outcome, began: float, *, is_fresh: bool = False, group: str = "") -> Op:
        return Op(
            client=self._recorder.client,
            steps=tuple(self.steps),
            outcome=outcome,
            began=began,
            ended=self._recorder.now(),
            is_transaction=True,
            is_fresh=is_fresh,
            group=group,
        )


class _Producer:
    """A transactional producer. It ``is_over`` when it is fenced, or an operation came to no end in time."""

    def __init__(self, producer: Producer) -> None:
        self.is_over = False
        self._producer = producer
        self._is_committing = False

    @classmethod
    def begin(cls, bootstrap: str, transactional_id: str, is_over: threading.Event) -> _Producer | None:
        """None if it is fenced before it has an epoch."""
        producer = Producer(
            {
                **PATIENT,
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": _TIMEOUT_MS,
                "message.timeout.ms": _TIMEOUT_MS,
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": 1,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
            }
        )
        while not is_over.is_set():
            try:
                producer.init_transactions(_CALL_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable():
                    return None
            else:
                return cls(producer)
        return None

    def begin_transaction(self) -> None:
        self._is_committing = False
        self._producer.begin_transaction()

    def send(self, place: TopicPartition, value: str) -> None:
        self._producer.produce(place.topic, value.encode(), partition=place.partition)

    def send_offsets(self, positions: list[TopicPartition], metadata: Any) -> None:
        """Raise `KafkaException`, also after the deadline.

        librdkafka 2.16 ignores the timeout of this call, and does not return from it while the group's coordinator is
        away (issues 5456 and 5511 there). It gets a thread that can be left behind, and the producer with it."""
        errors: list[KafkaException] = []

        def send() -> None:
            try:
                _repeated(lambda: self._producer.send_offsets_to_transaction(positions, metadata, _CALL_SECONDS))
            except KafkaException as error:
                errors.append(error)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        thread.join(_DEADLINE_SECONDS)
        if thread.is_alive():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if errors:
            raise errors[0]

    def end(self, *, commit: bool) -> Outcome:
        """Raises `KafkaException`."""
        if commit:
            self._producer.flush(_CALL_SECONDS)
            self._is_committing = True
            _repeated(lambda: self._producer.commit_transaction(_CALL_SECONDS))
            return OK
        self._abort()
        return FAIL

    def gave_up(self, error: KafkaException) -> Outcome:
        """The outcome of the transaction that ``error`` has ended. Abort it if the client can; otherwise the producer
        is over, and the next one of its id aborts it."""
        self.is_over = True
        if error.args[0].txn_requires_abort():
            with suppress(KafkaException):
                self._abort()
                self.is_over = False
        return INFO if self._is_committing else FAIL

    def _abort(self) -> None:
        _repeated(lambda: self._producer.abort_transaction(_CALL_SECONDS))


def _repeated(call: Callable[[], None]) -> None:
    """Call until it succeeds, its error cannot be retried, or the deadline is over."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while True:
        try:
            call()
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
        else:
            return


class _Positions:
    """From which offsets a member of the group continues."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._is_fresh = True
        self._subscribe()

    def _subscribe(self) -> None:
        changed = self._changed
        self._consumer.subscribe([INPUT], on_assign=changed, on_revoke=changed, on_lost=changed)

    def _changed(self, _: Consumer, __: Sequence[TopicPartition]) -> None:
        self._is_fresh = True

    def take_fresh(self) -> bool:
        fresh, self._is_fresh = self._is_fresh, False
        return fresh

    def rewind(self) -> None:
        """Go back to the committed offsets. If the coordinator does not return them, join the group anew, which begins
        there."""
        self._is_fresh = True
        for _ in range(_REWINDS):
            try:
                found = self._consumer.committed(self._consumer.assignment(), timeout=_REWIND_SECONDS)
            except KafkaException:
                continue
            if all(one.error is None for one in found):
                places = [TopicPartition(one.topic, one.partition, max(one.offset, 0)) for one in found]
                self._consumer.assign(places)
                return
        self._consumer.unsubscribe()
        self._subscribe()


def _ends(reads: Sequence[Read]) -> dict[int, int]:
    """Where to read on, by partition of the input."""
    return {int(read.key.rpartition("-")[2]): read.offset + 1 for read in reads}


def _key(place: TopicPartition) -> Key:
    return f"{place.topic}-{place.partition}"

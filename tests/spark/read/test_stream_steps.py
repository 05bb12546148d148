"""A stream whose topic is deleted, made again, emptied or truncated before any step of a micro-batch. No JVM.

A step is an access to a file or a request to a broker, by the driver or by a task. Before one of them, chosen by
number, the event happens. Another topic of the pattern must arrive whole, no other error than `DataLossError` may be
raised, every record that is missing must have been announced, and every record must be of the topic that was there when
its batch was planned: the key of a record says which one of that name it was.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

import seglog
from seglog.client.connection import BrokerConnection
from seglog.client.kept_connections import close_all
from seglog.core.errors import DataLossError
from seglog.core.fs import Fs, OsFs
from seglog.sources.directories.source import DirectorySource
from seglog.sources.mounted.source import MountedSource
from seglog.spark.read.schema import COLUMNS
from seglog.spark.read.stream_reader import SeglogStreamReader
from seglog.testing import Broker
from tests.broker.python_clients import AdminClient, NewTopic
from tests.cases import case
from tests.spark.stream_driver import SCHEMA, SMALL, Checkpoint, Driver, append

COUNT: Final = 12
"""Records that each topic has before the event and gets once more before the last batches."""
_CALLS: Final = ("exists", "listdir", "map", "open", "read", "stat")


class Steps:
    """Counts steps, and lets ``event`` happen before number ``at``."""

    def __init__(self) -> None:
        self.count = 0
        self.is_over = False
        self._at = -1
        self._event: Callable[[], None] | None = None

    def plan(self, at: int, event: Callable[[], None]) -> None:
        self.count, self.is_over, self._at, self._event = 0, False, at, event

    def step(self) -> None:
        event = self._event
        if event is not None and self.count == self._at:
            self.is_over, self._event = True, None
            event()
        self.count += 1


class SteppedFs(OsFs):
    """The files of the system, with a step before each look."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __getattribute__(self, name: str) -> Any:
        if name in _CALLS:
            object.__getattribute__(self, "_steps").step()
        return object.__getattribute__(self, name)


@contextmanager
def stepping() -> Iterator[Steps]:
    """Each look of a source at a file, and each request, is a step."""
    steps = Steps()
    send = BrokerConnection.send

    def stepped(self: BrokerConnection, *arguments: Any, **options: Any) -> None:
        steps.step()
        send(self, *arguments, **options)

    def files(_: object) -> Fs:
        return SteppedFs(steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BrokerConnection, "send", stepped)
        patch.setattr(DirectorySource, "_fs", property(files))
        patch.setattr(MountedSource, "_fs", property(files))
        yield steps


class Said(logging.Handler):
    """All that a query and its tasks warn of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def listening() -> Iterator[Said]:
    said, log = Said(), logging.getLogger("seglog.spark")
    log.addHandler(said)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
            said.texts += [str(one.message) for one in caught]
    finally:
        log.removeHandler(said)


class Logs:
    """Topics of one partition, in a directory that is open in this process."""

    def __init__(self, directory: seglog.LogDir) -> None:
        self.directory = directory
        self.made: Counter[str] = Counter()

    def create(self, topic: str) -> None:
        self.made[topic] += 1
        self.directory.create_topic(topic, config=SMALL)

    def append(self, topic: str, count: int) -> None:
        append(self.directory.log(topic), count, b"%d" % self.made[topic])

    def delete(self, topic: str) -> None:
        self.directory.delete_topic(topic)

    def expire(self, topic: str, below: int) -> None:
        """As retention does, with no delay before files are removed."""
        log = self.directory.log(topic)
        log.roll()
        log.delete_records(below)
        log.delete_old_segments()
        self.directory.checkpoint()
        for path in Path(self.directory.path).glob(f"{topic}-0/*.deleted"):
            path.unlink()

    def truncate(self, topic: str, offset: int) -> None:
        self.directory.log(topic).truncate_to(offset)

    def clear(self, names: str) -> None:
        """The directory is for one case."""


class ServedLogs:
    """The same topics at a broker."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        self.made: Counter[str] = Counter()

    def create(self, topic: str) -> None:
        self.made[topic] += 1
        self._admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(60)

    def append(self, topic: str, count: int) -> None:
        for _ in range(count):
            self._producer.produce(topic, b"v" * 100, b"%d" % self.made[topic], partition=0)
        assert self._producer.flush(60) == 0

    def delete(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(60)

    def expire(self, topic: str, below: int) -> None:
        for done in self._admin.delete_records([TopicPartition(topic, 0, below)]).values():
            done.result(60)

    def clear(self, names: str) -> None:
        """A case should not pay for the topics of those before it."""
        there = [one for one in self._admin.list_topics(timeout=60).topics if one.startswith(f"{names}-")]
        for done in self._admin.delete_topics(there).values():
            done.result(60)


World = Logs | ServedLogs
_SCHEMA: Final = StructType([*SCHEMA.fields, COLUMNS["key"]])


class Looks:
    """Which topics of one name, in the order in which they were made, were there at the last look of a plan."""

    def __init__(self, world: World, topic: str) -> None:
        self.topic = topic
        self.seen = range(0)
        self._world = world

    @contextmanager
    def watched(self) -> Iterator[None]:
        look = SeglogStreamReader._look

        def watched(reader: SeglogStreamReader, *arguments: Any, **options: Any) -> Any:
            before = self._world.made[self.topic]
            found = look(reader, *arguments, **options)
            self.seen = range(before, self._world.made[self.topic] + 1)
            return found

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SeglogStreamReader, "_look", watched)
            yield


class WatchingDriver(Driver):
    """Checks that each record is of a topic that the plan of its batch saw."""

    def __init__(self, looks: Looks, checkpoint: Checkpoint, options: Mapping[str, str], **more: Any) -> None:
        super().__init__(checkpoint, options, schema=_SCHEMA, **more)
        self._looks = looks

    def _watch(self, batch: pa.RecordBatch) -> None:
        pairs = zip(batch.column("topic").to_pylist(), batch.column("key").to_pylist(), strict=True)
        read = {int(key) for topic, key in pairs if topic == self._looks.topic}
        assert read <= set(self._looks.seen), "records of another topic of the same name"


Event = Callable[[World, str], None]


def _delete(world: World, topic: str) -> None:
    world.delete(topic)


def _recreate(world: World, topic: str) -> None:
    world.delete(topic)
    world.create(topic)
    world.append(topic, 3)


def _recreate_longer(world: World, topic: str) -> None:
    world.delete(topic)
    world.create(topic)
    world.append(topic, 4 * COUNT)


def _expire_some(world: World, topic: str) -> None:
    world.expire(topic, COUNT + COUNT // 2)


def _expire_all(world: World, topic: str) -> None:
    world.expire(topic, 2 * COUNT)


def _truncate(world: World, topic: str) -> None:
    assert isinstance(world, Logs)
    world.truncate(topic, COUNT - 2)


def _replace_by_another(world: World, topic: str) -> None:
    world.delete(topic)
    world.create(f"{topic}-new")
    world.append(f"{topic}-new", 3)


EVENTS: Final[Mapping[str, Event]] = {
    "delete": _delete,
    "recreate": _recreate,
    "recreate longer": _recreate_longer,
    "another": _replace_by_another,
    "expire some": _expire_some,
    "expire all": _expire_all,
    "truncate": _truncate,
}


def run_case(
    world: World, chosen: Mapping[str, str], names: str, event: str, at: int, *, fails: bool, now: bool = False
) -> bool:
    """A stream that has read ``COUNT`` records of two topics; then the event, before step ``at`` of the batches that
    read as many again, of which the last is repeated by a new driver; these run as `AvailableNow` if it is to be
    ``now``. Returns whether there were that many steps."""
    kept, victim = f"{names}-kept", f"{names}-victim"
    for topic in (kept, victim):
        world.create(topic)
        world.append(topic, COUNT)
    options = {
        **chosen,
        "subscribePattern": f"{names}-.*",
        "startingOffsets": "earliest",
        "fetchOffset.retryIntervalMs": "1",
        "kafkaConsumer.pollTimeoutMs": "200",
        "kafka.retry.backoff.ms": "1",
    }
    lax = {**options, "failOnDataLoss": "false"}
    checkpoint = Checkpoint()
    loss: DataLossError | None = None
    looks = Looks(world, victim)
    with stepping() as steps, listening() as said, looks.watched():
        WatchingDriver(looks, checkpoint, options).drain()
        for topic in (kept, victim):
            world.append(topic, COUNT)
        steps.plan(at, lambda: EVENTS[event](world, victim))
        try:
            WatchingDriver(looks, checkpoint, options if fails else lax, available_now=now).drain()
            checkpoint.commits.discard(max(checkpoint.commits))  # killed before the commit
            checkpoint.sink.pop(max(checkpoint.sink))
            WatchingDriver(looks, checkpoint, options if fails else lax, available_now=now).drain()
        except DataLossError as error:
            loss = error
        was_over = steps.is_over
        world.append(kept, COUNT)
        WatchingDriver(looks, checkpoint, lax).drain()
    if loss is not None:
        assert fails, loss
        assert was_over, loss
        assert victim in str(loss)
    rows = checkpoint.rows()
    counts = Counter(offset for topic, _, offset in rows if topic == kept)
    assert counts == dict.fromkeys(range(3 * COUNT), 1)
    read = {offset for topic, _, offset in rows if topic == victim}
    if fails and loss is None and event != "truncate":
        assert read >= set(range(2 * COUNT)), "records are missing, but the stream did not fail"
    elif read < set(range(2 * COUNT)):
        assert any(victim in text for text in said.texts), "records are missing without a word"
    world.clear(names)
    return was_over


@settings(max_examples=settings().max_examples // 2)
@given(event=st.sampled_from(list(EVENTS)), at=st.integers(0, 110), fails=st.booleans(), now=st.booleans())
@example(event="delete", at=60, fails=False, now=False)  # while the plan looks into a segment
@example(event="expire all", at=60, fails=True, now=False)
@example(event="recreate longer", at=66, fails=False, now=True)  # between the plan and the tasks
@example(event="recreate longer", at=66, fails=True, now=False)
def test_directories(event: str, at: int, fails: bool, now: bool) -> None:
    case()
    with TemporaryDirectory() as scratch, seglog.open(Path(scratch) / "log") as directory:
        run_case(
            Logs(directory), {"path": str(directory.path), "until": "logEnd"}, "t", event, at, fails=fails, now=now
        )


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
        close_all()


@pytest.fixture(scope="module")
def served(broker: Broker) -> ServedLogs:
    return ServedLogs(broker.bootstrap)


_numbers: Final = iter(range(1_000_000))


@pytest.mark.parametrize("source", ["brokers", "mounted"])
@settings(max_examples=settings().max_examples // 5)
@given(
    event=st.sampled_from([one for one in EVENTS if one != "truncate"]),
    at=st.integers(0, 40),
    fails=st.booleans(),
    now=st.booleans(),
)
@example(event="another", at=2, fails=False, now=False)  # between Metadata and ListOffsets
@example(event="delete", at=4, fails=False, now=True)  # between the plan and the tasks
def test_brokers(broker: Broker, served: ServedLogs, source: str, event: str, at: int, fails: bool, now: bool) -> None:
    case()
    chosen = {"kafka.bootstrap.servers": broker.bootstrap}
    if source == "mounted":
        chosen["path"] = broker.data_dir
    run_case(served, chosen, f"t{next(_numbers)}", event, at, fails=fails, now=now)

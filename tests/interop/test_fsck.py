"""`seglog fsck` beside a Kafka that writes, compacts and deletes; Kafka and its consumers on what was repaired."""

from __future__ import annotations

import random
import shutil
import threading
from pathlib import Path

import pytest
from confluent_kafka.cimpl import NewTopic, Producer

from seglog.storage.offline.findings import Severity
from seglog.storage.offline.fsck.check import FsckReport, Place, check
from tests.cases import case, is_long
from tests.cli.run import Run, run_here
from tests.kafka import KafkaNode
from tests.kafka.ensemble import KafkaEnsemble
from tests.kit.topics import create_topics, values, write, write_all
from tests.storage.offline.verify.verified import batches, flip

_BUSY = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "100",
}
_SMALL = {"internal.segment.bytes": "20000", "index.interval.bytes": "100", "file.delete.delay.ms": "100"}


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def _alarms(report: FsckReport) -> list[str]:
    found = [str(one) for _, each in report.places for one in each.verified.findings if one.severity is Severity.DAMAGE]
    differences = (one for each in report.partitions for one in each.differences)
    return found + [str(one) for one in differences if one.severity is Severity.DAMAGE]


def _create(bootstrap: str, replicas: int) -> None:
    create_topics(
        bootstrap,
        NewTopic("kept", 1, replicas, config=_SMALL),
        NewTopic("compacted", 1, replicas, config={**_SMALL, "cleanup.policy": "compact", "delete.retention.ms": "0"}),
        NewTopic("deleted", 1, replicas, config={**_SMALL, "retention.bytes": "40000"}),
    )


def _write(bootstrap: str, rounds: int, stop: threading.Event) -> None:
    rng = random.Random(5)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "acks": "all"})
    for _ in range(rounds):
        for topic in ("compacted", "deleted"):
            for _ in range(20):
                producer.produce(topic, rng.randbytes(rng.randrange(400)), b"%d" % rng.randrange(30))
        producer.flush(60)
        if stop.is_set():
            return


def _check_while_it_writes(bootstrap: str, places: list[Place]) -> None:
    """Damage and differences are found in no pass."""
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(bootstrap, 20_000, stop))
    writer.start()
    try:
        for _ in range(2000 if is_long() else 25):
            assert _alarms(check(places, workers=1)) == []
            case()
    finally:
        stop.set()
        writer.join()


def _damage(log_dir: Path, rng: random.Random, *, cut: bool) -> None:
    """A flipped bit in two sealed segments of the topic kept, and with ``cut`` the end of its last one."""
    logs = sorted((log_dir / "kept-0").glob("*.log"))
    for path in rng.sample(logs[:-1], 2):
        data = path.read_bytes()
        entry = rng.choice(batches(data))
        path.write_bytes(flip(data, rng.randrange(entry.position + 21, entry.position + entry.size), 4))
    if cut:
        logs[-1].write_bytes(logs[-1].read_bytes()[:-9])


def _logs(log_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (log_dir / "kept-0").glob("*.log")}


def test_kafka_reads_all_that_came_back_from_a_copy(tmp_path: Path, run: Run) -> None:
    with KafkaNode(tmp_path / "kafka", _BUSY) as node:
        _create(node.bootstrap, 1)
        written = [f"{number:0300d}" for number in range(300)]
        write_all(node.bootstrap, "kept", written, batch=10)
        _check_while_it_writes(node.bootstrap, [Place(str(node.log_dir))])
        node.stop()
        replica = tmp_path / "replica"
        shutil.copytree(node.log_dir, replica)
        whole = _logs(node.log_dir)
        _damage(node.log_dir, random.Random(1), cut=True)
        assert run("fsck", node.log_dir, replica).code == 1
        ran = run("fsck", node.log_dir, replica, "--repair", "--yes")
        assert ran.code == 0, ran.text + ran.err
        assert _logs(node.log_dir) == whole
        node.start()
        assert values(node.bootstrap, "kept") == written
        assert write(node.bootstrap, "kept", "more") is None
        assert values(node.bootstrap, "kept") == [*written, "more"]


@pytest.mark.everything
def test_three_replicas_of_kafka(tmp_path: Path, run: Run) -> None:
    """None differs while brokers write; each is damaged at another place, and each comes back from the others."""
    with KafkaEnsemble(tmp_path, _BUSY) as brokers:
        _create(brokers.bootstrap, 3)
        written = [f"{number:0300d}" for number in range(300)]
        write_all(brokers.bootstrap, "kept", written, batch=10)
        directories = [node.log_dir for node in brokers.nodes]
        _check_while_it_writes(brokers.bootstrap, [Place(str(path)) for path in directories])
        for node in brokers.nodes:
            node.kill()
        whole = [_logs(path) for path in directories]
        for number, path in enumerate(directories):
            _damage(path, random.Random(number), cut=False)
        ran = run("fsck", *directories, "--repair", "--yes")
        assert ran.code == 0, ran.text + ran.err
        assert [_logs(path) for path in directories] == whole
        brokers.start()
        assert values(brokers.bootstrap, "kept") == written
        assert write(brokers.bootstrap, "kept", "more") is None

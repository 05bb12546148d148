"""``kill -9`` of a broker that stock clients are using, again and again: every response that they got stays true."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from seglog.protocol.apis import ApiKey
from seglog.storage.directory.log_dir import LogDir
from tests.broker.broker_thread import Wire
from tests.broker.kill_load import SECONDS, Load, Told
from tests.broker.python_clients import AdminClient, NewTopic
from tests.cases import case, is_long
from tests.kit.broker_process import BrokerProcess
from tests.kit.memory import directory_in_memory

KILLS = 100 if is_long() else 4
"""In `make test-long` and else."""
TOPICS = {"plain": 3, "each": 2}
FLUSH_EACH = {"each": {"flush.messages": "1"}}
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "log.roll.ms": "700",
    "log.flush.offset.checkpoint.interval.ms": "400",
    "replica.high.watermark.checkpoint.interval.ms": "300",
    "log.initial.task.delay.ms": "100",
    "auto.create.topics.enable": "false",
}
NAMES = ("one", "two", "three")


@pytest.fixture
def served() -> Iterator[BrokerProcess]:
    """In memory where there is some: kill -9 loses nothing that was written."""
    with directory_in_memory() as path, BrokerProcess(path / "log", SETTINGS) as served:
        yield served


def kill_running(served: BrokerProcess) -> None:
    """It must not have ended by itself before."""
    assert served.end(signal.SIGKILL) == -signal.SIGKILL


def make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    wanted = [NewTopic(name, count, 1, config=FLUSH_EACH.get(name, {})) for name, count in TOPICS.items()]
    for done in admin.create_topics(wanted).values():
        done.result(SECONDS)


def take_ids(bootstrap: str, count: int) -> list[int]:
    with Wire(bootstrap) as wire:
        answers = [
            wire.ask(ApiKey.INIT_PRODUCER_ID, transactional_id=None, transaction_timeout_ms=0) for _ in range(count)
        ]
    return [int(answer.producer_id) for answer in answers]


def live(served: BrokerProcess, seconds: float) -> None:
    """So long, which the broker has to survive."""
    with pytest.raises(subprocess.TimeoutExpired):
        served.process.wait(seconds)


def wait_until(happens: Callable[[], bool], told: Told, served: BrokerProcess) -> None:
    """Or until something is wrong."""
    deadline = time.monotonic() + SECONDS
    while not happens() and not told.wrong:
        assert time.monotonic() < deadline, "the clients do not find back to the broker"
        live(served, 0.01)


def wait_for_more(told: Told, served: BrokerProcess) -> None:
    """Records are acknowledged and read again."""
    acknowledged, read = told.acknowledged, told.read
    wait_until(lambda: told.acknowledged > acknowledged and told.read > read, told, served)


def verify(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "seglog", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check_directory(path: Path, told: Told, taken: list[int]) -> int:
    """Check that each record that a client knows is stored at its offset, that the records of each producer are there
    once and in order, and that each producer id belongs to one producer. Returns the number of records. The broker was
    stopped, so nothing may be recovered."""
    owners: dict[int, str] = {}
    total = 0
    with LogDir.open(path) as opened:
        assert not opened.refused
        assert all(not report.scanned for report in opened.reports.values())
        for topic, number in opened.partitions():
            if topic not in TOPICS:
                continue
            log = opened.log(topic, number)
            found: dict[int, bytes] = {}
            numbers: dict[str, list[int]] = defaultdict(list)
            offset = log.log_start_offset
            while offset < log.log_end_offset:
                for header, data in log.read(offset).batches():
                    offset = header.next_offset
                    for record in log.read(header.base_offset, len(data)).records():
                        if record.offset > header.last_offset:
                            break
                        assert record.value is not None
                        name, count, _ = record.value.decode().split(":")
                        found[record.offset] = record.value
                        numbers[name].append(int(count))
                        assert owners.setdefault(header.producer_id, name) == name, "an id was used twice"
            known = told.known[topic, number]
            assert {at: found.get(at) for at in known} == known, f"{topic}-{number} is not what clients were told"
            for name, seen in numbers.items():
                assert seen == list(range(len(seen))), f"{topic}-{number}: records of {name} are lost, twice or mixed"
            total += len(found)
    assert len(set(taken)) == len(taken), "an id was given out twice"
    assert not owners.keys() & set(taken), "an id was given out twice"
    return total


def test_a_broker_is_killed_again_and_again(served: BrokerProcess) -> None:
    rng = Random(8)
    told = Told()
    taken: list[int] = []
    make_topics(served.bootstrap)
    load = Load(served.bootstrap, TOPICS, told)
    try:
        for linger_ms, name in enumerate(NAMES):
            load.produce(name, linger_ms=5 * linger_ms)
        load.consume("readers", 17)
        load.consume("readers", 5)
        for kill in range(KILLS):
            case()
            wait_for_more(told, served)
            taken += take_ids(served.bootstrap, 2)
            live(served, rng.random() * 0.2)
            if kill % 5 == 3:
                assert served.end(signal.SIGTERM) == 0
                verify(served.path)
            else:
                kill_running(served)
                if kill % 5 == 1:  # and while it recovers
                    served.launch()
                    live(served, rng.random() * 0.5)
                    kill_running(served)
            served.start()
            assert not told.wrong, told.wrong[:10]
        wait_for_more(told, served)
        wait_until(lambda: any(told.committed.values()), told, served)
        resumed = told.resumed
        load.consume("readers", 11)  # a newcomer: all of its group go on where they had committed
        wait_until(lambda: told.resumed > resumed, told, served)
        load.stop_producing()
    finally:
        load.end()
    assert served.end(signal.SIGTERM) == 0
    assert not told.wrong, told.wrong[:10]
    verify(served.path)
    records = check_directory(served.path, told, taken)
    print(f"{KILLS} kills, {records} records, {told.read} read, {told.resumed} partitions resumed")


def test_signals_while_a_broker_starts_and_stops(served: BrokerProcess) -> None:
    """SIGTERM at any time of a start, and twice: it ends by it, and the directory is whole."""
    rng = Random(3)
    make_topics(served.bootstrap)
    assert served.end(signal.SIGTERM, signal.SIGTERM) == 0
    for _ in range(4):
        served.launch()
        live(served, rng.random() * 0.6)
        assert served.end(signal.SIGTERM) in (0, -signal.SIGTERM)
    verify(served.path)
    served.launch()
    assert served.ready()["partitions"] == sum(TOPICS.values())
    assert served.end(signal.SIGTERM, signal.SIGINT, signal.SIGTERM) == 0
    with LogDir.open(served.path) as opened:
        assert all(not report.scanned for report in opened.reports.values())


def test_repeated_sigterm_still_stops_cleanly(served: BrokerProcess) -> None:
    """Also when it has closed its directory and has not quite ended."""
    while served.process.poll() is None:  # without a pause: any moment may be the wrong one
        served.process.send_signal(signal.SIGTERM)
    assert served.end() == 0

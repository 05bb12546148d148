"""`seglog.testing.Broker`, in both kinds, by stock clients."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from seglog.core.errors import InvalidConfigError, LogDirInUseError, TopicExistsError
from seglog.testing import Broker, BrokerError, TopicFixture

_QUIET = {"log_level": 0}


@pytest.fixture(params=[False, True], ids=["thread", "process"])
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with Broker({"orders": 3, "bills": 1}, process=request.param) as running:
        yield running


def produce(broker: Broker, *values: bytes, topic: str = "bills") -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **_QUIET})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(60) == 0


def consume(broker: Broker, count: int, *, group: str = "g", commit: bool = False) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": group, "auto.offset.reset": "earliest", **_QUIET}
    )
    consumer.subscribe(["bills"])
    found: list[Message] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), 10)
    if commit:
        consumer.commit(asynchronous=False)
    consumer.close()
    return [message.value() for message in found]


def topics(broker: Broker) -> dict[str, int]:
    found = AdminClient({"bootstrap.servers": broker.bootstrap, **_QUIET}).list_topics(timeout=60).topics
    return {name: len(topic.partitions) for name, topic in found.items() if not name.startswith("__")}


def groups(broker: Broker) -> list[str]:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **_QUIET})
    return [group.group_id for group in admin.list_consumer_groups().result(60).valid]


def test_it_has_its_topics_and_settings_for_tests(broker: Broker) -> None:
    assert topics(broker) == {"orders": 3, "bills": 1}
    assert broker.bootstrap.startswith("127.0.0.1:")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, **_QUIET})
    (asked,) = admin.describe_configs([ConfigResource("broker", "1")]).values()
    told = {name: entry.value for name, entry in asked.result(60).items()}
    assert told["group.initial.rebalance.delay.ms"] == "0"
    assert told["offsets.topic.num.partitions"] == "1"


def test_reset_leaves_nothing_behind(broker: Broker) -> None:
    broker.create_topic("more", 2, {"retention.ms": 1000, "cleanup.policy": "compact"})
    assert topics(broker)["more"] == 2
    with pytest.raises(TopicExistsError):
        broker.create_topic("more")
    produce(broker, b"1", b"2")
    assert consume(broker, 2, commit=True) == [b"1", b"2"]
    assert groups(broker) == ["g"]
    broker.reset()
    assert topics(broker) == {"orders": 3, "bills": 1}
    assert groups(broker) == []
    produce(broker, b"3")
    assert consume(broker, 1) == [b"3"]


def test_reset_sends_members_away(broker: Broker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g", "group.instance.id": "i", **_QUIET})
    consumer.subscribe(["bills"])
    while not consumer.assignment():
        consumer.poll(0.1)
    broker.pause()  # so that the member does not join again before it is looked at
    broker.reset()
    assert not broker.is_paused
    consumer.close()


def test_restart_keeps_port_topics_and_records(broker: Broker) -> None:
    before = broker.bootstrap
    produce(broker, b"1")
    broker.restart()
    assert (broker.bootstrap, topics(broker)) == (before, {"orders": 3, "bills": 1})
    assert consume(broker, 1) == [b"1"]


def test_while_it_is_stopped_clients_are_refused_and_the_port_is_kept(broker: Broker) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    broker.stop()
    broker.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, int(port)))
    with pytest.raises(BrokerError, match="does not run"):
        broker.pause()
    broker.reset()
    assert topics(broker) == {"orders": 3, "bills": 1}


def test_its_port_is_kept_until_it_listens_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = broker.bootstrap.rpartition(":")
    broker.stop()
    start = broker._runner.start

    def look_and_start(settings: Mapping[str, str], topics: Mapping[str, TopicFixture], ahead: float) -> str:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
        return start(settings, topics, ahead)

    monkeypatch.setattr(broker._runner, "start", look_and_start)
    broker.start()
    produce(broker, b"1")
    assert consume(broker, 1) == [b"1"]


def test_while_it_is_paused_clients_wait(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **_QUIET})
    produce(broker, b"0")
    broker.pause()
    broker.pause()
    host, _, port = broker.bootstrap.rpartition(":")
    socket.create_connection((host, int(port)), timeout=5).close()  # the kernel accepts
    producer.produce("bills", b"1")
    assert producer.flush(0.3) == 1
    with pytest.raises(BrokerError, match="paused"):
        broker.create_topic("t")
    broker.resume()
    assert producer.flush(60) == 0
    assert consume(broker, 2) == [b"0", b"1"]


def test_a_paused_one_can_be_stopped(broker: Broker) -> None:
    broker.pause()
    broker.stop()
    broker.start()
    produce(broker, b"1")


def test_nothing_is_left_on_the_disk(broker: Broker) -> None:
    path = broker.data_dir
    assert os.path.exists(path)
    broker.close()
    assert not os.path.exists(path)
    with pytest.raises(BrokerError, match="not started"):
        _ = broker.bootstrap
    with broker:
        assert topics(broker) == {"orders": 3, "bills": 1}


@pytest.mark.parametrize("process", [False, True])
def test_errors_at_the_start_are_the_brokers(tmp_path: Path, *, process: bool) -> None:
    with pytest.raises(InvalidConfigError, match=r"num\.partitions"):
        Broker(settings={"num.partitions": 0}, process=process).start()
    path = str(tmp_path / "data")
    with Broker(["t"], data_dir=path, process=process):
        second = Broker(data_dir=path, process=process)
        with pytest.raises(LogDirInUseError):
            second.start()
        second.close()
    assert os.path.exists(path)
    with Broker(["t", "u"], data_dir=path, process=process) as again:
        assert topics(again) == {"t": 1, "u": 1}
        taken = again.bootstrap.rpartition(":")[2]
        other = Broker(settings={"listeners": f"PLAINTEXT://127.0.0.1:{taken}"}, process=process)
        with pytest.raises(OSError, match="in use"):
            other.start()


def test_killed_broker_keeps_acknowledged_records() -> None:
    with Broker(["bills"], process=True) as broker:
        produce(broker, *(b"%d" % value for value in range(100)))
        broker.restart(kill=True)
        assert consume(broker, 100) == [b"%d" % value for value in range(100)]


def test_only_a_process_can_be_killed() -> None:
    with Broker() as broker, pytest.raises(BrokerError, match="process=True"):
        broker.kill()


@pytest.mark.parametrize("gone", [False, True], ids=["while it is asked", "before"])
def test_unexpected_end_of_the_process_is_reported(*, gone: bool) -> None:
    with started() as (broker, child), ThreadPoolExecutor() as beside:
        if gone:
            kill(child)
        else:
            os.kill(child, signal.SIGSTOP)  # it does not come to answer
            beside.submit(kill_when_asked, child)
        with pytest.raises(BrokerError, match="has ended with -9"):
            broker.reset()


def test_a_process_that_has_ended_by_itself_cannot_be_stopped(tmp_path: Path) -> None:
    with started(tmp_path) as (broker, child):
        kill(child)
        with pytest.raises(BrokerError, match="has ended with -9"):
            broker.reset()
        with pytest.raises(BrokerError, match="has ended with -9"):
            broker.stop()
        broker.restart()


@contextmanager
def started(data_dir: Path | None = None) -> Iterator[tuple[Broker, int]]:
    """A broker with a separate process, and that process."""
    before = set(children(os.getpid()))
    with Broker(process=True, data_dir=data_dir) as broker:
        (child,) = set(children(os.getpid())) - before
        yield broker, child


def kill(child: int) -> None:
    """Kill the child, and return when it has ended; its parent has not reaped it yet."""
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)


def kill_when_asked(child: int) -> None:
    """It has a command in its standard input then, which it has not read."""
    with open(f"/proc/{child}/fd/0", "rb", buffering=0) as commands:
        select.select([commands], [], [])
    os.kill(child, signal.SIGKILL)


def children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


@pytest.mark.parametrize("paused", [False, True])
def test_a_process_ends_with_the_tests_that_started_it(tmp_path: Path, *, paused: bool) -> None:
    program = (
        "import sys\n"
        "from seglog.testing import Broker\n"
        f"broker = Broker(['t'], process=True, data_dir={str(tmp_path / 'data')!r})\n"
        "broker.start()\n"
        f"{'broker.pause()' if paused else ''}\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == b"ready\n"
        (child,) = children(tests.pid)
        watched = os.pidfd_open(child)
        tests.kill()
    assert select.select([watched], [], [], 60)[0] == [watched]  # readable when the process is gone
    os.close(watched)


def test_running_broker_does_not_keep_the_process_alive() -> None:
    program = (
        "from seglog.testing import Broker\n"
        "broker = Broker(['t'])\n"
        "broker.start()\n"
        "print(broker.data_dir)\n"
        "print(broker)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    path, shown = done.stdout.splitlines()
    assert not os.path.exists(path)
    assert shown.endswith(" running>")


def test_it_loads_no_more_than_it_needs() -> None:
    program = (
        "import sys\n"
        "from seglog.testing import Broker\n"
        "first = {'numpy', 'pyspark', 'pytest', 'kio', 'hypothesis', 'asyncio'} & set(sys.modules)\n"
        "with Broker(['t']) as broker:\n"
        "    broker.reset()\n"
        "then = {'numpy', 'numba', 'pyarrow', 'pyspark', 'pytest', 'hypothesis'} & set(sys.modules)\n"
        "import hypothesis\n"
        "sys.exit(f'{first} {then}' if first or then else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")

"""Hostile sockets: what one client does is not felt by another, costs little memory, and leaves nothing behind."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class
from seglog.records.record import NewRecord, encode_batch
from tests.broker.broker_thread import Wire
from tests.broker.served_broker import MEGABYTE, Other, ServedBroker, framed, read_until_closed
from tests.kit.memory import directory_in_memory

MOST_MEMORY = 50 * MEGABYTE
SLOW = 3.0
"""Seconds: far above what is usual, so that a machine with much else to do is no reason."""
TOPIC = "hostile"
CLIENT_HELLO = bytes.fromhex("16030100a5010000a10303" + "5a" * 32 + "00" * 100)
"""How every TLS client begins: record type 22, TLS 1.0, a length; then its ClientHello."""
TAGGED = (ApiKey.METADATA, 12)


@pytest.fixture(scope="module")
def served() -> Iterator[ServedBroker]:
    """In memory: that a disk stands still is no hostile client's doing."""
    with (
        directory_in_memory() as path,
        ServedBroker(path, {"max.connection.creation.rate": "1000000"}) as running,
    ):
        with Wire(running.bootstrap) as wire:
            wire.create_topic(TOPIC)
            for _ in range(20):
                produce(wire, encode_batch([NewRecord(bytes(900_000), None, 1)]))
        yield running


@pytest.fixture
def unharmed(served: ServedBroker) -> Iterator[Other]:
    """Afterwards the server's memory, sockets and log are as before; another client was served all the time."""
    other = Other(served)
    other.ask(200)
    usual, memory = other.p99, served.memory
    with other.asking():
        yield other
        other.wait_for(10)
        assert served.memory - memory < MOST_MEMORY
    served.check_quiet()
    assert served.has_come_to_rest()
    assert other.p99 < max(20 * usual, SLOW)


def produce(wire: Wire, records: bytes | bytearray, version: int = 9) -> int:
    data = [{"name": TOPIC, "partition_data": [{"index": 0, "records": bytes(records)}]}]
    answer = wire.ask(ApiKey.PRODUCE, version, acks=-1, timeout=30_000, topic_data=data)
    return int(answer.responses[0].partition_responses[0].error_code)


def request(key: ApiKey, version: int, correlation_id: int = 1, **contents: object) -> bytes:
    head = struct.pack(">hhih", key, version, correlation_id, -1)
    return (
        head + (b"\0" if version >= APIS[key].flexible else b"") + write_message(request_class(key, version), contents)
    )


def fetch(wait_ms: int, max_bytes: int, offset: int = 0) -> bytes:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": max_bytes}
    topics = [{"topic": TOPIC, "partitions": [partition]}]
    return request(ApiKey.FETCH, 11, replica_id=-1, max_wait=wait_ms, min_bytes=1, max_bytes=max_bytes, topics=topics)


HEAD = request(ApiKey.METADATA, 1, topics=[])
PRODUCE_HEAD = struct.pack(">hhih", ApiKey.PRODUCE, 9, 1, -1)


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(struct.pack(">i", 2**31 - 1) + HEAD, id="2 GiB of a small request"),
        pytest.param(struct.pack(">i", 2**31 - 1) + PRODUCE_HEAD, id="2 GiB of Produce"),
        pytest.param(struct.pack(">i", -1) + HEAD, id="-1 bytes"),
        pytest.param(struct.pack(">i", 0) + HEAD, id="no bytes"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", id="HTTP"),
        pytest.param(CLIENT_HELLO, id="TLS"),
        pytest.param(framed(struct.pack(">hhih", 9999, 0, 1, -1)), id="an API that is not there"),
        pytest.param(framed(struct.pack(">hhih", ApiKey.METADATA, 99, 1, -1)), id="a version that is not there"),
        pytest.param(framed(struct.pack(">hhih", ApiKey.METADATA, -1, 1, -1)), id="version -1"),
        pytest.param(framed(struct.pack(">hhih", ApiKey.METADATA, 1, 1, -2)), id="a client id of -2 bytes"),
        pytest.param(framed(HEAD[:10] + b"\x7f\xff\xff\xff"), id="2^31 - 1 topics"),
        pytest.param(
            framed(struct.pack(">hhih", *TAGGED, 1, -1) + b"\x80\x89\x7a" + b"\1\0" * 500_000), id="tags in a header"
        ),
        pytest.param(framed(struct.pack(">hhih", *TAGGED, 1, -1) + b"\x80\xda\xc4\x09"), id="20,000,000 tags"),
        pytest.param(
            framed(struct.pack(">hhih", ApiKey.PRODUCE, 9, 1, -1) + b"\x80\xda\xc4\x09" + b"\1\0" * 10_000_000),
            id="tags in 20 MB of Produce",
        ),
        pytest.param(
            framed(
                PRODUCE_HEAD[:-2] + struct.pack(">h", -1) + b"\0\0\0\1\0\0\0\0" + b"\x81\xf1\x04" + b"\2a\1\0" * 80_000
            ),
            id="80,000 topics without a partition",
        ),
    ],
)
@pytest.mark.usefixtures("unharmed")
def test_malformed_request_closes_its_connection(served: ServedBroker, sent: bytes) -> None:
    with served.connect() as connection:
        try:
            connection.sendall(sent)
        except ConnectionError:
            return  # it was over before all of it was there
        read_until_closed(connection)


@pytest.mark.usefixtures("unharmed")
def test_resets_and_half_closes_at_every_byte(served: ServedBroker) -> None:
    for frame in (framed(HEAD), framed(fetch(5, 100))):
        for length in range(len(frame) + 1):
            reset, half = served.connect(), served.connect()
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset.sendall(frame[:length])
            reset.close()  # RST
            half.sendall(frame[:length])
            half.shutdown(socket.SHUT_WR)
            read_until_closed(half)
            half.close()


@pytest.mark.usefixtures("unharmed")
def test_a_slow_header_and_a_slow_body_disturb_nobody(served: ServedBroker) -> None:
    """`tests.net.test_connection_quotas` checks how long they may take: here 30 s."""
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(served.connect())) for _ in range(100)]
        for at in range(20):
            for connection in slow:
                connection.sendall(framed(HEAD + bytes(100))[at : at + 1])


def test_a_client_that_never_reads_with_a_thousand_fetches(served: ServedBroker, unharmed: Other) -> None:
    with served.connect() as connection, served.connect() as waiting:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sent = threading.Thread(target=send, args=(connection, framed(fetch(0, 50 * MEGABYTE)) * 1000))
        sent.start()
        waiting.sendall(framed(fetch(2000, 50 * MEGABYTE, offset=20)) * 1000)
        for _ in range(10):
            unharmed.wait_for(20)
        connection.shutdown(socket.SHUT_RDWR)
        sent.join()


def test_many_clients_that_never_read(served: ServedBroker, unharmed: Other) -> None:
    """Each has asked for 18 MB: what is on the way is in the kernel, and a little of it here."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(served.connect())) for _ in range(40)]
        for connection in clients:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(framed(fetch(0, 50 * MEGABYTE)))
        unharmed.wait_for(100)


def test_many_small_answers_are_not_made_for_who_does_not_read(served: ServedBroker, unharmed: Other) -> None:
    with served.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        described = request(ApiKey.DESCRIBE_CONFIGS, 2, resources=[{"resource_type": 4, "resource_name": "1"}])
        sent = threading.Thread(target=send, args=(connection, framed(described) * 20_000))
        sent.start()
        unharmed.wait_for(50)
        connection.shutdown(socket.SHUT_RDWR)
        sent.join()


def test_many_idle_connections(served: ServedBroker, unharmed: Other) -> None:
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(closing(served.connect()))
        unharmed.wait_for(100)


@pytest.mark.usefixtures("unharmed")
def test_connections_that_come_and_go(served: ServedBroker) -> None:
    for _ in range(1000):
        served.connect().close()


def test_partitions_for_which_there_are_no_file_descriptors(tmp_path: Path) -> None:
    """A log that cannot open a file takes its directory out of use: it must not come to that."""
    with ServedBroker(tmp_path) as served, Wire(served.bootstrap) as wire:
        served.allow_descriptors(served.descriptors + 250)

        def create(name: str, partitions: int) -> int:
            topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
            answer = wire.ask(ApiKey.CREATE_TOPICS, topics=[topic], timeout=30_000, validate_only=False)
            return int(answer.topics[0].error_code)

        assert create("few", 2) == 0
        assert create("many", 100) == 44
        grown = [{"name": "few", "count": 100, "assignments": None}]
        assert wire.ask(ApiKey.CREATE_PARTITIONS, topics=grown, timeout=30_000).results[0].error_code == 44
        named = [{"name": f"topic-{number}"} for number in range(10_001)]
        found = wire.ask(ApiKey.METADATA, topics=named, allow_auto_topic_creation=True).topics
        assert [topic.error_code for topic in found[100:]] == [3] * 9_901  # a request creates a hundred at the most
        assert {topic.error_code for topic in found[:100]} == {0, 44}
        assert wire.ask(ApiKey.METADATA, topics=[{"name": "few"}]).topics[0].error_code == 0
        served.check_quiet()


@pytest.mark.usefixtures("unharmed")
def test_members_that_never_come_again(served: ServedBroker) -> None:
    """KIP-394: an id costs little, and the number of kept ids is limited."""
    with Wire(served.bootstrap) as wire:
        wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["crowd"])
        join = {
            "group_id": "crowd",
            "session_timeout": 1_800_000,
            "rebalance_timeout": 1,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": bytes(100_000)}],
        }
        while wire.ask(ApiKey.JOIN_GROUP, 5, **join).error_code == 14:  # it is being loaded
            pass
        for _ in range(1000):
            assert wire.ask(ApiKey.JOIN_GROUP, 5, **join).error_code == 79


def send(connection: socket.socket, data: bytes) -> None:
    """Until the server has enough of it."""
    try:
        connection.sendall(data)
    except OSError:
        return

"""Requests by chance to a server over sockets, for each API and version: nobody else notices, and nothing is left.

`make test-long` has other requests each time, and many more of them.
"""

from __future__ import annotations

import os
import socket
import struct
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Final

import pytest
from kio.serial import entity_reader

from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.messages import read_answer
from seglog.protocol.schema import response_class
from tests.broker.broker_thread import Wire
from tests.broker.fuzzing import GROUPS, TOPICS, TRANSACTIONAL_IDS, Requests, versions
from tests.broker.served_broker import MEGABYTE, Other, ServedBroker, framed, read_until_closed
from tests.cases import case, is_long

IS_LONG: Final = is_long()
ROUNDS: Final = 200 if IS_LONG else 10
MOST_MEMORY: Final = 50 * MEGABYTE
SENTINEL: Final = -77
SETTINGS: Final = {
    "group.min.session.timeout.ms": "1",
    "log.segment.delete.delay.ms": "0",
    "max.connection.creation.rate": "1000000",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedBroker]:
    with ServedBroker(tmp_path_factory.mktemp("fuzz"), SETTINGS) as running:
        yield running


class Client:
    """One connection at a time; a new one after each that the server has ended."""

    def __init__(self, served: ServedBroker) -> None:
        self._served = served
        self._connection: socket.socket | None = None
        self.ended: Counter[tuple[ApiKey, int]] = Counter()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def ask(self, key: ApiKey, version: int, frame: bytes, correlation_id: int) -> bytes | None:
        """The answer, b"" where there is none, None where the connection was ended."""
        if self._connection is None:
            self._connection = self._served.connect()
        sentinel = framed(struct.pack(">hhih", ApiKey.API_VERSIONS, 0, SENTINEL, -1))
        answer = b""
        try:
            self._connection.sendall(framed(frame) + sentinel)
            while True:
                data = self._receive(int.from_bytes(self._receive(4), "big"))
                (number,) = struct.unpack_from(">i", data)
                if number == SENTINEL:
                    return answer
                assert number == correlation_id
                assert answer == b""
                answer = data
        except ConnectionError:
            self.ended[key, version] += 1
            self.close()
            return None

    def _receive(self, size: int) -> bytes:
        assert self._connection is not None
        data = bytearray()
        while len(data) < size:
            piece = self._connection.recv(size - len(data))
            if not piece:
                raise ConnectionError("ended")
            data += piece
        return bytes(data)


_TIMES_OF_NONE: Final = (
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
)
"""Kio reads no time of -1, which is Kafka's where there is none."""


def check(key: int, version: int, answer: bytes) -> None:
    """Kio can read all of it."""
    api = APIS[key]
    start = 5 if key != ApiKey.API_VERSIONS and version >= api.flexible else 4
    assert start == 4 or answer[4] == 0
    if key in _TIMES_OF_NONE:
        read_answer(key, version, answer[start:])
        return
    _, size = entity_reader(response_class(key, version))(answer, start)
    assert start + size == len(answer), f"API {key} version {version}: {answer.hex()}"


def seed_of(what: str) -> str:
    return f"{what} {os.urandom(4).hex() if IS_LONG else 1}"


def ids_of(served: ServedBroker) -> list[uuid.UUID]:
    with Wire(served.bootstrap) as wire:
        found = wire.ask(ApiKey.METADATA, topics=[{"name": name} for name in TOPICS], allow_auto_topic_creation=True)
        wire.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=GROUPS)
        wire.ask(ApiKey.FIND_COORDINATOR, key_type=1, coordinator_keys=TRANSACTIONAL_IDS)
        return [topic.topic_id for topic in found.topics if topic.topic_id is not None]


def test_what_is_well_formed_is_answered_whatever_it_says(served: ServedBroker) -> None:
    other = Other(served)
    ids = ids_of(served)
    other.ask(300)
    usual, memory = other.p99, served.memory
    seed = seed_of("well-formed")
    with other.asking(), closing(Client(served)) as client:
        for key, version in versions():
            requests = Requests(Random(f"{seed} {key} {version}"), ids)
            for number in range(ROUNDS):
                frame = requests.frame(key, version, number)
                answer = client.ask(key, version, frame, number)
                case()
                if answer:
                    check(key, version, answer)
                else:
                    # A producer with acks=0 is told nothing, and of an error by its connection.
                    assert key == ApiKey.PRODUCE, f"{seed}: {key!r} {version} {frame.hex()}"
    served.check_quiet()
    assert served.has_come_to_rest()
    assert served.memory - memory < MOST_MEMORY
    assert other.p99 < max(20 * usual, 3.0)


def test_a_version_that_is_not_served_ends_its_connection(served: ServedBroker) -> None:
    for key, api in APIS.items():
        for version in (-(2**15), -1, *range(max(api.low, api.served)), api.high + 1, 2**15 - 1):
            with served.connect() as connection:
                connection.sendall(framed(struct.pack(">hhih", key, version, 5, -1) + bytes(20)))
                connection.shutdown(socket.SHUT_WR)
                answer = read_until_closed(connection)
            case()
            # ApiVersions says which there are, in version 0 (KIP-511).
            assert bool(answer) == (key == ApiKey.API_VERSIONS), f"API {key} version {version}"
    served.check_quiet()


def test_what_is_not_well_formed_ends_its_connection_or_is_answered(served: ServedBroker) -> None:
    other = Other(served)
    ids = ids_of(served)
    other.ask(300)
    usual, memory = other.p99, served.memory
    seed = seed_of("mutated")
    with other.asking():
        for key, version in versions():
            requests = Requests(Random(f"{seed} {key} {version}"), ids)
            for number in range(ROUNDS):
                sent = requests.mutated(requests.frame(key, version, number))
                case()
                with served.connect() as connection:
                    try:
                        connection.sendall(sent)
                        connection.shutdown(socket.SHUT_WR)
                    except OSError:
                        continue  # it was ended before all of it was there
                    check_first(sent, read_until_closed(connection))
    served.check_quiet()
    assert served.has_come_to_rest()
    assert served.memory - memory < MOST_MEMORY
    assert other.p99 < max(20 * usual, 3.0)


def check_first(sent: bytes, answers: bytes) -> None:
    """An answer to the first of the frames that ``sent`` may be taken for."""
    if len(answers) < 4:
        return
    _, key, version, correlation_id = struct.unpack_from(">ihhi", sent)
    (length, answered) = struct.unpack_from(">ii", answers)
    assert answered == correlation_id
    answer = answers[4 : 4 + length]
    assert len(answer) == length
    if key == ApiKey.API_VERSIONS and not 0 <= version <= APIS[key].high:
        version = 0
    check(key, version, answer)

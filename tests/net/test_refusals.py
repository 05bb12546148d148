"""Why a connection was refused: once a minute and address, with the client's name where it has said it."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

import pytest

from seglog.net.refusals import MOST_ADDRESSES, SECONDS, Refusals, client_id_of
from tests.net.serving import LARGEST, Run, frame, is_closed, serving

TLS = bytes.fromhex("16030100a5010000a10303") + bytes(100)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, "seglog.net")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "seglog.net"]


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (TLS, "it began a TLS handshake, and this port has no TLS: set security.protocol=PLAINTEXT in the client"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "it sent an HTTP request (GET / HTTP/1.1), and this is a Kafka port"),
        (
            struct.pack(">i", LARGEST + 1) + bytes(8),
            f"a request of {LARGEST + 1} bytes exceeds the limit of {LARGEST} bytes",
        ),
        (frame(b"evil"), "evil"),
        (struct.pack(">i", -1) + bytes(8), "a frame of -1 bytes cannot be a request"),
    ],
)
def test_a_client_that_is_refused_leaves_a_line(
    run: Run, lines: Callable[[], list[str]], sent: bytes, why: str
) -> None:
    async def act() -> None:
        async with serving(lambda _: None) as served:
            for _ in range(3):
                reader, writer = await served.connect()
                writer.write(sent)
                assert await is_closed(reader)

    run(act)
    (line,) = lines()
    assert line.startswith(f"Connection from 127.0.0.1 to PLAINTEXT refused: {why}")


def test_next_log_line_of_an_address_counts_suppressed_refusals(lines: Callable[[], list[str]]) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for at, address in ((0.0, "a"), (1.0, "a"), (SECONDS - 1, "a"), (SECONDS - 1, "b"), (SECONDS, "a")):
        now[0] = at
        refusals.log(address, "PLAINTEXT", "version 99 of Metadata is not served", client_id="kcat")
    why = "to PLAINTEXT refused: version 99 of Metadata is not served"
    assert lines() == [
        f"Connection from a (client id kcat) {why}",
        f"Connection from b (client id kcat) {why}",
        f"Connection from a (client id kcat) {why}; 2 more from there since the last such line",
    ]


def test_the_client_is_named_by_the_first_bytes_of_its_request() -> None:
    head = struct.pack(">ihhih", 100, 3, 99, 1, 4) + b"kcat" + bytes(20)
    assert client_id_of(head) == "kcat"
    assert [client_id_of(head[:length]) for length in range(15)] == [""] * 15
    assert client_id_of(TLS) == client_id_of(b"GET / HTTP/1.1\r\n\r\n") == ""


def test_addresses_without_number_take_bounded_memory(lines: Callable[[], list[str]]) -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])
    for number in range(3 * MOST_ADDRESSES):
        refusals.log(f"address {number}", "PLAINTEXT", "why")
    assert len(lines()) == len(refusals._said) == MOST_ADDRESSES
    now[0] = SECONDS
    refusals.log("another", "PLAINTEXT", "why")
    assert lines()[-1] == "Connection from another to PLAINTEXT refused: why"
    assert len(refusals._said) == 1

"""Limits on connections, and on how long they may idle: over real sockets, with short times."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import logging
import os
import resource
import socket
import struct
from collections.abc import Awaitable, Iterator
from contextlib import suppress

import pytest

from seglog.core.rates import Window
from seglog.core.types import MAX_INT32
from seglog.net import listener
from seglog.net.connection import RECEIVE_BYTES, SLICE_BYTES, IdleLimits, Reply
from seglog.net.connection_quotas import MANY_STALLED, SMALL_SLICE_BYTES, CreationRates
from seglog.net.listener import WRITE_AHEAD, Keepalive
from tests.net.serving import Bytes, Run, Served, answer, ask, echo, frame, is_closed, serving, until

SOON = IdleLimits(idle=0.04, frame=0.04)
LARGE = 4 << 20
FOREVER = 600.0


async def goes_on(served: Served) -> None:
    """Somebody else is answered."""
    assert await ask(*await served.connect(), b"fine") == b"enif"


# How many, and how fast


def rates(now: list[float], most: int = MAX_INT32, protected: str | None = None) -> CreationRates:
    return CreationRates(lambda: now[0], Window(), most, protected)


def test_a_rate_is_counted_over_ten_seconds() -> None:
    now = [0.0]
    limited = rates(now, 2)
    assert [limited.take("L") for _ in range(20)] == [0.0] * 20
    assert [limited.take("L") for _ in range(3)] == [0.5, 1.0, 1.0]  # one sample is the longest wait
    now[0] += 1000
    assert [limited.take("L") for _ in range(21)] == [0.0] * 20 + [0.5]
    limited.limit(4, {})
    assert [limited.take("L") for _ in range(20)] == [0.0] * 19 + [0.25]
    limited.limit(MAX_INT32, {})
    assert limited.take("L") == 0.0


def test_a_listener_has_a_rate_of_its_own() -> None:
    limited = rates([0.0], 4, protected="BROKERS")
    limited.limit(4, {"SLOW": 1, "BROKERS": 3})
    assert [limited.take("SLOW") for _ in range(11)] == [0.0] * 10 + [1.0]
    assert [limited.take("BROKERS") for _ in range(31)] == [0.0] * 30 + [1 / 3 // 0.001 / 1000]
    assert [limited.take("FAST") for _ in range(30)] == [0.0] * 29 + [0.25]  # eleven were those of SLOW


def test_an_address_has_a_rate_of_its_own() -> None:
    now = [0.0]
    limited = rates(now, 100)
    limited.limit_ips({"10.0.0.1": 1}, 2)
    assert [limited.take_ip("L", "10.0.0.1") for _ in range(12)] == [0.0] * 10 + [1.0] * 2
    assert [limited.take_ip("L", "10.0.0.2") for _ in range(21)] == [0.0] * 20 + [0.5]
    now[0] = 100.0
    assert limited.take_ip("L", "10.0.0.1") == 0.0
    limited.limit_ips({})
    assert [limited.take_ip("L", "10.0.0.1") for _ in range(30)] == [0.0] * 30


def test_a_connection_that_an_address_may_not_open_does_not_count_elsewhere() -> None:
    limited = rates([0.0], 2)
    limited.limit_ips({}, 1)
    for number in range(100):
        limited.take("L")
        assert (limited.take_ip("L", "10.0.0.1") > 0) is (number >= 10)
    assert [limited.take("L") for _ in range(11)] == [0.0] * 10 + [0.5]


def test_rates_of_addresses_that_are_gone_take_no_memory() -> None:
    now = [0.0]
    limited = rates(now)
    limited.limit_ips({}, 1)
    for number in range(20_000):
        now[0] += 0.1
        limited.take_ip("L", f"10.0.{number // 256}.{number % 256}")
    assert len(limited._ip_rates) < 3_000


def test_connections_that_come_too_fast_wait(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        async with serving(echo) as served:
            served.shared.rates = rates([0.0], 2)  # while no time goes by
            loop = asyncio.get_running_loop()
            for _ in range(20):
                await goes_on(served)
            begun = loop.time()
            await goes_on(served)
            assert loop.time() - begun >= 0.49

    with caplog.at_level(logging.WARNING, "seglog.net"):
        run(act)
    assert caplog.text.count("max.connection.creation.rate") == 1


def test_an_address_that_comes_too_fast_is_hung_up_on_later(run: Run) -> None:
    async def act() -> None:
        async with serving(echo) as served:
            served.shared.rates = rates([0.0])
            served.shared.rates.limit_ips({"127.0.0.1": 4})
            clients = [await served.connect() for _ in range(41)]
            assert await ask(*clients[39], b"fine") == b"enif"
            assert await is_closed(clients[40][0])
            assert len(served.shared.connections) == 40
            served.shared.rates.limit_ips({})
            await goes_on(served)

    run(act)


def test_a_stop_does_not_wait_for_those_that_are_hung_up_on(run: Run) -> None:
    async def act() -> None:
        async with serving(echo) as served:
            served.shared.rates = CreationRates(lambda: 0.0, Window(11, 3_600_000), MAX_INT32)
            served.shared.rates.limit_ips({}, 1)
            for _ in range(36_002):
                served.shared.rates.take_ip("PLAINTEXT", "127.0.0.1")
            last = await served.connect()
            await until(lambda: bool(served.listener._to_close))
        assert await is_closed(last[0])

    run(act)


def test_one_connection_too_many_waits_until_another_goes(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, max_connections=2) as served:
            first, second, third = [await served.connect() for _ in range(3)]
            third[1].write(frame(b"third"))
            assert await ask(*first, b"fine") == b"enif"
            assert await ask(*second, b"fine") == b"enif"
            assert len(served.shared.connections) == 2
            second[1].close()
            assert await answer(third[0]) == b"driht"
            fourth = await served.connect()
            served.shared.limit_connections(3, 3)
            assert await ask(*fourth, b"fine") == b"enif"

    run(act)


def test_connections_of_one_address_are_limited(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, per_ip=1) as served:
            first = await served.connect()
            assert await ask(*first, b"fine") == b"enif"
            second = await served.connect()
            assert await is_closed(second[0])
            first[1].close()
            await until(lambda: not served.shared.connections)
            await goes_on(served)

    run(act)


def test_all_addresses_of_a_host_are_listened_on(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, host="") as served:
            served.clients.append(await asyncio.open_connection("127.0.0.1", served.listener.address.port))
            assert await ask(*served.clients[0], b"four") == b"ruof"

    run(act)


# File descriptors


@pytest.fixture
def first_free() -> Iterator[int]:
    """A file descriptor with none free below it, whatever other tests in this process have opened and closed."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    gaps = []
    while (number := os.dup(0)) <= highest:
        gaps.append(number)
    os.close(number)
    yield number
    for gap in gaps:
        os.close(gap)


def test_connections_leave_file_descriptors_for_others(
    run: Run, first_free: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def act() -> None:
        async with serving(echo, descriptors=first_free + 20) as served:
            clients = [await served.connect() for _ in range(20)]
            assert await is_closed(clients[-1][0])
            assert await ask(*clients[0], b"fine") == b"enif"
            for _, writer in clients:
                writer.close()
            await until(lambda: not served.shared.connections)
            await goes_on(served)

    with caplog.at_level(logging.WARNING, "seglog.net"):
        run(act)
    assert caplog.text.count("file descriptors run out") == 1


def test_no_file_descriptor_at_accept_is_waited_out(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def act() -> None:
        async with serving(echo) as served:
            first = await served.connect()
            assert await ask(*first, b"fine") == b"enif"
            client = socket.socket()
            client.settimeout(0)
            free = os.dup(0)
            os.close(free)
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
            try:
                with suppress(BlockingIOError):
                    client.connect((served.listener.address.host, served.listener.address.port))
                await until(lambda: "no connection can be accepted" in caplog.text)
                assert await ask(*first, b"fine") == b"enif"
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            reader, writer = await asyncio.open_connection(sock=client)
            assert await ask(reader, writer, b"late") == b"etal"
            writer.close()

    with caplog.at_level(logging.WARNING, "seglog.net"):
        run(act)


# Time


@pytest.mark.parametrize("sent", [b"", b"\0", b"\0\0\0\x10ab", b"\0\0\0\x10" + bytes(15), b"\0\1\0\0" + bytes(100)])
def test_half_a_request_is_not_waited_for_for_ever(run: Run, sent: bytes) -> None:
    async def act() -> None:
        async with serving(echo, idle=SOON) as served:
            reader, writer = await served.connect()
            writer.write(frame(b"whole") + sent)
            assert await answer(reader) == b"elohw"
            assert await is_closed(reader)

    run(act)


def test_time_while_broker_was_suspended_does_not_count_as_idle(run: Run) -> None:
    """A broker that was suspended in the middle of a frame does not read all waiting bytes at once."""
    stopped = 0.0

    async def act() -> None:
        nonlocal stopped
        loop = asyncio.get_running_loop()
        patience = IdleLimits(idle=FOREVER, frame=1.0)
        async with serving(echo, idle=patience, now=lambda: loop.time() + stopped) as served:
            client = await served.connect()
            client[1].write(frame(b"fine")[:6])
            await until(lambda: any(connection._watch.seen[0] == "frame" for connection in served.shared.connections))
            stopped, back = 1000.0, loop.time() + 1000.0
            await until(lambda: served.listener._looked_at >= back)
            client[1].write(frame(b"fine")[6:])
            assert await answer(client[0]) == b"enif"

    run(act)


def test_a_byte_now_and_then_is_too_slow_and_a_steady_client_is_not(run: Run) -> None:
    async def act() -> None:
        async with serving(echo, idle=IdleLimits(idle=FOREVER, frame=0.2, rate=100)) as served:
            slow, steady = await served.connect(), await served.connect()
            body = bytes(4000)
            sent = frame(body)

            async def trickle() -> None:
                for at in range(len(sent)):
                    if not slow[1].is_closing():
                        slow[1].write(sent[at : at + 1])
                    await asyncio.sleep(0.05)

            trickling = asyncio.create_task(trickle())
            for start in range(0, len(sent), 200):
                steady[1].write(sent[start : start + 200])
                await asyncio.sleep(0.02)
            assert await answer(steady[0]) == body
            assert await is_closed(slow[0])
            trickling.cancel()
            with suppress(asyncio.CancelledError, ConnectionError):
                await trickling

    run(act)


@pytest.mark.parametrize("kind", ["bytes", "list", "later"])
def test_a_client_that_does_not_read_is_not_read_from_and_ends(run: Run, kind: str) -> None:
    """It holds no more than the watermark and one answer."""
    made: list[int] = []
    size = 100_000

    async def later() -> Reply:
        return frame(bytes(size))

    def answers(body: bytes) -> Reply | Awaitable[Reply]:
        if body != b"give":
            return echo(body)
        made.append(size)
        return later() if kind == "later" else [frame(bytes(size))] if kind == "list" else frame(bytes(size))

    async def act() -> None:
        async with serving(answers, idle=IdleLimits(idle=0.5)) as served:
            client = socket.create_connection((served.listener.address.host, served.listener.address.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(frame(b"give") * 5000)
            await until(lambda: bool(served.shared.connections))
            (connection,) = served.shared.connections
            assert connection._transport is not None
            largest = 0
            while served.shared.connections:
                if connection._transport is not None:
                    largest = max(largest, connection._transport.get_write_buffer_size())
                await asyncio.sleep(0.01)
            assert WRITE_AHEAD < largest <= WRITE_AHEAD + size + 4
            assert len(made) * size < 20 << 20  # the kernel's buffers
            client.close()
            await goes_on(served)
            assert served.shared._stalled == 0

    run(act)


@pytest.mark.parametrize(("stalled", "most"), [(MANY_STALLED, SLICE_BYTES), (MANY_STALLED + 1, SMALL_SLICE_BYTES)])
def test_where_many_do_not_read_each_is_sent_less_at_a_time(run: Run, stalled: int, most: int) -> None:
    read: list[int] = []

    class Counted(Bytes):
        def read_part(self, start: int, size: int) -> bytes:
            read.append(size)
            return super().read_part(start, size)

    data = bytes(3 << 20)

    async def act() -> None:
        async with serving(lambda _: [len(data).to_bytes(4, "big"), Counted(data, len(data))]) as served:
            served.shared.stalled(stalled)
            assert len(await ask(*await served.connect(), b"give")) == len(data)

    run(act)
    assert max(read) == most


def test_where_clients_leave_too_much_they_have_less_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MOST_UNSENT", LARGE)

    async def act() -> None:
        async with serving(lambda _: frame(bytes(LARGE * 2)), idle=IdleLimits(idle=FOREVER, frame=0.04)) as served:
            client = socket.create_connection((served.listener.address.host, served.listener.address.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(frame(b"give") * 3)
            await until(lambda: bool(served.shared.connections))
            await until(lambda: not served.shared.connections)
            client.close()

    run(act)


def test_a_connection_that_ends_does_not_wait_for_its_client_to_read(run: Run) -> None:
    async def act() -> None:
        async with serving(
            lambda body: frame(bytes(LARGE)) if body == b"give" else echo(body),
            idle=IdleLimits(idle=FOREVER, frame=0.04),
        ) as served:
            client = socket.create_connection((served.listener.address.host, served.listener.address.port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.sendall(frame(b"give") * 5)
            await until(lambda: any(not connection._writable for connection in served.shared.connections))
            for connection in list(served.shared.connections):
                connection.close()
            await until(lambda: not served.shared.connections)
            client.close()

    run(act)


def test_a_client_is_gone_though_nothing_can_be_read_from_it(run: Run) -> None:
    """The bytes behind its waiting request fill the receive buffer, so the broker does not read that it has closed."""

    async def never(_body: bytes) -> Reply:
        await asyncio.Event().wait()
        return None

    async def act() -> None:
        async with serving(lambda body: never(body) if body == b"wait" else echo(body), idle=SOON) as served:
            _, writer = await served.connect()
            writer.write(frame(b"wait") + bytes(RECEIVE_BYTES * 4))
            await until(lambda: any(connection._is_paused for connection in served.shared.connections))
            await until(lambda: not served.shared.connections)
            await goes_on(served)

    run(act)


def test_client_waiting_for_a_response_is_not_idle(run: Run) -> None:
    async def act() -> None:
        gate = asyncio.Event()

        async def later(body: bytes) -> Reply:
            await gate.wait()
            return echo(body)

        async with serving(lambda body: later(body) if body == b"wait" else echo(body), idle=SOON) as served:
            waiting = await served.connect()
            waiting[1].write(frame(b"wait"))
            idle = await served.connect()
            assert await is_closed(idle[0])
            gate.set()
            assert await answer(waiting[0]) == b"tiaw"

    run(act)


def test_a_peer_that_is_no_longer_there_is_noticed(run: Run) -> None:
    """Its kernel drops every packet, as one that has lost its power does."""

    async def never(_body: bytes) -> Reply:
        await asyncio.Event().wait()
        return None

    async def act() -> None:
        async with serving(
            lambda body: never(body) if body == b"wait" else echo(body),
            idle=IdleLimits(FOREVER),
            keepalive=Keepalive(idle=1, interval=1, questions=1),
        ) as served:
            reader, writer = await served.connect()
            assert await ask(reader, writer, b"fine") == b"enif"
            writer.write(frame(b"wait"))
            await until(lambda: any(connection.is_waiting for connection in served.shared.connections))
            attach_filter = 26
            drop_all = struct.pack("HBBI", 6, 0, 0, 0)  # BPF_RET of 0 bytes
            program = ctypes.create_string_buffer(drop_all)
            writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, attach_filter, struct.pack("HL", 1, ctypes.addressof(program))
            )
            await until(lambda: not served.shared.connections)

    run(act)


def test_a_client_with_many_requests_lets_others_have_their_turn(run: Run) -> None:
    """Each request takes a millisecond here, by the test's own clock."""
    now = itertools.count()
    order: list[bytes] = []

    def answers(body: bytes) -> Reply:
        order.append(body)
        return echo(body)

    async def act() -> None:
        async with serving(answers, now=lambda: next(now) / 1000) as served:
            first, second = await served.connect(), await served.connect()
            await until(lambda: len(served.shared.connections) == 2)
            first[1].write(frame(b"first") * 1000)
            second[1].write(frame(b"second"))
            assert await answer(second[0]) == b"dnoces"
            for _ in range(1000):
                assert await answer(first[0]) == b"tsrif"

    run(act)
    assert order.index(b"second") < 100

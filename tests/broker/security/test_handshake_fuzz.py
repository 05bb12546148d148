"""Any bytes in any order on a connection with SASL: nothing reaches dispatch before the client has authenticated."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.broker.dispatch import frame_limits
from seglog.broker.security.plain import PlainUsers, plain_server
from seglog.broker.security.sasl_session import SaslSession, SaslSettings
from seglog.broker.security.scram import Invented, ScramCredential, scram_server
from seglog.client.security.jaas import parse_jaas
from seglog.net.connection import ANONYMOUS, ClientConnection, FrameHandler, IdleLimits, Reply
from seglog.net.connection_quotas import ConnectionQuotas
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class
from tests.cases import case
from tests.kit.manual_clock import ManualClock

LARGEST: Final = 512 << 10
BUDGET: Final = 1 << 20
RIGHT: Final = b"\0alice\0alice-secret"
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256")
ALLOWED: Final = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_JAAS: Final = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="alice-secret";'
_USERS: Final = PlainUsers(parse_jaas(_JAAS))
_CREDENTIALS: Final = {"alice": ScramCredential.of_password("sha256", "alice-secret")}
_INVENTED: Final = Invented(b"seed", 4096)


class Pipe(asyncio.Transport):
    """What the broker writes; it takes all."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1)})
        self.written = b""
        self.is_closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None:
        """The test sends what it likes."""

    def resume_reading(self) -> None:
        """As `pause_reading`."""

    def get_write_buffer_size(self) -> int:
        return 0


class Door:
    """A connection of a listener with SASL. ``dispatched`` has the API of each frame that came through, with the
    principal at that time."""

    def __init__(self, lifetime: int = 0) -> None:
        self.clock = ManualClock()
        self.dispatched: list[tuple[int, str]] = []
        self.quotas = ConnectionQuotas(
            largest=frame_limits(100 << 20),
            max_connections=10,
            max_connections_per_ip=10,
            in_flight_bytes=BUDGET,
            idle=IdleLimits(600),
            now=self.clock.monotonic,
        )
        self.connection = ClientConnection(
            listener="SASL",
            handler=self._dispatch,
            limits=self.quotas,
            now=self.clock.monotonic,
            closed=lambda _: None,
        )
        self.pipe = Pipe()
        self.connection.connection_made(self.pipe)
        handler: FrameHandler = self._dispatch
        self.session = SaslSession(
            self.connection,
            handler,
            SaslSettings(
                {
                    "PLAIN": lambda: plain_server(_USERS),
                    "SCRAM-SHA-256": lambda: scram_server(
                        "sha256", _CREDENTIALS.get, lambda user: _INVENTED.credential("sha256", user)
                    ),
                },
                dict.fromkeys(MECHANISMS, lifetime),
                0.0,
                LARGEST,
                self.clock.monotonic,
                self.clock.now_ms,
                lambda *_: None,
            ),
        )

    def _dispatch(self, connection: ClientConnection, frame: memoryview, /) -> Reply:
        (key,) = struct.unpack_from(">h", frame)
        self.dispatched.append((key, connection.principal))
        return b""

    @property
    def reached(self) -> list[int]:
        """The APIs that came through, but for ApiVersions."""
        return [key for key, _ in self.dispatched if key != ApiKey.API_VERSIONS]

    async def send(self, data: bytes, piece: int = 1 << 16) -> None:
        for start in range(0, len(data), piece):
            rest = data[start : start + piece]
            while rest and not self.pipe.is_closed:
                room = self.connection.get_buffer(-1)
                taken = min(len(room), len(rest))
                if not taken:  # the kernel would keep the rest
                    return
                room[:taken] = rest[:taken]
                self.connection.buffer_updated(taken)
                rest = rest[taken:]
                while self.connection.is_waiting and not self.pipe.is_closed:
                    await asyncio.sleep(0)

    async def close(self) -> None:
        self.connection.connection_lost(None)
        await asyncio.sleep(0)


def frame(key: int, version: int, body: bytes, client: bytes = b"\xff\xff") -> bytes:
    head = struct.pack(">hhi", key, version, 7) + client
    return struct.pack(">i", len(head) + len(body)) + head + body


def message(key: ApiKey, version: int, **contents: object) -> bytes:
    flexible = b"\0" if version >= APIS[key].flexible else b""
    return frame(key, version, flexible + write_message(request_class(key, version), contents))


def handshake(mechanism: str, version: int = 1) -> bytes:
    return message(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)


def token(data: bytes, version: int = 2) -> bytes:
    return message(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=data)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


PREFIXES: Final = {
    "nothing": b"",
    "a handshake": handshake("PLAIN"),
    "an old handshake": handshake("PLAIN", 0),
    "the middle of SCRAM": handshake("SCRAM-SHA-256") + token(b"n,,n=alice,r=x"),
    "a wrong password": handshake("PLAIN") + token(b"\0alice\0wrong"),
    "an unknown mechanism": handshake("GSSAPI"),
    "a token without a handshake": token(RIGHT),
}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_every_api_in_every_version_is_stopped_in_every_state(prefix: str) -> None:
    async def work() -> None:
        for key in range(-2, max(APIS) + 3):
            for version in (-1, *range(APIS[key].high + 3 if key in APIS else 2), 32767):
                for body in (b"", bytes(40)):
                    door = Door()
                    await door.send(PREFIXES[prefix])
                    before = len(door.dispatched)
                    await door.send(frame(key, version, body))
                    assert door.reached == [], (key, version)
                    assert door.connection.principal == ANONYMOUS
                    if len(door.dispatched) > before:
                        assert (prefix, key) == ("nothing", ApiKey.API_VERSIONS)
                    await door.close()

    run(work)


def test_the_right_password_opens_the_door() -> None:
    """So that the tests above could fail."""

    async def work() -> None:
        door = Door()
        await door.send(handshake("PLAIN") + token(RIGHT) + frame(ApiKey.METADATA, 0, b""), 3)
        assert door.dispatched == [(ApiKey.METADATA, "User:alice")]
        await door.close()

    run(work)


_KEYS: Final = st.sampled_from(sorted(APIS)) | st.integers(-32768, 32767)
_WRONG: Final = st.binary(max_size=60) | st.sampled_from(
    [RIGHT[:-1], RIGHT + b"x", b"\0alice\0", b"n,,n=alice,r=x", b"\x01"]
)
_STEPS: Final = st.lists(
    st.one_of(
        st.builds(handshake, st.sampled_from(MECHANISMS) | st.text(max_size=9), st.integers(0, 1)),
        st.builds(token, _WRONG, st.integers(0, 2)),
        st.builds(frame, _KEYS, st.integers(-1, 20), st.binary(max_size=80)),
        st.binary(max_size=80).map(lambda data: struct.pack(">i", len(data)) + data),
        st.binary(max_size=40),
        st.just(frame(ApiKey.API_VERSIONS, 0, b"")),
        st.just(frame(ApiKey.METADATA, 0, b"\xff\xff\xff\xff")),
    ),
    max_size=8,
)


@given(_STEPS, st.integers(1, 200), st.sampled_from([0, 60_000]))
def test_no_bytes_open_the_door_without_the_password(steps: list[bytes], piece: int, lifetime: int) -> None:
    case()

    async def work() -> None:
        door = Door(lifetime)
        for step in steps:
            await door.send(step, piece)
            assert door.reached == []
            assert door.connection.principal == ANONYMOUS
        await door.close()

    run(work)


@given(_STEPS, _STEPS, st.integers(1, 200), st.sampled_from([0, 60_000]))
def test_no_bytes_make_a_client_another(before: list[bytes], after: list[bytes], piece: int, lifetime: int) -> None:
    """Not before it authenticates, not after it, and not when it authenticates again."""
    case()

    async def work() -> None:
        door = Door(lifetime)
        for step in (*before, handshake("PLAIN"), token(RIGHT), *after):
            await door.send(step, piece)
            door.clock.advance(1500)
            assert door.connection.principal in (ANONYMOUS, "User:alice")
            assert {who for key, who in door.dispatched if key != ApiKey.API_VERSIONS} <= {"User:alice"}
        await door.close()

    run(work)


@pytest.mark.parametrize("prefix", ["nothing", "a handshake", "an old handshake", "the middle of SCRAM"])
def test_a_slow_handshake_holds_little_and_not_for_long(prefix: str) -> None:
    async def work() -> None:
        door = Door()
        await door.send(PREFIXES[prefix])
        most = struct.pack(">ihh", LARGEST, ApiKey.SASL_AUTHENTICATE, 2)
        await door.send(most + bytes(LARGEST - 100))  # all but the end of the largest frame
        assert len(door.connection.get_buffer(-1)) <= LARGEST
        limits = IdleLimits(600)
        door.connection.review(limits, 0.0)
        await door.send(b"x")  # a byte now and then does not help
        closed = []
        for seconds in (limits.frame - 1, limits.frame):
            door.connection.review(limits, seconds)
            closed.append(door.pipe.is_closed)
        assert closed == [False, True]
        await door.close()

    run(work)


def test_a_frame_beyond_the_limit_is_refused_by_its_head() -> None:
    async def work() -> None:
        for key in ALLOWED:
            door = Door()
            await door.send(struct.pack(">ihh", LARGEST + 1, key, 0))
            assert door.pipe.is_closed
            await door.close()

    run(work)

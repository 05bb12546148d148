"""The authentication of one connection by SASL (``SaslServerAuthenticator.java``, KIP-43, KIP-152, KIP-368).

::

    HANDSHAKE ── SaslHandshake v1 ──► TOKENS ──┐ SaslAuthenticate, as often as the mechanism needs
        ▲     └─ SaslHandshake v0 ──► RAW ─────┤ frames that are only the mechanism's messages
        │                                      ▼
        └──── SaslHandshake again ────────── OPEN ── requests go to the broker

Until it is OPEN, a client reaches ApiVersions, SaslHandshake and SaslAuthenticate. Anything else ends the connection
when the first bytes of its frame are there; so does a second failure of any kind. If sessions end, a client begins
again with SaslHandshake before the end, and no other request is answered meanwhile or afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from struct import Struct
from typing import Any, Final, NamedTuple

from seglog.broker.security.verification import Exchange, Mechanism, TokenPrincipal, Verified
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import AuthenticationFailedError, InvalidRequestError
from seglog.net.connection import ClientConnection, FrameHandler, Reply
from seglog.protocol.apis import APIS, ApiKey, name_of
from seglog.protocol.framing import SIZE, RequestHeader, frame_response, read_header
from seglog.protocol.messages import read_request, write_response

_HEAD: Final = Struct(">hh")
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE)
_AUTHENTICATE: Final = int(ApiKey.SASL_AUTHENTICATE)
_BEFORE: Final = frozenset({_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE})
_RETRY_SECONDS: Final = 1.0
"""A client may authenticate again no sooner (``KafkaChannel.MIN_REAUTH_INTERVAL_ONE_SECOND_NANOS``)."""


_Step = bytes | Awaitable[None] | AuthenticationFailedError
"""The answer of a mechanism, what it waits for, or why the client fails."""


class SaslSettings(NamedTuple):
    """Of a listener. ``lifetimes`` are the milliseconds after which a session ends, 0 for never, by mechanism; it ends
    no later than the client's credentials. ``delay`` is the seconds after which a client gets to know that it failed,
    ``largest`` the bytes of a frame. ``refused`` is called with each failure."""

    mechanisms: Mapping[str, Mechanism]
    lifetimes: Mapping[str, int]
    delay: float
    largest: int
    now: Callable[[], float]
    now_ms: Callable[[], int]
    refused: Callable[[ClientConnection, str, str], None]


class State(Enum):
    HANDSHAKE = auto()
    TOKENS = auto()
    RAW = auto()
    OPEN = auto()
    FAILED = auto()


class SaslSession:
    """A connection's handler until its client has authenticated, and for as long as its session ends."""

    def __init__(self, connection: ClientConnection, dispatch: FrameHandler, settings: SaslSettings) -> None:
        self.state = State.HANDSHAKE
        self._dispatch = dispatch
        self._settings = settings
        self._mechanism = ""
        self._wrong_mechanism = False
        """The client wants to authenticate again by another mechanism."""
        self._exchange: Exchange | None = None
        self._authenticated_by = ""
        self._principal = ""
        self._ends_at = 0.0
        """When the session ends; 0 if it does not, or there is none."""
        self._lifetime = 0
        """For the client, in ms; 0 if the session does not end."""
        self._began_again_at = 0.0
        connection.restrict(self, self.largest_frame)

    def largest_frame(self, head: memoryview) -> int:
        """`seglog.net.connection.ConnectionLimits.largest_frame` while the client is not authenticated."""
        if self.state is State.RAW:
            return self._settings.largest
        key, _ = _HEAD.unpack_from(head)
        if key not in _BEFORE or self.state is State.FAILED:
            raise InvalidRequestError(f"{name_of(key)} came before the client had authenticated with SASL")
        return min(self._settings.largest, APIS[key].max_frame or self._settings.largest)

    def __call__(self, connection: ClientConnection, frame: memoryview, /) -> Reply | Awaitable[Reply]:
        if self.state is State.OPEN:
            return self._open(connection, frame)
        if self.state is State.RAW:
            return self._raw(connection, frame)
        key, version = _HEAD.unpack_from(frame)
        if key == _API_VERSIONS and self.state is State.HANDSHAKE and not self._principal:
            return self._dispatch(connection, frame)
        header = read_header(frame)
        api = APIS[key]
        if not api.served <= version <= api.high:
            raise InvalidRequestError(f"version {version} of {name_of(key)} is not served")
        if key == _HANDSHAKE and self.state is State.HANDSHAKE:
            return self._handshake(connection, header, read_request(key, version, frame, header.body).mechanism)
        if key == _AUTHENTICATE and self.state is State.TOKENS:
            token = bytes(read_request(key, version, frame, header.body).auth_bytes)
            return self._token(connection, header, token)
        if key == _API_VERSIONS:
            raise InvalidRequestError("ApiVersions came in the middle of SASL")
        self._settings.refused(connection, f"{name_of(key)} came in the wrong order", header.client_id or "")
        return self._failed(connection, _answer(header, {"error_code": int(ErrorCode.ILLEGAL_SASL_STATE)}))

    def _open(self, connection: ClientConnection, frame: memoryview) -> Reply | Awaitable[Reply]:
        key, _ = _HEAD.unpack_from(frame)
        now = self._settings.now()
        if key == _HANDSHAKE and now - self._began_again_at >= _RETRY_SECONDS:
            self._began_again_at = now
            self.state = State.HANDSHAKE
            connection.limit(self.largest_frame)
            return self(connection, frame)
        if now >= self._ends_at and key != _HANDSHAKE:
            raise InvalidRequestError("its session has ended, and it did not authenticate again")
        return self._dispatch(connection, frame)  # which refuses a handshake that comes too soon

    def _handshake(
        self, connection: ClientConnection, header: RequestHeader, mechanism: str
    ) -> Reply | Awaitable[Reply]:
        names = list(self._settings.mechanisms)
        make = self._settings.mechanisms.get(mechanism)
        if make is None:
            self._settings.refused(
                connection, f"the mechanism it wants is none of {', '.join(names)}", header.client_id or ""
            )
            code = int(ErrorCode.UNSUPPORTED_SASL_MECHANISM)
            return self._failed(connection, _answer(header, {"error_code": code, "mechanisms": names}))
        self._wrong_mechanism = bool(self._principal) and mechanism != self._authenticated_by
        self._mechanism = mechanism
        self._exchange = make()
        next(self._exchange)
        self.state = State.RAW if header.version == 0 else State.TOKENS
        return _answer(header, {"error_code": 0, "mechanisms": names})

    def _token(self, connection: ClientConnection, header: RequestHeader, token: bytes) -> Reply | Awaitable[Reply]:
        return self._reply(connection, header, self._step(connection, token))

    def _raw(self, connection: ClientConnection, frame: memoryview) -> Reply | Awaitable[Reply]:
        """After SaslHandshake of version 0, where a failure has no answer."""
        return self._reply(connection, None, self._step(connection, bytes(frame)))

    def _reply(
        self, connection: ClientConnection, header: RequestHeader | None, step: _Step
    ) -> Reply | Awaitable[Reply]:
        """``header`` is None if messages have no frames."""
        if isinstance(step, bytes):
            if header is None:
                return SIZE.pack(len(step)) + step
            lifetime = self._lifetime if self.state is State.OPEN else 0
            told = {"error_code": 0, "error_message": "", "auth_bytes": step, "session_lifetime": lifetime}
            return _answer(header, told)
        if isinstance(step, Awaitable):
            return self._reply_later(connection, header, step)
        why = f"{step}; {step.__cause__}" if step.__cause__ is not None else str(step)
        client_id = "" if header is None else header.client_id or ""
        self._settings.refused(connection, f"{self._mechanism}: {why}", client_id)
        if header is None:
            return self._failed(connection, b"")
        failed = {"error_code": int(ErrorCode.SASL_AUTHENTICATION_FAILED), "error_message": str(step)}
        return self._failed(connection, _answer(header, failed))

    async def _reply_later(self, connection: ClientConnection, header: RequestHeader | None, step: _Step) -> Reply:
        while isinstance(step, Awaitable):
            await step
            step = self._step(connection, b"")
        reply = self._reply(connection, header, step)
        return await reply if isinstance(reply, Awaitable) else reply

    def _step(self, connection: ClientConnection, token: bytes) -> _Step:
        try:
            return self._advanced(connection, token)
        except AuthenticationFailedError as error:
            return error

    def _advanced(self, connection: ClientConnection, token: bytes) -> bytes | Awaitable[None]:
        """The mechanism's answer. `AuthenticationFailedError` for the client."""
        assert self._exchange is not None
        if self._wrong_mechanism:
            raise AuthenticationFailedError(
                f"SASL mechanism '{self._mechanism}' requested by client is not supported for re-authentication of "
                f"mechanism '{self._authenticated_by}'"
            )
        try:
            return self._exchange.send(token)
        except StopIteration as end:
            verified: Verified = end.value
            self._opened(connection, verified)
            return verified.answer
        except ValueError:
            again = "re-authentication" if self._principal else "authentication"
            raise AuthenticationFailedError(
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self._mechanism}"
            ) from None

    def _opened(self, connection: ClientConnection, verified: Verified) -> None:
        name = f"User:{verified.user}"
        principal = TokenPrincipal(name) if verified.by_token else name
        if self._principal and principal != self._principal:
            raise AuthenticationFailedError(
                f"Cannot change principals during re-authentication from {self._principal}: {principal}"
            )
        self._principal = principal
        self._authenticated_by = self._mechanism
        self._exchange = None
        self.state = State.OPEN
        limits = [limit] if (limit := self._settings.lifetimes.get(self._mechanism, 0)) else []
        if verified.expires_ms is not None:
            limits.append(max(0, verified.expires_ms - self._settings.now_ms()))
        if limits:
            self._lifetime = min(limits)
            self._ends_at = self._settings.now() + self._lifetime / 1000
        connection.admit(principal, self if limits else self._dispatch)

    def _failed(self, connection: ClientConnection, data: bytes) -> Awaitable[Reply]:
        """Answer, and end the connection. Both come later, so that passwords cannot be tried fast (KIP-306)."""
        self.state = State.FAILED
        return self._end_later(connection, data)

    async def _end_later(self, connection: ClientConnection, data: bytes) -> Reply:
        await asyncio.sleep(self._settings.delay)
        connection.end(data)
        return None


def _answer(header: RequestHeader, answer: Mapping[str, Any]) -> bytes:
    body = write_response(header.key, header.version, answer)
    return frame_response(header.key, header.version, header.correlation_id, len(body)) + body

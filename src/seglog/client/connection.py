"""A blocking connection to one broker: requests by our own protocol code, each in the newest version of both sides.

Several requests may be under way; a broker answers them in their order. TLS comes first, then ApiVersions, then SASL;
a session of SASL that ends is renewed between two requests (KIP-368).
"""

from __future__ import annotations

import math
import random
import select
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from seglog.client.bootstrap import Dial, HostPort, connect
from seglog.client.client_config import ClientConfig
from seglog.client.security.references import Secrets
from seglog.core.clock import Clock, SystemClock
from seglog.core.error_codes import error_name
from seglog.core.errors import BrokerUnavailableError, InvalidRequestError, RequestFailedError
from seglog.core.large_reads import LARGE_BYTES, await_turn
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import Message, read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class

_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">hhih")
_MAX_ANSWER: Final = 1 << 30
"""An HTTP or TLS server's first bytes, read as a size, are above it."""
_GROWTH: Final = 16 << 20
"""A response's buffer grows by this much, so that a false size costs no memory before the bytes arrive."""
_MAX_ELEMENTS: Final = 10_000_000
_FEATURES_FROM: Final = 3
"""The version of ApiVersions that names features."""
_WORTH_A_CALL: Final = 64 << 10
"""Bytes of a request that cost more to copy than a further call of the system."""
_TLS_ALERT: Final = b"\x15\x03"
"""The first bytes of a TLS server's answer to anything but TLS."""


class _PendingAnswer(NamedTuple):
    correlation_id: int
    key: ApiKey
    version: int


class BrokerConnection:
    """A connection to the first of ``addresses`` that accepts one. A request blocks up to ``config.timeout`` seconds.

    Raises `BrokerUnavailableError` if the broker is not reached, closes the connection or is silent,
    `AuthenticationFailedError` if it or the client refuses the other's certificate or credentials, and another
    `RequestFailedError` if it refuses a request. All name the broker. References to secrets are resolved at the start
    and for each new session: `InvalidConfigError` if one has no value. Invariant: answers arrive in the order of
    requests.
    """

    def __init__(
        self,
        addresses: Sequence[HostPort],
        config: ClientConfig,
        clock: Clock | None = None,
        dial: Dial = connect,
    ) -> None:
        self._config = config
        self._clock = SystemClock() if clock is None else clock
        self._client_id = config.client_id.encode()
        self._number = 0
        self._pending: deque[_PendingAnswer] = deque()
        self._early: deque[Message] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._features: dict[str, int] | None = None
        self._answers = 0
        self._session_end = math.inf
        self._socket, address = dial(addresses, config.connect_timeout)
        self._name = str(address)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option, size in (
                (socket.SO_RCVBUF, config.receive_buffer_bytes),
                (socket.SO_SNDBUF, config.send_buffer_bytes),
            ):
                if size >= 0:
                    self._socket.setsockopt(socket.SOL_SOCKET, option, size)
            if config.security.uses_tls:
                from seglog.client.security.tls import secure  # OpenSSL takes long to load

                self._socket = secure(self._socket, address, config.security, Secrets())
            self._socket.settimeout(config.timeout)
            self._send(ApiKey.API_VERSIONS, 0, {})
            answer = self._receive()
            check_answer(answer.error_code, f"{self._name}: ApiVersions")
            self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
            if config.security.uses_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return self._name

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: ApiKey, contents: Mapping[str, Any], *, most: int | None = None) -> Message:
        """The answer in the newest version that both sides know, or ``most``, while no other request is under way.

        ``contents`` has the fields of every version that may be used; so has the answer.
        """
        if self._pending or self._early:
            raise RuntimeError(f"{self._name}: a request is not answered yet")
        self.send(key, contents, most=most)
        return self.receive()

    def send(self, key: ApiKey, contents: Mapping[str, Any], *, most: int | None = None) -> None:
        """Send a request whose answer `receive` will return after those of the requests before it."""
        version = self._version(key, most)
        if self._clock.monotonic() >= self._session_end:
            while self._pending:
                self._early.append(self._receive())
            try:
                self._authenticate()
            except BaseException:
                self.close()  # the broker waits for the rest of an exchange
                raise
        self._send(key, version, contents)

    def receive(self) -> Message:
        """Wait for the answer to the oldest request that has none."""
        return self._early.popleft() if self._early else self._receive()

    def has_answer(self) -> bool:
        """Whether `receive` would find bytes of an answer, or the end of the connection."""
        if self._early:
            return True
        if not self._pending:
            return False
        decrypted = getattr(self._socket, "pending", None)  # by TLS: no longer in the socket
        if decrypted is not None and decrypted():
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def has(self, key: ApiKey) -> bool:
        """Whether the broker serves the API in a version that is known here."""
        return self.version(key) is not None

    def version(self, key: ApiKey, most: int | None = None) -> int | None:
        """The version of requests with this key, ``most`` at most; None if there is no common one."""
        ours, theirs = APIS[key], self._versions.get(key)
        if theirs is None:
            return None
        version: int = min(ours.high, theirs[1], ours.high if most is None else most)
        return version if version >= max(ours.low, theirs[0]) else None

    def feature(self, name: str) -> int:
        """The finalized level of a feature of the cluster (KIP-584); 0 if the cluster does not have it."""
        if self._features is None:
            self._features = {}
            if (self.version(ApiKey.API_VERSIONS) or 0) >= _FEATURES_FROM:
                answer = self.ask(
                    ApiKey.API_VERSIONS, {"client_software_name": "seglog", "client_software_version": "1"}
                )
                check_answer(answer.error_code, f"{self._name}: ApiVersions")
                self._features = {one.name: one.max_version_level for one in answer.finalized_features}
        return self._features.get(name, 0)

    def _version(self, key: ApiKey, most: int | None = None) -> int:
        version = self.version(key, most)
        if version is None:
            raise RequestFailedError(f"{self._name}: the broker has no version of {key.name} that this client supports")
        return version

    def _authenticate(self) -> None:
        from seglog.client.security.sasl import authenticate

        lifetime = authenticate(self._ask_at_once, self._name, self._config.security, Secrets())
        # As Kafka's clients, which do not all come back at the same moment.
        part = random.uniform(0.85, 0.95)
        self._session_end = math.inf if lifetime is None else self._clock.monotonic() + lifetime * part

    def _ask_at_once(self, key: ApiKey, contents: Mapping[str, Any]) -> Message:
        self._send(key, self._version(key), contents)
        return self._receive()

    def _send(self, key: ApiKey, version: int, contents: Mapping[str, Any]) -> None:
        self._number += 1
        head = _HEADER.pack(key, version, self._number, len(self._client_id)) + self._client_id
        if version >= APIS[key].flexible:
            head += b"\0"
        body = write_message(request_class(key, version), contents)
        head = _SIZE.pack(len(head) + len(body)) + head
        try:
            if len(body) < _WORTH_A_CALL:
                self._socket.sendall(head + body)
            else:
                self._socket.sendall(head)
                self._socket.sendall(body)
        except OSError as error:
            raise self._unavailable(key, self._refusal() or error) from error
        self._pending.append(_PendingAnswer(self._number, key, version))

    def _receive(self) -> Message:
        number, key, version = self._pending.popleft()
        try:
            head = self._read(_SIZE.size)
            if head.startswith(_TLS_ALERT):
                raise RequestFailedError(f"{self._name}: the listener speaks TLS: set security.protocol")
            (size,) = _SIZE.unpack(head)
            if not 4 <= size <= _MAX_ANSWER:
                raise RequestFailedError(f"{self._name}: a response of {size} bytes: this is not a Kafka broker")
            if size > LARGE_BYTES:
                await_turn()
            data = self._read(size)
        except OSError as error:
            raise self._unavailable(key, error) from error
        if _SIZE.unpack_from(data)[0] != number:
            raise RequestFailedError(f"{self._name}: a response to another request: this is not a Kafka broker")
        self._answers += 1
        api = APIS[key]
        start = 5 if key != ApiKey.API_VERSIONS and version >= api.flexible else 4
        newest = response_class(key, api.high)
        try:
            return read_message(response_class(key, version), newest, data, start, max_elements=_MAX_ELEMENTS)
        except InvalidRequestError as error:
            raise RequestFailedError(f"{self._name}: {key.name}: a response that cannot be decoded: {error}") from error

    def _unavailable(self, key: ApiKey, error: OSError) -> RequestFailedError:
        if self._config.security.uses_tls and not self._answers:
            from seglog.client.security.tls import explain

            return explain(error, self._name, self._config.security)
        hint = self._hint() if isinstance(error, ConnectionError) else ""
        return BrokerUnavailableError(f"{self._name}: {key.name}: {error.strerror or error}{hint}")

    def _refusal(self) -> OSError | None:
        """Why a broker closed a new connection: in TLS 1.3 it refuses a certificate after the handshake, and its alert
        may come while the first request is sent."""
        if self._answers or not self._config.security.uses_tls:
            return None
        try:
            self._socket.recv(1)
        except OSError as error:
            return error
        return None

    def _hint(self) -> str:
        """The likely reason if a broker closes a new connection."""
        security = self._config.security
        if not self._answers and not security.uses_tls:
            return "; if its listener speaks TLS, set security.protocol"
        if self._answers == 1 and not security.uses_sasl:
            return "; if its listener has SASL, set security.protocol"
        return ""

    def _read(self, size: int) -> bytearray:
        data, filled = bytearray(min(size, _GROWTH)), 0
        while filled < size:
            if filled == len(data):
                data += bytes(min(size - filled, len(data)))
            with memoryview(data) as view:
                count = self._socket.recv_into(view[filled:])
            if not count:
                raise BrokerUnavailableError(f"{self._name}: the broker has closed the connection{self._hint()}")
            filled += count
        return data


def describe_code(code: int) -> str | None:
    """The name of a Kafka error; None for code 0."""
    return error_name(code) if code else None


def check_answer(code: int, what: str, message: str | None = None) -> None:
    """`RequestFailedError` about ``what`` if ``code`` is an error's."""
    reason = describe_code(code)
    if reason is not None:
        raise RequestFailedError(f"{what}: {f'{reason}: {message}' if message else reason}")

"""A blocking connection to one broker: requests by our own protocol code, each in the newest version of both sides.

Several requests may be under way; a broker answers them in their order.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from seglog.client.bootstrap import HostPort, connect
from seglog.client.client_config import ClientConfig
from seglog.core.error_codes import error_name
from seglog.core.errors import BrokerUnavailableError, InvalidRequestError, RequestFailedError
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
_RECEIVE_BUFFER: Final = 1 << 20


class _PendingAnswer(NamedTuple):
    correlation_id: int
    key: ApiKey
    version: int


class BrokerConnection:
    """A connection to the first of ``addresses`` that accepts one. A request blocks up to ``config.timeout`` seconds.

    Raises `BrokerUnavailableError` if the broker is not reached, closes the connection or is silent, and
    `RequestFailedError` if it refuses. Both name the broker. Invariant: answers arrive in the order of requests.
    """

    def __init__(self, addresses: Sequence[HostPort], config: ClientConfig) -> None:
        self._name = ",".join(map(str, addresses))
        self._client_id = config.client_id.encode()
        self._number = 0
        self._pending: deque[_PendingAnswer] = deque()
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = connect(addresses, config.connect_timeout)
        try:
            self._socket.settimeout(config.timeout)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
            self._send(ApiKey.API_VERSIONS, 0, {})
            answer = self.receive()
            check_answer(answer.error_code, f"{self._name}: ApiVersions")
        except BaseException:
            self.close()
            raise
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def __str__(self) -> str:
        return self._name

    def close(self) -> None:
        self._socket.close()

    def ask(self, key: ApiKey, contents: Mapping[str, Any]) -> Message:
        """The answer in the newest version that both sides know, while no other request is under way.

        ``contents`` has the fields of every version that may be used; so has the answer.
        """
        if self._pending:
            raise RuntimeError(f"{self._name}: {self._pending[0].key.name} is not answered yet")
        self.send(key, contents)
        return self.receive()

    def send(self, key: ApiKey, contents: Mapping[str, Any]) -> None:
        """Send a request whose answer `receive` will return after those of the requests before it."""
        version = self.version(key)
        if version is None:
            raise RequestFailedError(f"{self._name}: the broker has no {key.name} that is known here")
        self._send(key, version, contents)

    def has(self, key: ApiKey) -> bool:
        """Whether the broker serves the API in a version that is known here."""
        return self.version(key) is not None

    def version(self, key: ApiKey) -> int | None:
        """The version of requests with this key; None if there is no common one."""
        ours, theirs = APIS[key], self._versions.get(key)
        if theirs is None:
            return None
        version: int = min(ours.high, theirs[1])
        return version if version >= max(ours.low, theirs[0]) else None

    def _send(self, key: ApiKey, version: int, contents: Mapping[str, Any]) -> None:
        self._number += 1
        head = _HEADER.pack(key, version, self._number, len(self._client_id)) + self._client_id
        if version >= APIS[key].flexible:
            head += b"\0"
        body = write_message(request_class(key, version), contents)
        try:
            self._socket.sendall(_SIZE.pack(len(head) + len(body)) + head + body)
        except OSError as error:
            raise self._unavailable(key, error) from error
        self._pending.append(_PendingAnswer(self._number, key, version))

    def receive(self) -> Message:
        """Wait for the answer to the oldest request that has none."""
        number, key, version = self._pending.popleft()
        try:
            (size,) = _SIZE.unpack(self._read(_SIZE.size))
            if not 4 <= size <= _MAX_ANSWER:
                raise RequestFailedError(f"{self._name}: a response of {size} bytes: this is not a Kafka broker")
            data = self._read(size)
        except OSError as error:
            raise self._unavailable(key, error) from error
        if _SIZE.unpack_from(data)[0] != number:
            raise RequestFailedError(f"{self._name}: a response to another request: this is not a Kafka broker")
        api = APIS[key]
        start = 5 if key != ApiKey.API_VERSIONS and version >= api.flexible else 4
        newest = response_class(key, api.high)
        try:
            return read_message(response_class(key, version), newest, data, start, max_elements=_MAX_ELEMENTS)
        except InvalidRequestError as error:
            raise RequestFailedError(f"{self._name}: {key.name}: a response that cannot be decoded: {error}") from error

    def _unavailable(self, key: ApiKey, error: OSError) -> BrokerUnavailableError:
        return BrokerUnavailableError(f"{self._name}: {key.name}: {error.strerror or error}")

    def _read(self, size: int) -> bytearray:
        data, filled = bytearray(min(size, _GROWTH)), 0
        while filled < size:
            if filled == len(data):
                data += bytes(min(size - filled, len(data)))
            with memoryview(data) as view:
                count = self._socket.recv_into(view[filled:])
            if not count:
                raise BrokerUnavailableError(f"{self._name}: the broker has closed the connection")
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

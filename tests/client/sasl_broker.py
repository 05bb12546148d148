"""A broker with SASL PLAIN, and TLS if it is given a context, in a thread: seglog's own has neither.

It answers ApiVersions, SASL, and Metadata with its name as cluster id. ``requests`` are the keys of all requests.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from seglog.client.bootstrap import HostPort
from seglog.core.error_codes import ErrorCode
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class
from tests.kit.service import Service

_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">hhih")
_MOST_BYTES: Final = 100 << 20
"""``socket.request.max.bytes``: the first bytes of TLS, read as a size, are above it."""
_VERSIONS: Final = {ApiKey.API_VERSIONS: 0, ApiKey.SASL_HANDSHAKE: 1, ApiKey.SASL_AUTHENTICATE: 1, ApiKey.METADATA: 5}
"""The only version of each API that it has: all of them are without tagged fields."""


class SaslBroker(Service):
    """``passwords`` may change while it runs. ``session_ms`` is the lifetime of sessions, which it does not end."""

    def __init__(
        self, passwords: dict[str, str] | None = None, *, session_ms: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        self.passwords = passwords or {}
        self.requests: list[ApiKey] = []
        self._session_ms = session_ms
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept)
        self._open: list[socket.socket] = []

    @property
    def address(self) -> HostPort:
        return HostPort("127.0.0.1", self._listener.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for one in self._open:
            with contextlib.suppress(OSError):  # most are closed; a test that failed leaves one
                socket.socket.shutdown(one, socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _accept(self) -> None:
        serving = []
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listener.accept()
                serving.append(threading.Thread(target=self._serve, args=(accepted,)))
                serving[-1].start()
        for one in serving:
            one.join()

    def _serve(self, accepted: socket.socket) -> None:
        """Until the client closes the connection, which ends every read with an error or an empty one."""
        with contextlib.suppress(OSError), accepted:
            connection = accepted if self._tls is None else self._tls.wrap_socket(accepted, server_side=True)
            self._open.append(connection)
            with connection, connection.makefile("rb") as stream:
                while head := stream.read(_SIZE.size):
                    (size,) = _SIZE.unpack(head)
                    if size > _MOST_BYTES:
                        break
                    connection.sendall(self._answer(stream.read(size)))

    def _answer(self, frame: bytes) -> bytes:
        number, version, correlation, client = _HEADER.unpack_from(frame)
        key = ApiKey(number)
        self.requests.append(key)
        message = request_class(key, version)
        request = read_message(message, request_class(key, APIS[key].high), frame, _HEADER.size + client)
        body = write_message(response_class(key, version), self._contents(key, request))
        return _SIZE.pack(4 + len(body)) + _SIZE.pack(correlation) + body

    def _contents(self, key: ApiKey, request: Any) -> Mapping[str, Any]:
        if key == ApiKey.API_VERSIONS:
            keys = [{"api_key": one, "min_version": high, "max_version": high} for one, high in _VERSIONS.items()]
            return {"api_keys": keys}
        if key == ApiKey.SASL_HANDSHAKE:
            is_known = request.mechanism == "PLAIN"
            code = ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return {"error_code": code, "mechanisms": ["PLAIN"]}
        if key == ApiKey.SASL_AUTHENTICATE:
            _, user, password = bytes(request.auth_bytes).decode().split("\0")
            if self.passwords.get(user) == password:
                return {"session_lifetime": self._session_ms}
            return {"error_code": ErrorCode.SASL_AUTHENTICATION_FAILED, "error_message": "wrong user or password"}
        return {"cluster_id": "made"}

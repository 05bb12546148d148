"""A server that speaks Kafka's protocol in a thread and answers as a subclass says, in the versions that it says.

``requests`` are the keys of all requests.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from abc import abstractmethod
from collections.abc import Mapping
from struct import Struct
from typing import Any, Final

from seglog.client.bootstrap import HostPort
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class
from tests.kit.service import Service

_SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">hhih")
_MOST_BYTES: Final = 100 << 20
"""``socket.request.max.bytes``: the first bytes of TLS, read as a size, are above it."""


class ProtocolServer(Service):
    """``versions`` has the only version of each API that it serves, besides version 0 of ApiVersions."""

    def __init__(self, versions: Mapping[ApiKey, int], tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[ApiKey] = []
        self._versions = {ApiKey.API_VERSIONS: 0, **versions}
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._accept)
        self._open: list[socket.socket] = []

    @abstractmethod
    def contents(self, key: ApiKey, request: Any) -> Mapping[str, Any]:
        """The answer to a request."""

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
        is_flexible = version >= APIS[key].flexible
        start = _HEADER.size + client + is_flexible
        request = read_message(request_class(key, version), request_class(key, APIS[key].high), frame, start)
        body = write_message(response_class(key, version), self._contents(key, request))
        tags = b"\0" if is_flexible else b""
        return _SIZE.pack(4 + len(tags) + len(body)) + _SIZE.pack(correlation) + tags + body

    def _contents(self, key: ApiKey, request: Any) -> Mapping[str, Any]:
        if key != ApiKey.API_VERSIONS:
            return self.contents(key, request)
        keys = [{"api_key": one, "min_version": high, "max_version": high} for one, high in self._versions.items()]
        return {"api_keys": keys}

"""The registry's HTTP server, in a thread."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from seglog.testing.registry.api import RegistryApi
from seglog.testing.registry.state import RegistryState
from seglog.testing.registry.topic import TOPIC, SchemasTopic

_LOOPBACK: Final = "127.0.0.1"
_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_MAX_BODY: Final = 16 << 20


class RegistryServer:
    """Starts with what ``_schemas`` has. It keeps its port over `stop` and `start`.

    Clients keep the schema of an id for ever, so no id is given twice, even if the topic was deleted meanwhile.
    """

    TOPIC: Final = TOPIC

    def __init__(self) -> None:
        self._port = 0
        self._state = RegistryState()
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self._port}"

    def start(self, bootstrap: str) -> None:
        topic, state = SchemasTopic(bootstrap), RegistryState(self._state.next_id)
        for key, value in topic.read():
            state.apply(key, value)
        self._state = state
        self._server = _Server((_LOOPBACK, self._port), RegistryApi(state, topic.write))
        self._port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        self._server = self._thread = None


class _Server(ThreadingHTTPServer):
    """Threads of connections that clients keep open do not delay its end."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], api: RegistryApi) -> None:
        super().__init__(address, _Handler)
        self.api = api


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _serve(self) -> None:
        size = self.headers.get("Content-Length", "0")
        if not size.isdecimal() or int(size) > _MAX_BODY:
            self.send_error(413)
            return
        answer = self.server.api.answer(self.command, self.path, self.rfile.read(int(size)))
        body = json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Type", _TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *_: Any) -> None:
        """Tests have no use for a log of requests."""

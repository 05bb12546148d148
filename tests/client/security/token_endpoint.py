"""An OAuth token endpoint over HTTP or HTTPS, in a thread."""

from __future__ import annotations

import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

from tests.kit.service import Service


class Asked(NamedTuple):
    path: str
    authorization: str
    form: str


class TokenEndpoint(Service):
    """Answers every request with ``status`` and ``answer``, which may change; ``asked`` has the requests."""

    def __init__(self, answer: Any, *, status: int = 200, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.status = status
        self.asked: list[Asked] = []
        self._scheme = "http" if tls is None else "https"
        self._server = HTTPServer(("127.0.0.1", 0), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}/token"

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(Asked(self.path, "", ""))

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(Asked(self.path, self.headers["Authorization"], form))

            def _answer(self, asked: Asked) -> None:
                endpoint.asked.append(asked)
                body = endpoint.answer if isinstance(endpoint.answer, bytes) else json.dumps(endpoint.answer).encode()
                self.send_response(endpoint.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Tests need no access log."""

        return Handler

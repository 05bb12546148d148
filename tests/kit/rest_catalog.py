"""A REST catalog of Iceberg over pyiceberg's SQL catalog: the part of the protocol that a table job needs."""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.table import CommitTableRequest, Table

from tests.kit.service import Service

TOKEN: Final = "hunter2-of-the-catalog"
_CODES: Final[Mapping[type[Exception], int]] = {
    NoSuchNamespaceError: 404,
    NoSuchTableError: 404,
    NamespaceAlreadyExistsError: 409,
    TableAlreadyExistsError: 409,
    CommitFailedException: 409,
    BadRequestError: 400,
}


class RestCatalogServer(Service):
    """``with RestCatalogServer(directory, store_properties) as catalog``; it takes requests with `TOKEN` only."""

    def __init__(self, directory: Path, properties: Mapping[str, str]) -> None:
        self.catalog = SqlCatalog("server", uri=f"sqlite:///{directory}/rest.db", **properties)
        self.lost_answers = 0
        """This many of the next commits are made and answered with error 500."""
        self.unknown_updates: Collection[str] = ()
        """Actions that this catalog is too old to know; a commit with one is refused with error 400."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        self._thread.start()

    def leave(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.catalog.close()

    def answer(self, method: str, parts: list[str], body: bytes) -> dict[str, Any]:
        """The answer to ``/v1/part/…``; raises pyiceberg's errors."""
        match method, parts:
            case "GET", ["config"]:
                return {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                wanted = json.loads(body)
                self.catalog.create_namespace(tuple(wanted["namespace"]), wanted.get("properties", {}))
                return {"namespace": wanted["namespace"], "properties": {}}
            case "POST", ["namespaces", namespace, "tables"]:
                request = CreateTableRequest.model_validate_json(body)
                table = self.catalog.create_table(
                    (namespace, request.name),
                    request.table_schema,
                    location=request.location,
                    properties=request.properties,
                )
                return _loaded(table)
            case "GET", ["namespaces", namespace, "tables", name]:
                return _loaded(self.catalog.load_table((namespace, name)))
            case "POST", ["namespaces", namespace, "tables", name]:
                commit = CommitTableRequest.model_validate_json(body)
                for update in commit.updates:
                    if update.action in self.unknown_updates:
                        raise BadRequestError(f"unknown update {update.action}")
                table = self.catalog.load_table((namespace, name))
                self.catalog.commit_table(table, commit.requirements, commit.updates)
                if self.lost_answers:
                    self.lost_answers -= 1
                    raise ConnectionError("the answer is lost")
                return _loaded(self.catalog.load_table((namespace, name)))
            case _:
                raise NotImplementedError(f"{method} {parts}")


def _loaded(table: Table) -> dict[str, Any]:
    return {
        "metadata-location": table.metadata_location,
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {},
    }


def _handler(server: RestCatalogServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            try:
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self._send(401, _error("no such token", "NotAuthorizedException", 401))
                    return
                found = server.answer(method, [unquote(part) for part in path.removeprefix("/v1/").split("/")], body)
                self._send(200, found)
            except tuple(_CODES) as error:
                self._send(_CODES[type(error)], _error(str(error), type(error).__name__, _CODES[type(error)]))
            except ConnectionError as error:
                self._send(500, _error(str(error), "ServerError", 500))

        def _send(self, code: int, content: dict[str, Any]) -> None:
            data = json.dumps(content).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            """Not on the terminal."""

    return Handler


def _error(message: str, kind: str, code: int) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "code": code}}

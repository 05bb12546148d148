"""An object store with one bucket, in this process: moto's S3. It can fail requests."""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from pyarrow.fs import S3FileSystem
from werkzeug.serving import make_server

from tests.kit.service import Service

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

BUCKET: Final = "flights-bucket"
SECRET: Final = "hunter2-of-the-store"
REGION: Final = "us-east-1"
Kind = Literal["500", "503", "unasked", "unanswered", "cut"]
"""An error; a connection that is closed before the request is done, or after it; an answer of which half is missing."""
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_ERROR: Final = b"<Error><Code>%s</Code><Message>planted</Message></Error>"
_STATUS: Final = {"500": ("500 Internal Server Error", b"InternalError"), "503": ("503 Slow Down", b"SlowDown")}


class Failures(NamedTuple):
    """From which request on how many fail, and how."""

    first: int
    times: int
    kind: Kind


_NONE: Final = Failures(0, 0, "500")


class ObjectStoreServer(Service):
    """``with ObjectStoreServer() as store``."""

    def __init__(self) -> None:
        self.requests = 0
        """Since the last call of `fail`."""
        self._failures = _NONE
        self._counting = threading.Lock()
        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=MotoRequestHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
        self._thread.start()
        self.file_system(allow_bucket_creation=True).create_dir(BUCKET)

    def leave(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fail(self, first: int, times: int, kind: Kind) -> None:
        """Fail ``times`` requests from the ``first`` one on, which are counted from now, beginning with 0."""
        with self._counting:
            self.requests, self._failures = 0, Failures(first, times, kind)

    def heal(self) -> None:
        """Fail no request any more."""
        self.fail(*_NONE)

    @property
    def properties(self) -> dict[str, str]:
        """pyiceberg's, to reach it."""
        return {
            "s3.endpoint": f"http://127.0.0.1:{self._server.server_port}",
            "s3.access-key-id": "user",
            "s3.secret-access-key": SECRET,
            "s3.region": REGION,
        }

    def file_system(self, *, allow_bucket_creation: bool = False) -> S3FileSystem:
        """To see the objects, under ``bucket/…``."""
        return S3FileSystem(
            access_key="user",
            secret_key=SECRET,
            region=REGION,
            endpoint_override=self.properties["s3.endpoint"],
            allow_bucket_creation=allow_bucket_creation,
        )

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        with self._counting:
            number, failures = self.requests, self._failures
            self.requests += 1
        kind = failures.kind if 0 <= number - failures.first < failures.times else None
        if kind is None:
            found: Iterable[bytes] = self._moto(environ, start)
            return found
        if kind in _STATUS:
            status, code = _STATUS[kind]
            start(status, [("Content-Type", "application/xml")])
            return [_ERROR % code]
        if kind == "unasked":
            raise ConnectionResetError("closed before the request is done")
        heads: list[Any] = []
        written = io.BytesIO()

        def note(*head: Any) -> Any:
            heads.append(head)
            return written.write

        body = b"".join(self._moto(environ, note))
        if kind == "unanswered" or not body:
            raise ConnectionResetError("closed before the answer")
        start(*heads[0])
        return [body[: len(body) // 2]]

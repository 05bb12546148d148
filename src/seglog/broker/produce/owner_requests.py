"""Requests about a log directory that this broker has open, from other processes of its user on this machine.

They come through the directory's socket (`seglog.storage.directory.owner_socket`), not through a listener: whoever
can send them can also write to the directory's files.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from seglog.broker.produce.segment_adoption import SegmentAdoption
from seglog.core.errors import LogDirInUseError, SeglogError
from seglog.core.fs import OsFs
from seglog.core.ground import Workers
from seglog.storage.adopt import begin_intake, end_intake, note_broker
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.formats.adopt_manifest import intake_from_json

_log: Final = logging.getLogger("seglog.broker")
_PATIENCE: Final = 30.0
"""Seconds that a client may take to send its request."""
_LONGEST: Final = 128 << 20
"""Bytes of a request: a job may read as many files as a ledger has marks, with long paths."""


class OwnerRequests:
    """Answers the requests of `seglog.storage.adopt.segment_request`. ``status`` describes the broker."""

    def __init__(self, adoption: SegmentAdoption, status: Callable[[], Mapping[str, object]], workers: Workers) -> None:
        self._adoption = adoption
        self._status = status
        self._workers = workers

    async def answer(self, directory: LogDir, request: bytes) -> bytes:
        """The answer to a line, as a line."""
        fields = json.loads(request)
        try:
            answer: dict[str, object] = {"ok": await self._do(directory, fields.pop("do"), fields)}
        except SeglogError as error:
            answer = {"error": [type(error).__name__, str(error)], "code": int(error.code)}
        return json.dumps(answer).encode() + b"\n"

    async def _do(self, directory: LogDir, what: str, fields: Mapping[str, Any]) -> Mapping[str, object]:
        match what:
            case "status":
                return {"broker": dict(self._status())}
            case "note":
                application = str(fields["application"])
                return {"last": await self._workers.run(lambda: note_broker(directory, application))}
            case "begin_intake":
                job, application, version = fields["job"], fields["application"], fields["version"]
                intake = intake_from_json(fields["intake"])
                await self._workers.run(lambda: begin_intake(directory, job, application, version, intake))
                return {}
            case "end_intake":
                job, committed = fields["job"], fields["committed"]
                await self._workers.run(lambda: end_intake(directory, job, committed=committed))
                return {}
            case "adopt":
                await self._adoption.adopt(directory, fields)
                return {}
        raise LogDirInUseError(f"{directory.path} is open in a broker, which does not answer {what!r}")


class OwnerSocket:
    """The socket of one directory, which listens already. `stop` gives up requests that are not answered."""

    def __init__(self, listening: socket.socket, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        self._listening = listening
        self._path: str = listening.getsockname()
        self._answer = answer
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, sock=self._listening, limit=_LONGEST)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            with suppress(OSError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(_PATIENCE):
                    request = await reader.readline()
                if request.strip():
                    writer.write(await self._answer(request))
                    await writer.drain()
        finally:
            self._serving.discard(task)
            writer.close()

    async def stop(self) -> None:
        with suppress(FileNotFoundError):
            OsFs().unlink(self._path)
        if self._server is not None:
            self._server.close()
        for task in tuple(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)


def listen_for_owner(directory: LogDir, listen: Callable[[str], socket.socket | None]) -> socket.socket | None:
    """The socket of a directory; None if the system has none for it. The broker then serves all other requests."""
    try:
        return listen(directory.path)
    except (SeglogError, OSError) as error:
        _log.warning("Spark cannot write to %s while this broker runs: %s", directory.path, error)
        return None

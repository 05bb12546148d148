"""A broker in a thread of this process, and requests to it without a client library in between."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from seglog.broker.app import Node
from seglog.broker.ground import BrokerGround
from seglog.core.broker_config import BrokerConfig
from seglog.core.errors import SeglogError
from seglog.net.connection import ClientConnection
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.message_reader import Message, read_message
from seglog.protocol.message_writer import write_message
from seglog.protocol.schema import request_class, response_class
from tests.kit.service import Service
from tests.kit.waiting import wait_until

T = TypeVar("T")
FAST = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
}
"""Default settings of test brokers."""


class RunningNode(Service):
    """``with RunningNode(path) as running``: a broker that other threads use, with its own event loop."""

    def __init__(
        self, path: Path, settings: Mapping[str, str] | None = None, *, ground: BrokerGround | None = None
    ) -> None:
        self.path = path
        self._ground = ground
        self._config = BrokerConfig.from_mapping({**FAST, "log.dirs": str(path), **(settings or {})})
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._errors: list[SeglogError | OSError] = []
        self._stop: asyncio.Event
        self.loop: asyncio.AbstractEventLoop
        self.node: Node

    def leave(self) -> None:
        self.stop()

    def start(self) -> None:
        """Start, for the first time or again; raises what `Node.start` raises."""
        self._ready.clear()
        self._errors.clear()
        self._thread = threading.Thread(target=self._run, name="broker")
        self._thread.start()
        self._ready.wait()
        if self._errors:
            self._thread.join()
            self._thread = None
            raise self._errors[0]

    def stop(self) -> None:
        """Stop cleanly, if it runs; raises what `Node.stop` raises."""
        if self._thread is None:
            return
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._thread = None
        if self._errors:
            raise self._errors[0]

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except (SeglogError, OSError) as error:
            self._errors.append(error)
        finally:
            self._ready.set()

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with Node(self._config, ground=self._ground) as self.node:
            self._ready.set()
            await self._stop.wait()

    @property
    def bootstrap(self) -> str:
        return self.node.bootstrap

    def flush(self) -> None:
        """Flush all logs, as ``flush.ms`` does."""
        for log in self.node.directories.dirs[0].logs.values():
            log.flush()

    def on_loop(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine on the broker's own loop."""
        return asyncio.run_coroutine_threadsafe(act(), self.loop).result(60)

    def connections(self, listener: str) -> list[ClientConnection]:
        """Those that it has now, with those of clients that are gone of which it has not heard yet."""

        async def now() -> list[ClientConnection]:
            return [one for one in self.node.quotas.connections if one.listener == listener]

        return self.on_loop(now)

    def only_connection(self, listener: str) -> ClientConnection:
        """That of the one client which is there, as soon as those of earlier tests are gone."""
        wait_until(lambda: len(self.connections(listener)) == 1, f"one connection to {listener}")
        return self.connections(listener)[0]


class Wire:
    """One connection, by our own protocol code: any request of any version."""

    def __init__(self, bootstrap: str, *, timeout: float = 60, client_id: str = "test") -> None:
        self._client_id = client_id.encode()
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout)
        self._number = 0
        self._seen = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """For ``select``: whether an answer is there."""
        return self._socket.fileno()

    def ask(self, key: ApiKey, /, version: int | None = None, **contents: object) -> Message:
        """The answer, with the names that the version has."""
        self.send(key, version, **contents)
        return self.answer(key, version)

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        configs = [{"name": key, "value": value} for key, value in (config or {}).items()]
        wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        (topic,) = self.ask(ApiKey.CREATE_TOPICS, topics=[wanted], timeout=30_000).topics
        assert topic.error_code == 0, topic
        return name

    def send(self, key: ApiKey, /, version: int | None = None, **contents: object) -> None:
        api = APIS[key]
        version = api.high if version is None else version
        self._number += 1
        body = write_message(request_class(key, version), contents)
        head = struct.pack(">hhih", key, version, self._number, len(self._client_id)) + self._client_id
        head += b"\0" if version >= api.flexible else b""
        self.send_raw(head + body)

    def send_raw(self, frame: bytes) -> None:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def send_bytes(self, data: bytes) -> None:
        """As they are, without a size."""
        self._socket.sendall(data)

    def is_ended(self) -> bool:
        """Wait for the broker: whether it ends the connection without a further byte."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def wait(self) -> None:
        """Until all of the next answer is there; it is not taken yet."""
        (size,) = struct.unpack(">i", self._socket.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL))
        self._seen = self.receive(4 + size)

    def answer(self, key: ApiKey, version: int | None = None) -> Message:
        api = APIS[key]
        version = api.high if version is None else version
        (size,) = struct.unpack(">i", self.receive(4))
        data = self.receive(size)
        start = 5 if key != ApiKey.API_VERSIONS and version >= api.flexible else 4
        message = response_class(key, version)
        return read_message(message, message, data, start)

    def receive(self, size: int) -> bytes:
        data, self._seen = self._seen[:size], self._seen[size:]
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker has closed the connection")
            data += piece
        return data

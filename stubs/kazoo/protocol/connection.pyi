from collections.abc import Callable
from logging import Logger
from threading import Thread
from typing import Final

from kazoo.client import KazooClient
from kazoo.protocol.serialization import ReplyHeader
from kazoo.retry import KazooRetry

class ConnectionHandler:
    client: Final[KazooClient]
    _connection_routine: Thread | None
    _read_socket: Callable[..., object]
    def __init__(
        self,
        client: KazooClient,
        retry_sleeper: KazooRetry,
        logger: Logger | None = None,
        sasl_options: dict[str, str] | None = None,
    ) -> None: ...
    def _expand_client_hosts(self) -> list[tuple[str, str, int]]: ...
    def _read_watch_event(self, buffer: bytes, offset: int) -> None: ...
    def _connect(self, host: str, hostip: str, port: int) -> tuple[float, float]: ...
    def _submit(self, request: object, timeout: float, xid: int | None = None) -> None: ...
    def _read_header(self, timeout: float) -> tuple[ReplyHeader, bytes, int]: ...
    def _authenticate_with_sasl(self, host: str, timeout: float) -> None: ...

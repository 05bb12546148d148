"""Requests to the coordinator of a group or a transactional id, repeated while it moves, loads or is busy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from seglog.client.bootstrap import HostPort
from seglog.client.cluster_connections import GROUP, ClusterConnections, Coordinator
from seglog.client.connection import describe_code
from seglog.client.retries import Retries
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import BrokerUnavailableError, RequestFailedError
from seglog.protocol.apis import ApiKey
from seglog.protocol.message_reader import Message

MOVED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
BUSY: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.UNSTABLE_OFFSET_COMMIT})
"""The coordinator completes the last transaction. That takes milliseconds."""
Codes = Callable[[Message], set[int]]
"""The error codes of an answer."""


def first_code(answer: Message) -> set[int]:
    return {answer.error_code}


class CoordinatorRequests:
    """Asks one coordinator. ``patience``: seconds until a coordinator that moves or is busy is given up."""

    def __init__(self, cluster: ClusterConnections, kind: int, key: str, *, patience: float) -> None:
        self._cluster = cluster
        self._kind = kind
        self._key = key
        self._patience = patience
        self._found: Coordinator | None = None

    @property
    def _what(self) -> str:
        return f"{'group' if self._kind == GROUP else 'transactional id'} {self._key}"

    def locate(self) -> HostPort:
        """The coordinator as it was last seen. `RequestFailedError` if there is none in time: a new cluster makes the
        topics of coordinators when it is first asked for one."""
        retries = Retries(self._cluster.config, self._patience)
        while True:
            try:
                return self._locate()
            except RequestFailedError as error:
                if not error.retriable and not may_move(str(error)):
                    raise
                problem = str(error)
            retries.wait(problem)

    def _locate(self) -> HostPort:
        if self._found is None:
            self._found = self._cluster.coordinator(self._kind, self._key)
        return self._found.address

    def ask(
        self,
        key: ApiKey,
        contents: Mapping[str, Any],
        *,
        codes: Codes = first_code,
        most: int | None = None,
        busy: frozenset[ErrorCode] = BUSY,
    ) -> Message:
        """The first answer whose error codes are not those of a coordinator that moves, or ``busy``.

        `RequestFailedError` names the coordinator and its last error when there is none in time.
        """
        retries = Retries(self._cluster.config, self._patience)
        while True:
            is_busy = False
            try:
                address = self._locate()
                answer = self._cluster.ask_at(address, key, contents, most=most)
                trouble = codes(answer)
                if not trouble & (MOVED | busy):
                    return answer
                is_busy = not trouble & MOVED
                names = ", ".join(describe_code(code) or "" for code in sorted(trouble))
                problem = f"{self._what}: broker {address}: {names}"
            except BrokerUnavailableError as error:
                problem = f"{self._what}: {error}"
            except RequestFailedError as error:
                problem = str(error)
                if self._found is not None or not may_move(problem):
                    raise
            if not is_busy:
                self._found = None
            retries.wait(problem, is_busy=is_busy)


def may_move(problem: str) -> bool:
    """Whether FindCoordinator has failed with an error that passes."""
    return any(code.name in problem for code in MOVED)

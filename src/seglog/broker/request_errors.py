"""Errors in responses, counted by API (ErrorsPerSec of ``RequestMetrics``). Used only with a listener for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from seglog.broker.dispatch import Dispatch
from seglog.broker.fetch.fetch import Fetch
from seglog.broker.fetch.fetch_sessions import FetchSessionCache
from seglog.broker.offload import Offload
from seglog.broker.produce.produce import Produce
from seglog.broker.produce.transaction_verification import TransactionVerifier
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.broker.topics.leader_hints import LeaderHints
from seglog.broker.topics.topics import Topics
from seglog.protocol.api_versions import Features
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.messages import Message
from seglog.protocol.produce import TopicAnswer

if TYPE_CHECKING:
    from seglog.broker.fetch.cluster_peers import ClusterPeers
    from seglog.broker.security.authorization import Authorization

Counts = Counter[int]
"""By error code, without 0."""


class RequestErrors:
    """Counts by API key."""

    def __init__(self) -> None:
        self.counts: Mapping[int, Counts] = {int(key): Counter() for key in APIS}

    def dispatch(
        self,
        topics: Topics,
        sessions: FetchSessionCache,
        offload: Offload,
        handlers: Mapping[int, ApiHandler],
        *,
        max_bytes: int,
        peers: ClusterPeers | None = None,
        verifier: TransactionVerifier | None = None,
        max_producers: int,
        features: Callable[[], Features],
        broker: tuple[str, int],
        authorization: Authorization | None = None,
    ) -> Dispatch:
        """A `Dispatch` that counts the errors of its responses."""
        return Dispatch(
            _Produce(
                topics,
                self.counts[ApiKey.PRODUCE],
                None if peers is None else peers.hints,
                verifier,
                max_producers=max_producers,
                authorization=authorization,
            ),
            _Fetch(
                topics,
                sessions,
                offload,
                self.counts[ApiKey.FETCH],
                max_bytes=max_bytes,
                peers=peers,
                authorization=authorization,
            ),
            {key: _counted(handler, self.counts[key]) for key, handler in handlers.items()},
            offload,
            features,
            broker,
        )


def _counted(handler: ApiHandler, counts: Counts) -> ApiHandler:
    async def later(answer: Awaitable[Answer]) -> Answer:
        found = await answer
        counts.update(_codes(found))
        return found

    def handle(request: Message, context: RequestContext) -> Answer | Awaitable[Answer]:
        answer = handler(request, context)
        if isinstance(answer, Awaitable):
            return later(answer)
        counts.update(_codes(answer))
        return answer

    return handle


def _codes(answer: object) -> Iterator[int]:
    """All error codes in a response, at any depth."""
    if isinstance(answer, Mapping):
        if code := answer.get("error_code"):
            yield int(code)
        for value in answer.values():
            yield from _codes(value)
    elif isinstance(answer, list | tuple):
        for value in answer:
            yield from _codes(value)


class _Produce(Produce):
    def __init__(
        self,
        topics: Topics,
        counts: Counts,
        hints: LeaderHints | None,
        verifier: TransactionVerifier | None,
        *,
        max_producers: int,
        authorization: Authorization | None,
    ) -> None:
        super().__init__(topics, hints, verifier, max_producers=max_producers, authorization=authorization)
        self._counts = counts

    def _answer(self, topics: list[TopicAnswer], context: RequestContext) -> bytes:
        self._counts.update(answer.error for topic in topics for answer in topic.partitions if answer.error)
        return super()._answer(topics, context)


class _Fetch(Fetch):
    def __init__(
        self,
        topics: Topics,
        sessions: FetchSessionCache,
        offload: Offload,
        counts: Counts,
        *,
        max_bytes: int,
        peers: ClusterPeers | None,
        authorization: Authorization | None,
    ) -> None:
        super().__init__(topics, sessions, offload, max_bytes=max_bytes, peers=peers, authorization=authorization)
        self._counts = counts

    def _note(self, request: Any, result: Any, places: Sequence[int]) -> list[tuple[int, int]]:
        for place in places:
            if code := result.partitions[place][1].error:
                self._counts[code] += 1
        return super()._note(request, result, places)

"""From a frame to its response. Only this module turns an exception into the error of a whole request."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from struct import Struct
from types import CoroutineType
from typing import Any, Final

from seglog.broker.fetch.fetch import Fetch
from seglog.broker.offload import LARGE_FRAME, Offload, drop, no_collections
from seglog.broker.produce.produce import Produce
from seglog.broker.request_slices import SLICED, answer_in_slices, is_cut
from seglog.broker.requests import Answer, ApiHandler, Charge, RequestContext
from seglog.core.error_codes import ErrorCode
from seglog.core.errors import InvalidRequestError
from seglog.core.types import Slice
from seglog.net.connection import ClientConnection, Reply
from seglog.net.pending_replies import PendingReply
from seglog.protocol.api_versions import ApiVersionsRequest, Features, read_api_versions, write_api_versions
from seglog.protocol.apis import APIS, ApiKey, name_of
from seglog.protocol.fetch import FetchAnswer
from seglog.protocol.framing import RequestHeader, frame_response, read_header
from seglog.protocol.message_writer import write_message
from seglog.protocol.messages import read_request, write_response
from seglog.protocol.schema import request_class

_log: Final = logging.getLogger("seglog.broker")
_HEAD: Final = Struct(">hh")
# Plain numbers compare faster than members of an enum.
_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_METADATA: Final = int(ApiKey.METADATA)
_LONG: Final = frozenset((_METADATA, int(ApiKey.DESCRIBE_CONFIGS), int(ApiKey.OFFSET_FETCH)))
"""APIs whose answer may be long even if the request is short. The offload thread encodes it."""
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_new: Final = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes."""


def frame_limits(socket_request_max_bytes: int) -> Callable[[memoryview], int]:
    """The function from the head of a frame to the most bytes that it may have. It raises `InvalidRequestError` for an
    API that is not served."""
    limits = {
        key: socket_request_max_bytes if api.max_frame is None else min(api.max_frame, socket_request_max_bytes)
        for key, api in APIS.items()
    }

    def largest_frame(head: memoryview) -> int:
        key, _ = _HEAD.unpack_from(head)
        limit = limits.get(key)
        if limit is None:
            raise InvalidRequestError(f"{name_of(key)} is not served")
        return limit

    return largest_frame


Charged = Callable[
    [RequestHeader, ClientConnection, int, Callable[[Charge], Reply | Awaitable[Reply]]], Reply | Awaitable[Reply]
]
"""Answers a request of so many bytes by the last argument, and makes its client pay for it
(`seglog.broker.quotas.request_quotas`)."""


class Dispatch:
    """Answers frames: Produce, Fetch and ApiVersions by hand, all other APIs through their handlers. ``features``
    returns those that the broker supports and the cluster has finalized. ``broker`` is the id of the cluster, and that
    of the node in it."""

    def __init__(
        self,
        produce: Produce,
        fetch: Fetch,
        handlers: Mapping[int, ApiHandler],
        offload: Offload,
        features: Callable[[], Features],
        broker: tuple[str, int],
    ) -> None:
        self._features = features
        self._broker = broker
        self._produce = produce
        self._fetch = fetch
        self._handlers = handlers
        self._offload = offload
        self._large = asyncio.Lock()
        self._charged: Charged | None = None

    def charge_by(self, charged: Charged | None) -> None:
        """Make clients pay for their requests from here on. None: the cluster has no quotas."""
        self._charged = charged

    def __call__(self, connection: ClientConnection, frame: memoryview, /) -> Reply | Awaitable[Reply]:
        """The response, or a wait for it. `InvalidRequestError` ends the connection.

        An unforeseen error is logged and ends the connection too; the client reconnects, and other connections go on.
        """
        header = read_header(frame)
        if self._charged is None:
            return self._reply(connection, frame, header)
        return self._charged(header, connection, len(frame), partial(self._reply, connection, frame, header))

    def _reply(
        self, connection: ClientConnection, frame: memoryview, header: RequestHeader, charge: Charge | None = None
    ) -> Reply | Awaitable[Reply]:
        try:
            reply = self._answer(connection, frame, header, charge)
        except InvalidRequestError:
            raise
        except Exception as error:
            raise _unforeseen(header) from error
        return _guarded(header, reply) if isinstance(reply, CoroutineType) else reply

    def _answer(
        self, connection: ClientConnection, frame: memoryview, header: RequestHeader, charge: Charge | None
    ) -> Reply | Awaitable[Reply]:
        key, version, correlation_id, client_id, body, proof = header
        api = APIS[key]
        if not api.served <= version <= api.high:
            return _unsupported(header)
        if key == _API_VERSIONS:
            return _framed_body(header, api_versions(version, frame, body, self._features(), self._broker))
        context = _new(
            RequestContext,
            (key, version, client_id or "", connection.peer, connection.listener, proof, connection.principal, charge),
        )
        if key == _PRODUCE:
            answer = self._produce(frame, body, context)
            if isinstance(answer, bytes):
                return frame_response(key, version, correlation_id, len(answer)) + answer
            if isinstance(answer, PendingReply):
                return answer.map(lambda body: _framed_body(header, body))
            return None if answer is None else _framed_body_later(header, answer)
        if len(frame) > LARGE_FRAME:
            return self._answer_large(header, frame, context)
        if key == _FETCH:
            fetched = self._fetch(frame, body, context)
            if isinstance(fetched, FetchAnswer):
                return _framed(header, fetched)
            return _framed_later(header, fetched)
        request = read_request(key, version, frame, body)
        if is_cut(key, request):
            return self._written_later(header, answer_in_slices(self._handlers[key], request, context), is_long=True)
        answer_ = self._handlers[key](request, context)
        if isinstance(answer_, Awaitable):
            return self._written_later(header, answer_, is_long=key in _LONG)
        return _written(header, answer_)

    async def _answer_large(self, header: RequestHeader, frame: memoryview, context: RequestContext) -> Reply:
        """One large request at a time, except for its waits: a megabyte of names becomes thirty of objects."""
        key, version, body = header.key, header.version, header.body
        if key == _FETCH:
            return _framed(header, await self._fetch.large(frame, body, context))
        async with self._large:
            with no_collections:
                request = await self._offload.run(lambda: read_request(key, version, frame, body))
                if key in SLICED:
                    found: Answer | Awaitable[Answer] = await answer_in_slices(self._handlers[key], request, context)
                else:
                    found = self._handlers[key](request, context)
                if isinstance(found, Awaitable) and key in _LONG:
                    found = await found
                garbage: list[Any] = [request]
                del request
                if not isinstance(found, Awaitable):
                    garbage.append(found)
                    del found
                    return await self._offload.run(lambda: _written_and_dropped(header, garbage))
        garbage.append(await found)
        del found
        return await self._offload.run(lambda: _written_and_dropped(header, garbage))

    async def _written_later(self, header: RequestHeader, answer: Awaitable[Answer], *, is_long: bool) -> Reply:
        awaited = await answer
        if not is_long:
            return _written(header, awaited)
        garbage = [awaited]
        del awaited
        return await self._offload.run(lambda: _written_and_dropped(header, garbage))


def _unforeseen(header: RequestHeader) -> InvalidRequestError:
    """For an ``except`` block: logs the error that it handles."""
    _log.exception("API %d version %d of %s could not be answered", header.key, header.version, header.client_id)
    return InvalidRequestError(f"API {header.key} could not be answered")


async def _guarded(header: RequestHeader, reply: Coroutine[Any, Any, Reply]) -> Reply:
    try:
        return await reply
    except InvalidRequestError:
        raise
    except Exception as error:
        raise _unforeseen(header) from error


def _unsupported(header: RequestHeader) -> bytes:
    """ApiVersions of an unknown version gets version 0 (KIP-511); any other request ends its connection."""
    if header.key != ApiKey.API_VERSIONS:
        api = APIS[header.key]
        raise InvalidRequestError(
            f"version {header.version} of {name_of(header.key)} is not served, only {api.served} to {api.high}"
        )
    return _framed_body(header._replace(version=0), unknown_version())


def _written_and_dropped(header: RequestHeader, garbage: list[Any]) -> bytes:
    """The response that is last in ``garbage``, which is freed."""
    written = _written(header, garbage[-1])
    drop(garbage)
    return written


def _written(header: RequestHeader, answer: Answer) -> bytes:
    return _framed_body(header, write_response(header.key, header.version, answer))


def _framed_body(header: RequestHeader, body: bytes) -> bytes:
    return frame_response(header.key, header.version, header.correlation_id, len(body)) + body


def _framed(header: RequestHeader, answer: FetchAnswer) -> list[bytes | Slice]:
    return [frame_response(header.key, header.version, header.correlation_id, answer.size), *answer.parts]


async def _framed_body_later(header: RequestHeader, answer: Coroutine[Any, Any, bytes | None]) -> Reply:
    body = await answer
    return None if body is None else _framed_body(header, body)


async def _framed_later(header: RequestHeader, answer: Awaitable[FetchAnswer]) -> Reply:
    return _framed(header, await answer)


_VERSIONS: Final = {
    ApiKey.METADATA: (12, 13, 5, 8),
    ApiKey.FETCH: (16, 17, 11, 12),
    ApiKey.INIT_PRODUCER_ID: (4, 5),
    ApiKey.LIST_OFFSETS: (7, 11, 5),
    ApiKey.FIND_COORDINATOR: (2, 4, 1),
    ApiKey.JOIN_GROUP: (5, 9),
    ApiKey.SYNC_GROUP: (3, 5),
    ApiKey.HEARTBEAT: (3, 4),
    ApiKey.OFFSET_FETCH: (9, 7),
    ApiKey.OFFSET_COMMIT: (9, 7),
    ApiKey.CREATE_TOPICS: (4, 7),
}
"""Versions that current clients send: librdkafka's, then Java's, then aiokafka's."""


def messages() -> Iterator[tuple[int, int]]:
    for key, versions in _VERSIONS.items():
        api = APIS[key]
        yield from ((key, version) for version in versions if api.served <= version <= api.high)


async def warm_up() -> None:
    """Build the classes of frequent messages before clients need them: one every 10 ms or so, with a turn for clients
    in between."""
    for key, version in messages():
        read_request(key, version, write_message(request_class(key, version), {}))
        if key != ApiKey.FETCH:  # which is written by hand
            write_response(key, version, _EXAMPLES.get(key, {}))
        await asyncio.sleep(0)


_EXAMPLES: Final[Mapping[int, Mapping[str, object]]] = {
    ApiKey.FIND_COORDINATOR: {"coordinators": [{}]},
    ApiKey.OFFSET_FETCH: {"groups": [{"topics": ()}]},
}
"""Responses whose older versions have part of them at the top level."""


_SOFTWARE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9\-.]*[A-Za-z0-9])?")
"""A client name or version that KIP-511 allows."""


def api_versions(version: int, frame: memoryview, body: int, features: Features, broker: tuple[str, int]) -> bytes:
    request = read_api_versions(version, frame, body)
    error = _why_not(request, broker)
    if error is not ErrorCode.NONE:
        return write_api_versions(version, error, with_apis=False)
    return write_api_versions(version, features=features)


def _why_not(request: ApiVersionsRequest, broker: tuple[str, int]) -> ErrorCode:
    """A client that means another broker looks for the cluster again, from its first addresses (KIP-1242)."""
    if request.software is not None and not all(_SOFTWARE.fullmatch(text) for text in request.software):
        return ErrorCode.INVALID_REQUEST
    if (request.cluster_id is None) != (request.node_id == -1):
        return ErrorCode.INVALID_REQUEST
    if request.cluster_id is not None and (request.cluster_id, request.node_id) != broker:
        return ErrorCode.REBOOTSTRAP_REQUIRED
    return ErrorCode.NONE


def unknown_version() -> bytes:
    """The version 0 body for a client that asks in an unknown version (KIP-511)."""
    return write_api_versions(0, ErrorCode.UNSUPPORTED_VERSION)

"""What clients ask first, read and written once before they do: a message's classes are made when it is first seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final

from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.messages import read_request, write_response
from seglog.protocol.schema import request_class
from seglog.protocol.writing import write_message

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
"""Versions that today's clients send, librdkafka's before Java's before aiokafka's."""


def messages() -> Iterator[tuple[int, int]]:
    for key, versions in _VERSIONS.items():
        api = APIS[key]
        yield from ((key, version) for version in versions if api.served <= version <= api.high)


async def warm_up() -> None:
    """A message at a time, some 10 ms each, with a turn for clients in between."""
    for key, version in messages():
        read_request(key, version, write_message(request_class(key, version), {}))
        if key != ApiKey.FETCH:  # which is written by hand
            write_response(key, version, _EXAMPLES.get(key, {}))
        await asyncio.sleep(0)


_EXAMPLES: Final[Mapping[int, Mapping[str, object]]] = {
    ApiKey.FIND_COORDINATOR: {"coordinators": [{}]},
    ApiKey.OFFSET_FETCH: {"groups": [{"topics": ()}]},
}
"""Answers that older versions have a part of at the top."""

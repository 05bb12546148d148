"""ApiVersions by hand. Every client sends it first, and a broker answers it before it has loaded the classes of all
other messages."""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import InvalidRequestError
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.wire import WireReader, uvarint

_FLEXIBLE: Final = APIS[ApiKey.API_VERSIONS].flexible
_ROW: Final = Struct(">hhh")
_ROWS: Final = [_ROW.pack(api.key, api.low, api.high) for api in APIS.values()]
_THROTTLED_SINCE: Final = 1
_NO_TIME: Final = bytes(4)
_NO_TAGS: Final = b"\0"
_LEVELS: Final = Struct(">hh")
_EPOCH: Final = Struct(">q")
_LEVEL_0_SINCE: Final = 4
"""Older clients take a supported level of 0 for an error (KAFKA-17011)."""
_NAMES_BROKER_SINCE: Final = 5


class ApiVersionsRequest(NamedTuple):
    """The client's software, and the broker that it means (KIP-1242). None and -1 in versions without these fields,
    and if the client does not know them."""

    software: tuple[str, str] | None = None
    cluster_id: str | None = None
    node_id: int = -1


class Features(NamedTuple):
    """The features of a broker: the lowest and highest level of each by name, and the finalized levels (KIP-584).
    ``epoch`` is -1 if nothing is known of the cluster."""

    supported: Mapping[str, tuple[int, int]] = {}
    finalized: Mapping[str, int] = {}
    epoch: int = -1


NO_FEATURES: Final = Features()


def read_api_versions(version: int, data: bytes | bytearray | memoryview, position: int) -> ApiVersionsRequest:
    """Decode the body of a request."""
    if version < _FLEXIBLE:
        return ApiVersionsRequest()
    reader = WireReader(data, position)
    name, software_version = reader.text(), reader.text()
    if name is None or software_version is None:
        raise InvalidRequestError("a text that may not be null")
    cluster_id, node_id = None, -1
    if version >= _NAMES_BROKER_SINCE:
        cluster_id, node_id = reader.text(), reader.integer("int32")
    reader.skip_tags()
    return ApiVersionsRequest((name, software_version), cluster_id, node_id)


def write_api_versions(
    version: int, error_code: int = 0, *, with_apis: bool = True, features: Features = NO_FEATURES
) -> bytes:
    """The response's body: all APIs, and the features in versions that have them.

    >>> write_api_versions(0, 35, with_apis=False).hex()
    '002300000000'
    """
    rows = _ROWS if with_apis else []
    code = error_code.to_bytes(2, "big", signed=True)
    if version < _FLEXIBLE:
        time = _NO_TIME if version >= _THROTTLED_SINCE else b""
        return code + len(rows).to_bytes(4, "big") + b"".join(rows) + time
    table = b"".join(row + _NO_TAGS for row in rows)
    return code + uvarint(len(rows) + 1) + table + _NO_TIME + _tags(version, features)


def _tags(version: int, features: Features) -> bytes:
    """Tagged fields 0 to 2: what is supported, the epoch, and what is finalized. Empty ones are left out."""
    supported = {name: range_ for name, range_ in features.supported.items() if range_[0] or version >= _LEVEL_0_SINCE}
    finalized = {name: (level, level) for name, level in features.finalized.items()}
    epoch = _EPOCH.pack(features.epoch) if features.epoch >= 0 else b""
    fields = enumerate((_levels(supported), epoch, _levels(finalized)))
    tags = [uvarint(tag) + uvarint(len(data)) + data for tag, data in fields if data]
    return uvarint(len(tags)) + b"".join(tags)


def _levels(features: Mapping[str, tuple[int, int]]) -> bytes:
    if not features:
        return b""
    rows = [
        uvarint(len(name) + 1) + name.encode() + _LEVELS.pack(low, high) + _NO_TAGS
        for name, (low, high) in features.items()
    ]
    return uvarint(len(rows) + 1) + b"".join(rows)

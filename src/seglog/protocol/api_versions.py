"""ApiVersions by hand. Every client sends it first, and a broker answers it before it has loaded the classes of all
other messages."""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final

from seglog.core.errors import InvalidRequestError
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.wire import WireReader, uvarint

_FLEXIBLE: Final = APIS[ApiKey.API_VERSIONS].flexible
_ROW: Final = Struct(">hhh")
_ROWS: Final = [_ROW.pack(api.key, api.low, api.high) for api in APIS.values()]
_THROTTLED_SINCE: Final = 1
_NO_TIME: Final = bytes(4)
_NO_TAGS: Final = b"\0"
TRANSACTION_VERSION: Final = 2
"""The highest ``transaction.version`` that is served (KIP-890)."""
_NAME: Final = b"\x14transaction.version"
_SUPPORTED: Final = b"\x02" + _NAME + struct.pack(">hh", 0, TRANSACTION_VERSION) + _NO_TAGS
_FINALIZED: Final = b"\x02" + _NAME + struct.pack(">hh", TRANSACTION_VERSION, TRANSACTION_VERSION) + _NO_TAGS
_FEATURES: Final = b"".join(
    (
        b"\x03",  # three tagged fields: what is supported, the epoch, and what is finalized (KIP-584)
        *(bytes((tag, len(data))) + data for tag, data in enumerate((_SUPPORTED, bytes(8), _FINALIZED))),
    )
)
_Software = tuple[str, str]


def read_api_versions(version: int, data: bytes | bytearray | memoryview, position: int) -> _Software | None:
    """Name and version of the client's software; None in versions without these fields."""
    if version < _FLEXIBLE:
        return None
    reader = WireReader(data, position)
    name, software_version = reader.text(), reader.text()
    reader.skip_tags()
    if name is None or software_version is None:
        raise InvalidRequestError("a text that may not be null")
    return name, software_version


def write_api_versions(version: int, error_code: int = 0, *, with_apis: bool = True) -> bytes:
    """The response's body: all APIs, and the finalized `transaction.version`.

    >>> write_api_versions(0, 35, with_apis=False).hex()
    '002300000000'
    """
    rows = _ROWS if with_apis else []
    code = error_code.to_bytes(2, "big", signed=True)
    if version < _FLEXIBLE:
        time = _NO_TIME if version >= _THROTTLED_SINCE else b""
        return code + len(rows).to_bytes(4, "big") + b"".join(rows) + time
    table = b"".join(row + _NO_TAGS for row in rows)
    return code + uvarint(len(rows) + 1) + table + _NO_TIME + (_FEATURES if with_apis else _NO_TAGS)

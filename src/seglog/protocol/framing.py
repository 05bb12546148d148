"""Frames and headers of requests and responses (KIP-482 for the flexible ones)."""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from seglog.core.errors import InvalidRequestError
from seglog.protocol.apis import APIS, ApiKey
from seglog.protocol.wire import WireReader, uvarint

SIZE: Final = Struct(">i")
_HEADER: Final = Struct(">hhi")
_LENGTH: Final = Struct(">h")
_CLIENT_ID: Final = _HEADER.size + _LENGTH.size
"""The position of the client id."""
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
PROOF_TAG: Final = 24_161
"""A tagged field of request headers: the `BrokerRegistration.proof` of a broker that sends the request. Kafka has no
such field, and ignores it as it ignores all that it does not know."""
_new: Final = tuple.__new__
"""Makes a named tuple in half the time that its own constructor takes."""
_ANSWER: Final = Struct(">ii")
_ANSWER_FLEXIBLE: Final = Struct(">iib")


class RequestHeader(NamedTuple):
    """``body`` is the position of the request's body. ``client_id`` may be None. ``proof``: see `PROOF_TAG`."""

    key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int
    proof: str = ""


def read_header(frame: bytes | bytearray | memoryview) -> RequestHeader:
    """The header of a request, without the four bytes of its size.

    For an unknown API or version, the body begins right after the correlation id: an UNSUPPORTED_VERSION response needs
    no more. Raises `InvalidRequestError`.
    """
    if len(frame) < _HEADER.size:
        raise InvalidRequestError(f"a request of {len(frame)} bytes has no header")
    key, version, correlation_id = _HEADER.unpack_from(frame)
    api = APIS.get(key)
    if api is None or not api.served <= version <= api.high:
        return RequestHeader(key, version, correlation_id, None, _HEADER.size)
    if len(frame) < _CLIENT_ID:
        raise InvalidRequestError("the request ends within its header")
    (length,) = _LENGTH.unpack_from(frame, _HEADER.size)
    position = _CLIENT_ID + length if length > 0 else _CLIENT_ID
    if length < -1 or position > len(frame):
        raise InvalidRequestError(f"a client id of {length} bytes where {len(frame) - _CLIENT_ID} are left")
    client_id = None if length < 0 else _client_id(bytes(frame[_CLIENT_ID:position]))
    proof = ""
    if version >= api.flexible:
        position, proof = _read_tags(frame, position)
    return _new(RequestHeader, (key, version, correlation_id, client_id, position, proof))


@lru_cache(maxsize=256)
def _client_id(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError("the client id is not UTF-8") from error


def _read_tags(frame: bytes | bytearray | memoryview, position: int) -> tuple[int, str]:
    """The position after the tagged fields, and the proof if there is one."""
    if position < len(frame) and not frame[position]:
        return position + 1, ""  # there are none
    reader = WireReader(frame, position)
    proof = ""
    for _ in range(reader.tags()):
        tag, value = reader.uvarint(), reader.take(reader.uvarint())
        if tag == PROOF_TAG:
            proof = value.decode("ascii", "replace")
    return reader.position, proof


def header_tags(proof: str) -> bytes:
    """The tagged fields of a request's header.

    >>> header_tags("")
    b'\\x00'
    >>> header_tags("7f").hex()
    '01e1bc01023766'
    """
    if not proof:
        return b"\0"
    return b"\1" + uvarint(PROOF_TAG) + uvarint(len(proof)) + proof.encode("ascii")


def frame_response(key: int, version: int, correlation_id: int, body_size: int) -> bytes:
    """Size and header of a response. ApiVersions has the old header in all versions (KIP-511)."""
    if key != _API_VERSIONS and version >= APIS[key].flexible:
        return _ANSWER_FLEXIBLE.pack(body_size + 5, correlation_id, 0)
    return _ANSWER.pack(body_size + 4, correlation_id)

"""Where leaders are, in the answers to clients that asked another broker (KIP-951): they need not ask for metadata."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from seglog.protocol.wire import uvarint

_INT32: Final = Struct(">i")
_LEADER: Final = Struct(">ii")


class NodeEndpoint(NamedTuple):
    """A broker's address on the client's listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


def put_leader(out: bytearray, leader: tuple[int, int]) -> None:
    """The struct ``current_leader``: the leader's id and its epoch; size before it, no tags of its own behind."""
    out.append(_LEADER.size + 1)
    out += _LEADER.pack(*leader)
    out.append(0)


def put_endpoints(out: bytearray, endpoints: Sequence[NodeEndpoint]) -> None:
    """The tags of a response: none, or ``node_endpoints`` (0)."""
    if not endpoints:
        out.append(0)
        return
    body = bytearray(uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        body += _INT32.pack(node_id)
        _put_text(body, host)
        body += _INT32.pack(port)
        _put_text(body, rack)
        body.append(0)
    out += b"\x01\x00" + uvarint(len(body)) + body


def _put_text(out: bytearray, text: str | None) -> None:
    if text is None:
        out.append(0)
        return
    raw = text.encode()
    out += uvarint(len(raw) + 1) + raw

"""The hash of the topics that a consumer group subscribes to (KIP-1101, Kafka's ``Utils.computeTopicHash``). Pure.

A group stores one hash in its metadata record instead of the partitions of all its topics. A topic that is created,
deleted, grown or moved to other racks changes the hash, and the group computes a new assignment.

The hash is XXH3 (64 bits, no seed) over these bytes, little-endian (hash4j's ``putLong``, ``putInt``, ``putString``):

======================  =====  ======================================================
the hash of a topic
======================  =====  ======================================================
magic                       1  0, the version of this layout
topic id                 8, 8  its most significant half, then the other one
name                    2n, 4  UTF-16 code units, then their number n
partition count             4
for each partition
    number                  4  0, 1, 2, …
    for each rack              of the replicas, sorted, a rack once for each of them
        length              4  n, in UTF-16 code units
        rack            2n, 4  UTF-16 code units, then n again
======================  =====  ======================================================

The hash of a group is XXH3 over the hashes of its existing topics, 8 bytes each, in the order of the topics' names. A
group without topics has the hash 0.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final
from uuid import UUID

_MAGIC: Final = 0
_TOPIC_ID: Final = struct.Struct("<BQQ")
assert _TOPIC_ID.size == 17
_INT: Final = struct.Struct("<i")
_HALF: Final = (1 << 64) - 1


def topic_hash(name: str, topic_id: UUID, partition_racks: Sequence[Sequence[str]]) -> int:
    """Return the hash of a topic, a signed 64-bit number.

    ``partition_racks`` has one item for each partition: the racks of its replicas, in any order, without those of
    replicas that are on no registered broker or on one without a rack.
    """
    parts = [_TOPIC_ID.pack(_MAGIC, topic_id.int >> 64, topic_id.int & _HALF), _string(name)]
    parts.append(_INT.pack(len(partition_racks)))
    for number, racks in enumerate(partition_racks):
        parts.append(_INT.pack(number))
        for encoded in sorted(map(_utf16, racks)):
            length = _INT.pack(len(encoded) // 2)
            parts += (length, _little_endian(encoded), length)
    return _xxh3(b"".join(parts))


def group_hash(topic_hashes: Mapping[str, int]) -> int:
    """Return the hash of a group from the hashes of its topics, by name: a signed 64-bit number.

    >>> group_hash({})
    0
    """
    if not topic_hashes:
        return 0
    hashes = [topic_hashes[name] for name in sorted(topic_hashes, key=_utf16)]
    return _xxh3(struct.pack(f"<{len(hashes)}q", *hashes))


def _string(text: str) -> bytes:
    encoded = _utf16(text)
    return _little_endian(encoded) + _INT.pack(len(encoded) // 2)


def _utf16(text: str) -> bytes:
    """The text as Java compares it: big-endian UTF-16 code units sort as ``String.compareTo`` does."""
    return text.encode("utf-16-be", "surrogatepass")


def _little_endian(encoded: bytes) -> bytes:
    swapped = bytearray(encoded)
    swapped[::2], swapped[1::2] = encoded[1::2], encoded[::2]
    return bytes(swapped)


def _xxh3(data: bytes) -> int:
    import xxhash

    digest = xxhash.xxh3_64_intdigest(data)
    return digest - (1 << 64) if digest >> 63 else digest

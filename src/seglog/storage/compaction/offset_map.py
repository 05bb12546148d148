"""The map of compaction: of each key in the dirty part of a log, the offset of its last record; bounded.

As in Kafka's ``SkimpyOffsetMap`` a slot counts as 24 bytes, 16 for a hash of the key and 8 for the offset, and only a
part of the slots may be used (``log.cleaner.io.buffer.load.factor``). `compiled_cleaner` has the same
map as a table of just these bytes; this one is a dict and takes several times the memory, for logs that are small.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final, Protocol

from seglog.core.errors import InvalidConfigError

SLOT_BYTES: Final = 24
HASH_BYTES: Final = 16


class Keys(Protocol):
    """Takes the keys that the cleaner meets; ``latest_offset`` is the last offset that the cleaner has read."""

    def __len__(self) -> int: ...
    @property
    def latest_offset(self) -> int: ...
    @property
    def max_entries(self) -> int: ...
    def read_up_to(self, offset: int) -> None:
        """Set `latest_offset`."""

    def put(self, key: bytes, offset: int) -> None:
        """Take the offset of ``key``; the caller has looked that there is room."""


class LastKnown(Protocol):
    """Says of each record whether it is its key's last. Records after ``latest_offset`` (-1: all) are not judged."""

    @property
    def latest_offset(self) -> int: ...
    def is_last(self, key: bytes, offset: int) -> bool:
        """Whether no record of ``key`` is known after that one."""


class Offsets(Keys, LastKnown, Protocol):
    """An offset map, which is first filled and then asked."""


def capacity(map_bytes: int, load_factor: float) -> tuple[int, int]:
    """(slots, how many of them may be used) of a map of ``map_bytes``; `InvalidConfigError` if that is not even one.

    >>> capacity(1024, 0.9)
    (42, 37)
    """
    slots = map_bytes // SLOT_BYTES
    entries = int(slots * load_factor)
    if slots * load_factor <= 1:
        raise InvalidConfigError(
            f"an offset map of {map_bytes} bytes, of which {load_factor:g} may be used, has no room for a key: "
            "raise log.cleaner.dedupe.buffer.size"
        )
    return slots, entries


class OffsetMap:
    """`Offsets` in plain Python."""

    __slots__ = ("_offsets", "_seed", "latest_offset", "max_entries")

    def __init__(self, max_entries: int, seed: bytes = b"") -> None:
        """``seed`` (up to 64 bytes) makes the hashes of this map unlike those of any other."""
        self.max_entries = max_entries
        self.latest_offset = -1
        self._seed = seed
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def _name(self, key: bytes) -> bytes:
        """A short key itself, a longer one's hash; the two differ in length."""
        return key if len(key) < HASH_BYTES else blake2b(key, digest_size=HASH_BYTES, key=self._seed).digest()

    def put(self, key: bytes, offset: int) -> None:
        self._offsets[self._name(key)] = offset
        self.latest_offset = offset

    def read_up_to(self, offset: int) -> None:
        self.latest_offset = offset

    def get(self, key: bytes) -> int:
        """The offset of ``key``, -1 if it is not in the map."""
        return self._offsets.get(self._name(key), -1)

    def is_last(self, key: bytes, offset: int) -> bool:
        return offset >= self.get(key)

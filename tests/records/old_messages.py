"""Messages of magic 0 and 1 as they lie in a log."""

from __future__ import annotations

import struct
from typing import Final

import pytest
from hypothesis import strategies as st

from seglog.records.batch import Entry, entries
from seglog.records.compression import Codec, compress
from seglog.records.record import NewRecord, Record
from tests.records.generated import BYTES
from tests.records.peers import PEERS, Peer, as_bytes, wrapper

_RECORD: Final = st.builds(NewRecord, value=BYTES, key=BYTES, timestamp=st.integers(0, 2**41), headers=st.just(()))
RECORDS: Final = st.lists(_RECORD, min_size=1, max_size=8)
MAGICS: Final = pytest.mark.parametrize("magic", [0, 1])
OLD_CODECS: Final = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
SOME: Final = [NewRecord(b"one", b"k", 1000), NewRecord(None, None, 3000), NewRecord(b"", b"", 2000)]


def the_entry(data: bytes) -> Entry:
    (entry,) = entries(data)
    return entry


def expected(records: list[NewRecord], magic: int, first: int) -> list[Record]:
    return [
        Record(first + delta, timestamp if magic else -1, as_bytes(key), as_bytes(value))
        for delta, (value, key, timestamp, _) in enumerate(records)
    ]


def message_set(peer: Peer, records: list[NewRecord], magic: int, codec: int, first: int) -> bytes:
    """As it lies in a log at ``first``: in a wrapper of magic 1 offsets are relative, the wrapper has the last."""
    data = bytearray(peer.build_legacy(records, magic, codec, first if magic == 0 or not codec else 0))
    if codec:
        data[:8] = struct.pack(">q", first + len(records) - 1)
    return bytes(data)


def by_hand(
    records: list[NewRecord], magic: int, codec: int, first: int, *, append_time: int | None = None, inner: int = -1
) -> bytes:
    """A wrapper in any codec, lz4 in magic 0 too; ``inner`` is the magic inside where it is another."""
    inner = magic if inner < 0 else inner
    inside = PEERS[0].build_legacy(records, inner, 0, first if magic == 0 else 0)
    last = first + len(records) - 1
    timestamp = max(record.timestamp for record in records) if append_time is None else append_time
    stream = compress(codec, inside, magic=magic)
    return wrapper(magic, codec, last, stream, timestamp=timestamp, append=append_time is not None)

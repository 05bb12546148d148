from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.records.batch_tables import walk_batches
from seglog.records.column_decoding import Selection, decode_parts
from seglog.records.columns import COLUMNS, EXTRA_SCHEMA
from seglog.records.compression import Codec
from seglog.records.key_kernels import key_set
from seglog.records.record import NewRecord, encode_batch
from tests.cases import case
from tests.records.old_messages import MAGICS, message_set
from tests.records.peers import PEERS

KEYS = st.none() | st.binary(max_size=3) | st.binary(min_size=30, max_size=33)


def decoded(data: bytes, wanted: Selection) -> list[dict[str, Any]]:
    return [
        row
        for walked in walk_batches(data)
        for decoded in decode_parts(data, walked.table, wanted)
        if decoded.rows is not None
        for row in decoded.rows.to_pylist()
    ]


@given(
    st.lists(st.lists(KEYS, min_size=1, max_size=8), min_size=1, max_size=6),
    st.lists(KEYS, max_size=6),
    st.sampled_from([Codec.NONE, Codec.LZ4]),
    st.integers(0, 10),
    st.data(),
)
def test_only_records_with_these_keys_come_out(
    batches: list[list[bytes | None]], others: list[bytes | None], codec: Codec, low: int, data: st.DataObject
) -> None:
    case()
    written, offset = b"", 0
    for keys in batches:
        records = [NewRecord(bytes([at]), key, at, (("h", key),) * (at % 3)) for at, key in enumerate(keys)]
        written += encode_batch(records, base_offset=offset, codec=codec)
        offset += len(records)
    there = [key for keys in batches for key in keys]
    chosen = tuple(dict.fromkeys(data.draw(st.lists(st.sampled_from(there), max_size=4)) + others))
    columns = (*COLUMNS, *EXTRA_SCHEMA.names)
    everything = decoded(written, Selection(columns, low=low))
    found = decoded(written, Selection(columns, low=low, keys=chosen))
    assert found == [row for row in everything if row["key"] in chosen]


@MAGICS
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_old_messages_too(magic: int, codec: Codec) -> None:
    records = [NewRecord(b"v", key, 1000) for key in (b"a", None, b"b", b"a")]
    data = message_set(next(iter(PEERS)), records, magic, codec, 0)
    found = decoded(bytes(data), Selection(("offset", "key"), keys=(b"a", None)))
    assert found == [
        {"offset": 0, "key": b"a"},
        {"offset": 1, "key": None},
        {"offset": 3, "key": b"a"},
    ]


def test_many_keys_find_their_places() -> None:
    keys = tuple(b"%d" % number for number in range(1000))
    table = key_set(keys)
    assert sorted(int(slot) for slot in table.slots if slot >= 0) == list(range(1000))
    records = [NewRecord(b"", b"%d" % number) for number in range(0, 2000, 5)]
    found = decoded(bytes(encode_batch(records)), Selection(("key",), keys=keys))
    assert [row["key"] for row in found] == [b"%d" % number for number in range(0, 1000, 5)]

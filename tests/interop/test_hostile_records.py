"""Damaged batches before Kafka's own Java classes: what we accept they read alike; what only we refuse has its reason.

The reasons stand at the head of `seglog.records.record` and `seglog.records.legacy`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from seglog.core.errors import SeglogError
from seglog.records import any_magic
from seglog.records.batch import BATCH_OVERHEAD, build_batch, entries, read_header
from seglog.records.compression import Codec, compress
from seglog.records.record import Record
from tests.cases import case
from tests.kafka.batches import JavaBatch, read_batches
from tests.records.generated import batches, damaged
from tests.records.made import batch_of
from tests.records.old_messages import OLD_CODECS, RECORDS, by_hand
from tests.records.peers import PEERS, seal_legacy, wrapper

STRICTER: Final = re.compile(
    "|".join(
        [
            r"offset delta -?\d+ after",
            r"length -\d+",
            r"too many bits",
            r"beyond 64 bits",
            r"in a batch that says it has none",
            r"(base offset|last offset delta) -\d+ is negative",
            r"bytes too many in a message",
            r"a key or value of -\d+ bytes",
            r"are not a message",
            r"offset -\d+ is negative",
            r"of a message in it",
            r"unknown magic -?\d+ \(byte",  # the rest of a message that is cut off at the end of a wrapper
            r"not a zstd frame: not enough data",  # a frame cut off behind a whole one
            r"the zstd frame ends too early",
            r"the lz4 frame ends before its end mark",  # behind an empty block, which Java takes for the end
            r"xerial header is incomplete",
            r"unknown header flags set",
        ]
    )
)
"""Errors of ours for records that Kafka's readers accept."""

_collect = settings(
    max_examples=1500, derandomize=True, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)


def ours(data: bytes) -> list[Record] | str:
    try:
        found = list(entries(data))
        return [record for entry in found for record in any_magic.decode(data, entry)]
    except SeglogError as error:
        return str(error)


def compare(cases: Sequence[bytes]) -> None:
    """Both refuse, both read the same, or we are stricter for a reason we know."""
    wrong = [
        (data.hex(), ours(data), theirs)
        for data, theirs in zip(cases, read_batches(cases), strict=True)
        if not _agree(ours(data), theirs)
    ]
    assert not wrong, wrong[:3]


def _agree(mine: list[Record] | str, theirs: list[JavaBatch] | str) -> bool:
    if isinstance(mine, str):
        return isinstance(theirs, str) or bool(STRICTER.search(mine))
    return not isinstance(theirs, str) and mine == [Record(*record) for batch in theirs for record in batch.records]


def collected(strategy: st.SearchStrategy[bytes]) -> list[bytes]:
    """Some 1500 examples, for one JVM."""
    cases: list[bytes] = []

    @_collect
    @given(strategy)
    def gather(data: bytes) -> None:
        cases.append(data)

    gather()
    case(len(cases))
    return cases


@st.composite
def changed(draw: st.DrawFn, data: bytes) -> bytes:
    """Bits flipped, bytes cut, put in or put behind."""
    out = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(out)) | st.just(len(out)))
        kind = draw(st.sampled_from(["flip", "cut", "insert"]))
        if kind == "flip" and at < len(out):
            out[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del out[at : at + draw(st.integers(1, 9))]
        else:
            out[at:at] = draw(st.binary(max_size=12))
    return bytes(out)


@st.composite
def damaged_streams(draw: st.DrawFn) -> bytes:
    batch = draw(batches())
    header = read_header(batch)
    return bytes(build_batch(header, draw(changed(batch[BATCH_OVERHEAD:]))))


@st.composite
def damaged_wrappers(draw: st.DrawFn) -> bytes:
    """Old messages: damage to the inner messages, to the stream, or to the wrapper; the outer CRC is right."""
    magic, codec = draw(st.integers(0, 1)), draw(st.sampled_from(OLD_CODECS))
    records, offset = draw(RECORDS), draw(st.sampled_from([0, 3, 1000]))
    inside = PEERS[0].build_legacy(records, magic, 0, offset if magic == 0 else 0)
    last = draw(st.sampled_from([0, offset + len(records) - 1]))
    where = draw(st.integers(0, 2))
    if codec == Codec.NONE or where == 0:
        message = by_hand(records, magic, codec, offset) if codec else PEERS[0].build_legacy(records[:1], magic, 0, 0)
        body = draw(changed(message[17:]))
        head = bytearray(message[:17] + body)
        head[8:12] = (len(head) - 12).to_bytes(4, "big")
        return seal_legacy(head)
    if where == 1:
        return wrapper(magic, codec, last, draw(changed(compress(codec, inside, magic=magic))))
    return wrapper(magic, codec, last, compress(codec, draw(changed(inside)), magic=magic))


def test_damaged_batches() -> None:
    compare(collected(damaged()))


def test_damaged_streams() -> None:
    compare(collected(damaged_streams()))


def test_damaged_old_messages() -> None:
    compare(collected(damaged_wrappers()))


def _random_batch(parts: tuple[int, bytes, int, int]) -> bytes:
    codec, area, count, last = parts
    return bytes(batch_of(compress(codec, area), attributes=codec, records_count=count, last_offset_delta=last))


def test_random_records() -> None:
    few = st.integers(0, 3)
    compare(collected(st.tuples(st.sampled_from(Codec), st.binary(max_size=60), few, few).map(_random_batch)))

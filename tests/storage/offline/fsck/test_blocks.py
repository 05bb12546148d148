"""Digests of two replicas, against a model that has their batches as lists."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT64
from seglog.records.batch import read_header
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.log.manifest import SealedSegment
from seglog.storage.offline.fsck.blocks import OffsetRange, differing, excerpt, read_blocks
from seglog.storage.offline.verify.manifests import chain_of
from tests.cases import case
from tests.storage.offline.written_segments import write_segment

ALL = OffsetRange(0, MAX_INT64)


def _batches(rng: random.Random, count: int) -> list[bytes]:
    made, offset = [], 0
    for _ in range(count):
        records = [NewRecord(rng.randbytes(9))] * rng.randrange(1, 4)
        made.append(bytes(encode_batch(records, base_offset=offset)))
        offset += len(records) + rng.choice((0, 0, 0, 2))
    return made


def _write(path: Path, batches: Sequence[bytes], rng: random.Random) -> None:
    """The same batches lie in segments of any length."""
    rest = list(batches)
    while rest:
        taken, rest = rest[: (cut := rng.randrange(1, 90))], rest[cut:]
        write_segment(path, read_header(taken[0]).base_offset, taken)


@given(st.integers(0, 2**32))
def test_every_difference_lies_in_the_ranges_and_equal_logs_have_none(seed: int) -> None:
    case()
    rng = random.Random(seed)
    left = _batches(rng, rng.randrange(400))
    right = list(left)
    for _ in range(rng.randrange(3) if right else 0):
        at = rng.randrange(len(right))
        header = read_header(right[at])
        records = [NewRecord(b"other")] * header.records_count
        other = bytes(encode_batch(records, base_offset=header.base_offset))
        right[at : at + 1] = [] if rng.random() < 0.3 and len(right) > 1 else [other]
    with TemporaryDirectory() as made:
        path = Path(made)
        for name, batches in (("left", left), ("right", right)):
            (path / name).mkdir()
            _write(path / name, batches, rng)
        fs = OsFs()
        end = max([read_header(one).next_offset for one in left], default=0)
        within = OffsetRange(rng.randrange(end + 1), rng.randrange(end + 1)) if rng.random() < 0.5 else ALL
        within = OffsetRange(min(within), min(max(within), end))
        blocks = [read_blocks(fs, str(path / name), within) for name in ("left", "right")]
        ranges = differing(blocks[0], blocks[1], within)
    changed = {read_header(one).base_offset for one in set(left) ^ set(right)}
    expected = {offset for offset in changed if within.first <= offset < within.end}
    assert all(any(one.first <= offset < one.end for one in ranges) for offset in expected)
    if left == right:
        assert ranges == []


def test_a_sealed_segment_is_not_read(tmp_path: Path) -> None:
    rng = random.Random(3)
    batches = _batches(rng, 200)
    base = read_header(batches[100]).base_offset
    for name in ("a", "b"):
        write_segment(tmp_path / name, 0, batches[:100])
        write_segment(tmp_path / name, base, batches[100:])
    fs = OsFs()
    with (tmp_path / "a" / f"{0:020d}.log").open("rb") as file:
        size = len(file.read())
    opened = fs.open(str(tmp_path / "a" / f"{0:020d}.log"), write=False)
    last = read_header(batches[99])
    sealed = {0: SealedSegment(0, last.next_offset, size, last.crc, chain_of(opened))}
    opened.close()
    plain = [read_blocks(fs, str(tmp_path / name), ALL, sealed) for name in ("a", "b")]
    assert differing(plain[0], plain[1], ALL) == []
    data = bytearray((tmp_path / "b" / f"{0:020d}.log").read_bytes())
    data[8] ^= 1
    (tmp_path / "b" / f"{0:020d}.log").write_bytes(data)
    assert differing(plain[0], read_blocks(fs, str(tmp_path / "b"), ALL, sealed), ALL) == []
    unreadable = read_blocks(fs, str(tmp_path / "b"), ALL)
    assert not unreadable[0].is_readable
    assert differing(read_blocks(fs, str(tmp_path / "a"), ALL), unreadable, ALL)[0].first == 0


def test_an_excerpt_ends_at_a_batch(tmp_path: Path) -> None:
    batches = _batches(random.Random(4), 50)
    _write(tmp_path, batches, random.Random(5))
    fs, wanted = OsFs(), ALL
    found = b""
    while wanted.first < read_header(batches[-1]).next_offset:
        data, reached = excerpt(fs, str(tmp_path), wanted, 200)
        found += data
        wanted = OffsetRange(reached, ALL.end)
    assert found == b"".join(batches)

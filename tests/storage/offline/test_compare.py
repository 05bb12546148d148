"""Two logs compared, against a model that has them as lists of records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

import seglog
from seglog.core.errors import InvalidLogDirError, UnknownTopicError
from seglog.core.fs import OsFs
from seglog.records.batch import BatchHeader, build_batch
from seglog.records.compression import compress
from seglog.records.record import NewRecord, Record, encode_records
from seglog.storage.offline import compare as compare_module
from seglog.storage.offline.batch_boundaries import SegmentBytes
from seglog.storage.offline.compare import (
    COPY,
    REPLICAS,
    CompareRules,
    CompareVerdict,
    Comparison,
    RangeKind,
    Side,
    compare,
    judge,
    merge,
)
from seglog.storage.offline.compare_directories import Until, compare_directories, pairs
from tests.cases import case
from tests.kit.memory_fs import MemoryFs

Class = tuple[object, ...]


class Batch(NamedTuple):
    """A batch that compaction may have been at: ``records`` lie between ``base`` and ``last``."""

    base: int
    last: int
    epoch: int
    codec: int
    records: tuple[Record, ...]
    is_damaged: bool = False

    def encode(self) -> bytes:
        data = self._encode_whole()
        return data[:-1] + bytes([data[-1] ^ 1]) if self.is_damaged else data

    def _encode_whole(self) -> bytes:
        area = bytes(encode_records(self.records, base_offset=self.base, base_timestamp=0))
        header = BatchHeader(
            base_offset=self.base,
            length=0,
            leader_epoch=self.epoch,
            magic=2,
            crc=0,
            attributes=self.codec if self.records else 0,
            last_offset_delta=self.last - self.base,
            base_timestamp=0,
            max_timestamp=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            records_count=len(self.records),
        )
        return bytes(build_batch(header, compress(self.codec, area) if self.codec and self.records else area))


class Made(NamedTuple):
    batches: list[Batch]
    side: Side


def source(rng: Random) -> list[Batch]:
    batches, offset, epoch = [], rng.choice((0, 0, 100)), 0
    for _ in range(rng.randrange(12)):
        last = offset + rng.randrange(5)
        records = tuple(
            Record(at, at, rng.choice((None, b"k")), b"v%d" % at)
            for at in range(offset, last + 1)
            if rng.random() < 0.9
        )
        epoch += rng.random() < 0.2
        is_damaged = bool(records) and rng.random() < 0.03
        batches.append(Batch(offset, last, epoch, rng.choice((0, 0, 1)), records, is_damaged))
        offset = last + 1 + rng.choice((0, 0, 0, 3))
    return batches


def altered(rng: Random, batch: Batch) -> list[Batch]:
    """The batch of a copy that was made well, or badly, or long ago."""
    records = batch.records
    match rng.choice(("same",) * 12 + ("codec", "split", "thin", "value", "time", "epoch", "gone", "empty", "harm")):
        case "codec":
            return [batch._replace(codec=2)]
        case "split" if batch.last > batch.base:
            cut = rng.randrange(batch.base, batch.last) + 1
            first = batch._replace(last=cut - 1, records=tuple(one for one in records if one.offset < cut))
            return [first, batch._replace(base=cut, records=tuple(one for one in records if one.offset >= cut))]
        case "thin" if records:
            left = list(records)
            del left[rng.randrange(len(left))]
            return [batch._replace(records=tuple(left))]
        case "value" | "time" as what if records:
            at = rng.randrange(len(records))
            new = records[at]._replace(value=b"other") if what == "value" else records[at]._replace(timestamp=7)
            return [batch._replace(records=(*records[:at], new, *records[at + 1 :]))]
        case "epoch":
            return [batch._replace(epoch=batch.epoch + 1)]
        case "gone":
            return []
        case "empty":
            return [batch._replace(records=(), is_damaged=False)]
        case "harm" if records:
            return [batch._replace(is_damaged=True)]
    return [batch]


def make(fs: MemoryFs, name: str, batches: list[Batch], rng: Random) -> Made:
    """Written in segments, here and there restarted; the log may start inside a batch."""
    fs.mkdir(f"/{name}")
    segments: list[SegmentBytes] = []
    data = b""

    def write() -> None:
        with_base = segments[-1]
        file = fs.open(with_base.log, create=True)
        file.pwrite(data, 0)
        segments[-1] = with_base._replace(size=len(data))

    for batch in batches:
        if not segments or rng.random() < 0.2:
            if segments:
                write()
            segments.append(SegmentBytes(batch.base, f"/{name}/{batch.base:020d}.log", 0))
            data = b""
        data += batch.encode()
    if segments:
        write()
    start, end = (batches[0].base, batches[-1].last + 1) if batches else (0, 0)
    return Made(batches, Side(tuple(segments), min(end, start + rng.choice((0, 0, 0, 2, 7))), end))


def spans(finding: Comparison, offsets: set[int]) -> bool:
    return offsets.issuperset(range(finding.first, finding.end))


def expected(left: Made, right: Made, rules: CompareRules) -> list[Comparison]:
    """The expected findings, batch by batch and record by record, in no particular order."""

    def key(batch: Batch) -> bytes:
        return (batch if rules.epochs else batch._replace(epoch=0)).encode()

    found: list[Comparison] = []
    loose: list[dict[int, tuple[Batch, Record]]] = []
    damaged: list[set[int]] = []
    for mine, other, lacking in ((left, right, "right"), (right, left, "left")):
        theirs = {batch.base: batch for batch in other.batches if batch.last >= other.side.log_start}
        records: dict[int, tuple[Batch, Record]] = {}
        unknown: set[int] = set()
        for batch in mine.batches:
            begin, behind, count = max(batch.base, mine.side.log_start), batch.last + 1, len(batch.records)
            twin = theirs.get(batch.base)
            if behind <= mine.side.log_start:
                continue
            if twin is not None and key(twin) == key(batch):
                begin = max(batch.base, min(left.side.log_start, right.side.log_start))
                found += [Comparison(RangeKind.SAME, begin, behind, count)] if mine is left else []
            elif not count:
                found.append(Comparison(RangeKind.LAYOUT, begin, behind, 0))
            elif behind <= other.side.log_start or begin >= other.side.log_end:
                place = "start" if behind <= other.side.log_start else "end"
                found.append(Comparison(RangeKind.MISSING, begin, behind, count, side=lacking, place=place))
            elif batch.is_damaged:
                found.append(
                    Comparison(RangeKind.DAMAGED, begin, behind, count, side="left" if mine is left else "right")
                )
                unknown |= set(range(begin, behind))
            else:
                records |= {one.offset: (batch, one) for one in batch.records if one.offset >= mine.side.log_start}
        loose.append(records)
        damaged.append(unknown)
    found = [one for one in found if one.kind is not RangeKind.LAYOUT or not any(spans(one, some) for some in damaged)]
    loose = [{at: one for at, one in loose[n].items() if at not in damaged[1 - n]} for n in (0, 1)]
    for at in loose[0].keys() | loose[1].keys():
        if at in loose[0] and at in loose[1]:
            (ours, mine_), (theirs_, its) = loose[0][at], loose[1][at]
            fields = [name for name in ("value", "key", "timestamp") if getattr(mine_, name) != getattr(its, name)]
            fields += ["epoch"] if rules.epochs and ours.epoch != theirs_.epoch else []
            found.append(Comparison(RangeKind.DIFFERS if fields else RangeKind.LAYOUT, at, at + 1, 1, tuple(fields)))
            continue
        number = 0 if at in loose[0] else 1
        side = (right, left)[number].side
        place = "start" if at < side.log_start else "end" if at >= side.log_end else "inside"
        keyless = int(place == "inside" and loose[number][at][1].key is None)
        found.append(
            Comparison(RangeKind.MISSING, at, at + 1, 1, side=("right", "left")[number], place=place, keyless=keyless)
        )
    return found


def totals(findings: Iterable[Comparison]) -> dict[Class, tuple[int, int, int, int]]:
    """For each class of them records, keyless, first and end: neighbours that were joined come to the same."""
    found: dict[Class, tuple[int, int, int, int]] = {}
    for one in findings:
        key = (one.kind, one.fields, one.side, one.place)
        records, keyless, first, end = found.get(key, (0, 0, one.first, one.end))
        found[key] = (records + one.records, keyless + one.keyless, min(first, one.first), max(end, one.end))
    return found


@given(st.integers(0, 1 << 40), st.sampled_from([REPLICAS, COPY]))
def test_what_is_found_is_what_the_model_says_however_it_is_cut(seed: int, rules: CompareRules) -> None:
    case()
    rng, fs = Random(seed), MemoryFs()
    batches = source(rng)
    copied = [new for batch in batches for new in altered(rng, batch)]
    low, high = rng.choice((0, 0, 0, 2)), rng.choice((0, 0, 0, 2))
    left = make(fs, "left", batches[: len(batches) - rng.choice((0, 0, 2))], rng)
    right = make(fs, "right", copied[low : len(copied) - high], rng)
    first = min(left.side.log_start, right.side.log_start)
    end = max(left.side.log_end, right.side.log_end)
    whole = compare(fs, left.side, right.side, first, end, rules)
    wanted = expected(left, right, rules)
    assert totals(whole) == totals(wanted)
    assert judge(whole) == judge(wanted)
    assert [one.first for one in whole] == sorted(one.first for one in whole)
    assert not any(one.is_like(other) for one, other in pairwise(whole))
    cuts = [first, *sorted(rng.choices(range(first, end + 1), k=rng.randrange(4))), end]
    pieces = [compare(fs, left.side, right.side, *piece, rules) for piece in pairwise(cuts)]
    joined = list(merge(one for piece in pieces for one in piece))
    assert [one._replace(reason="") for one in joined] == [one._replace(reason="") for one in whole]
    assert all(one.reason for one in joined if one.kind is RangeKind.DAMAGED)


def log_dir(
    path: Path, values: Sequence[bytes], *, epoch: int = 0, codec: str = "none", key: bytes | None = None
) -> str:
    """One partition ``t-0`` with a batch for each two of ``values``."""
    with seglog.open(path) as directory:
        directory.create_topic("t")
        log = directory.log("t")
        log.assign_epoch(epoch)
        for at in range(0, len(values), 2):
            records = [NewRecord(value, key, 1_700_000_000_000) for value in values[at : at + 2]]
            log.append_records(records, codec=codec)
    return str(path)


VALUES = [b"v%d" % at for at in range(10)]


def told(
    left: str, right: str, rules: CompareRules = COPY, *, topics: Sequence[str] = (), until: Until = "highWatermark"
) -> list[str]:
    found = compare_directories(left, right, rules=rules, topics=topics, until=until)
    return [str(one) for one in found if not one.is_fine]


def test_copies_that_are_fine_and_copies_that_are_not(tmp_path: Path) -> None:
    left = log_dir(tmp_path / "left", VALUES)
    same = log_dir(tmp_path / "same", VALUES, epoch=3)
    (found,) = compare_directories(left, same, rules=COPY)
    assert (found.verdict, found.findings) == (CompareVerdict.SAME, [Comparison(RangeKind.SAME, 0, 10, 10)])
    zipped = log_dir(tmp_path / "zipped", VALUES, codec="gzip")
    (found,) = compare_directories(left, zipped, rules=COPY)
    assert (found.verdict, found.is_fine, found.differences) == (CompareVerdict.LAYOUT, True, [])
    wrong = log_dir(tmp_path / "wrong", [*VALUES[:7], b"wrong", *VALUES[8:]])
    assert told(left, wrong) == ["t-0: different, first at offset 7"]
    shorter = log_dir(tmp_path / "shorter", VALUES[:6])
    assert told(left, shorter) == []  # the copy says that it has six
    assert told(left, shorter, until="logEnd") == ["t-0: different, first at offset 6"]
    (found,) = compare_directories(left, shorter, rules=COPY, until="logEnd")
    assert found.differences == [Comparison(RangeKind.MISSING, 6, 10, 4, side="right", place="end")]


def test_replicas_have_the_same_bytes_of_the_same_topic(tmp_path: Path) -> None:
    left, right = log_dir(tmp_path / "left", VALUES), log_dir(tmp_path / "right", VALUES)
    (found,) = told(left, right, REPLICAS)
    assert found.startswith("t-0: two topics of one name, with ids ")
    replicas = REPLICAS._replace(topic_ids=False)
    assert told(left, right, replicas) == []
    newer = log_dir(tmp_path / "newer", VALUES, epoch=1)
    (found_,) = compare_directories(left, newer, rules=replicas)
    assert found_.differences == [Comparison(RangeKind.DIFFERS, 0, 10, 10, ("epoch",))]
    assert told(left, log_dir(tmp_path / "zipped", VALUES, codec="gzip"), replicas) == [
        "t-0: same records in other batches, first at offset 0"
    ]


def test_what_compaction_took_is_told_from_what_was_lost() -> None:
    fs = MemoryFs()
    record = Record(0, 0, b"k", b"v")
    batch = Batch(0, 2, 0, 0, tuple(record._replace(offset=at) for at in range(3)))
    tail = Batch(3, 3, 0, 0, (record._replace(offset=3),))
    rng = Random(0)
    whole = make(fs, "whole", [batch, tail], rng).side._replace(log_start=0)
    thin = make(fs, "thin", [batch._replace(records=batch.records[2:]), tail], rng).side._replace(log_start=0)
    found = compare(fs, whole, thin, 0, 4)
    assert found == [
        Comparison(RangeKind.MISSING, 0, 2, 2, side="right", place="inside"),
        Comparison(RangeKind.LAYOUT, 2, 3, 1),
        Comparison(RangeKind.SAME, 3, 4, 1),
    ]
    assert judge(found) is CompareVerdict.COMPACTED
    assert not judge(found).is_fine(REPLICAS)
    assert judge(found).is_fine(REPLICAS._replace(compaction=False))
    unkeyed = batch._replace(records=tuple(one._replace(key=None) for one in batch.records))
    lossy = make(fs, "lossy", [unkeyed, tail], rng).side._replace(log_start=0)
    assert judge(compare(fs, lossy, thin, 0, 4)) is CompareVerdict.DIFFERENT


def test_bytes_that_their_crc_does_not_hold_are_never_the_same(tmp_path: Path) -> None:
    left, right = log_dir(tmp_path / "left", VALUES), log_dir(tmp_path / "right", VALUES)
    log = tmp_path / "right" / "t-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[-2] ^= 1
    log.write_bytes(data)
    (found,) = compare_directories(left, right, rules=COPY)
    assert (found.verdict, found.is_fine, found.first_difference) == (CompareVerdict.DAMAGED, False, 8)
    (damage,) = found.differences
    assert damage[:6] == (RangeKind.DAMAGED, 8, 10, 2, (), "right")
    assert re.search(r"right/t-0/0+\.log, position \d{3}.*CRC", damage.reason)


@pytest.mark.parametrize("last", [True, False], ids=["last segment", "segment before"])
def test_sizes_that_are_damaged_end_what_can_be_compared_of_a_piece(tmp_path: Path, *, last: bool) -> None:
    left, right = log_dir(tmp_path / "left", VALUES), log_dir(tmp_path / "right", VALUES)
    for path in (left, right):
        with seglog.open(path) as directory:
            log = directory.log("t")
            log.append_records([NewRecord(b"x", timestamp=1_000)])
            if not last:
                log.roll()
                log.append_records([NewRecord(b"y", timestamp=1_000)])
    file = tmp_path / "right" / "t-0" / f"{0:020d}.log"
    data = bytearray(file.read_bytes())
    fifth = next(at for at in range(len(data)) if data[at : at + 8] == (8).to_bytes(8, "big"))
    data[fifth + 8 : fifth + 12] = b"\0\0\0\1"
    file.write_bytes(data)
    ends = 11 if last else 12
    (found,) = compare_directories(left, right, rules=COPY)
    same, damage = found.findings
    assert same == Comparison(RangeKind.SAME, 0, 8, 8)
    assert damage[:6] == (RangeKind.DAMAGED, 8, ends, 0, (), "right")
    assert damage.reason.startswith(f"{file}, position {fifth}")
    (pair,) = pairs(OsFs(), left, right)
    assert pair.left is not None
    assert pair.right is not None
    (behind,) = compare(OsFs(), pair.left.side, pair.right.side, 10, 11, COPY)
    assert behind[:6] == (RangeKind.DAMAGED, 10, 11, 0, (), "right")


def test_which_partitions_are_pairs(tmp_path: Path) -> None:
    left, right = log_dir(tmp_path / "left", VALUES), log_dir(tmp_path / "right", VALUES)
    with seglog.open(right) as directory:
        directory.create_topic("more")
        directory.log("more").append_records([NewRecord(b"v")])
    found = [(str(one.pair.partition), one.verdict) for one in compare_directories(left, right, rules=COPY)]
    assert found == [("more-0", CompareVerdict.DIFFERENT), ("t-0", CompareVerdict.SAME)]
    assert told(left, right, topics=["t"]) == []
    assert told(f"{left}/t-0", f"{right}/t-0") == []
    with pytest.raises(UnknownTopicError, match=r"neither .*left nor .*right has a topic 'nix'"):
        told(left, right, topics=["nix"])
    for wrong, reason in (
        ("none", "no such directory"),
        (".", "neither a log directory"),
        ("left/t-0", "one is a part"),
    ):
        with pytest.raises(InvalidLogDirError, match=reason):
            told(str(tmp_path / wrong), right)


def test_a_log_is_cut_into_pieces_of_even_size(tmp_path: Path) -> None:
    config = {"index.interval.bytes": 100, "internal.segment.bytes": 4000}
    with seglog.open(tmp_path / "log") as directory:
        directory.create_topic("t", config=config)
        for at in range(300):
            directory.log("t").append_records([NewRecord(b"%d" % at, timestamp=1_700_000_000_000)])
    (pair,) = pairs(OsFs(), str(tmp_path / "log"), str(tmp_path / "log"))
    cuts = pair.cuts(OsFs(), 2000)
    assert len(cuts) > 8
    assert (cuts[0][0], cuts[-1][1]) == (0, 300)
    assert all(before[1] == after[0] for before, after in pairwise(cuts))
    assert pair.cuts(OsFs())[0][0] == 0


def test_what_differs_too_often_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_module, "MOST_FINDINGS", 3)
    many = [Comparison(kind, at, at + 1, 1) for at in range(20) for kind in (RangeKind.SAME, RangeKind.LAYOUT)]
    found = compare_module.join(many)
    assert found[:3] == many[:3]
    assert found[3:] == [Comparison(RangeKind.LAYOUT, 1, 20, 19), Comparison(RangeKind.SAME, 2, 20, 18)]

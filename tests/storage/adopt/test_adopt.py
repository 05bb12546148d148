"""Adopting staged segments: what the log has then, what is refused, how often, and how many files it takes."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from seglog.core.config import LogConfig
from seglog.core.errors import AdoptError, CorruptCheckpointError, SeglogError
from seglog.records.batch import patch_offset_and_epoch
from seglog.storage.adopt import InputMark, Intake, adopt
from seglog.storage.formats import adopt_ledger as ledger_module
from seglog.storage.formats.adopt_ledger import Ledger, decode_ledger, encode_ledger
from seglog.storage.formats.adopt_manifest import (
    AdoptItem,
    AdoptManifest,
    AdoptMode,
    PartitionPlan,
    decode_manifest,
    encode_manifest,
)
from seglog.storage.log import batch_placement as placing
from seglog.storage.log.batch_placement import place_all
from seglog.storage.log.log import Log
from seglog.storage.log.producers import Origin
from tests.cases import case
from tests.kit.memory_fs import MemoryFs
from tests.storage.adopt.adopting import DIR, SMALL, T, batches_of, damage, found, open_dir, run_job, stage, texts
from tests.storage.disk import values
from tests.storage.log.appends import NOW_MS, Traffic


@pytest.mark.parametrize("counts", [(5,), (200,), (3, 90, 2, 60)])
def test_parts_are_in_the_log_in_their_order(counts: tuple[int, ...]) -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    log = directory.log("t")
    log.append(batches_of(texts("before", 3))[0])
    payloads = [texts(f"task{at}", count) for at, count in enumerate(counts)]
    parts = [stage(directory, one, job="job", task=str(at), partition=T) for at, one in enumerate(payloads)]
    adopted = adopt(directory, "job", parts, "job:1", 0)
    expected = [*texts("before", 3), *(value for one in payloads for value in one)]
    assert adopted == ({T: (3, len(expected))}, False, len(expected) - 3)
    assert found(log) == expected
    assert log.recovery_point == log.log_end_offset
    assert adopt(directory, "job", parts, "job:1", 0).already
    assert found(log) == expected
    log.append(batches_of(texts("after", 3))[0])
    assert found(log) == [*expected, *texts("after", 3)]
    assert fs.listdir(f"{DIR}/t-0/.seglog/staging") == []
    directory.close()
    fs.crash(random.Random(1))
    with open_dir(fs) as again:
        assert found(again.log("t")) == [*expected, *texts("after", 3)]


def headers(log: Log) -> list[tuple[int, int, int, int]]:
    return [
        (header.base_offset, header.crc, header.length, header.leader_epoch)
        for segment in log.segments
        for header, _, _ in segment.headers()
    ]


def test_the_batches_are_those_that_appends_would_have_left() -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    for topic in ("t", "appended"):
        directory.create_topic(topic, 1, SMALL)
        directory.log(topic).assign_epoch(3)
    payloads = [texts("a", 80), texts("b", 5)]
    run_job(directory, [{T: one} for one in payloads])
    for batch in (batch for one in payloads for batch in batches_of(one)):
        directory.log("appended").append(batch)
    assert headers(directory.log("t")) == headers(directory.log("appended"))
    assert directory.log("t").epochs.entries == directory.log("appended").epochs.entries
    assert len(directory.log("t").segments) > 2
    adopted, appended = directory.log("t").segments[0], directory.log("appended").segments[0]
    for mine, other in ((adopted.offset_index, appended.offset_index), (adopted.time_index, appended.time_index)):
        assert [mine.entry(at) for at in range(mine.count)] == [other.entry(at) for at in range(other.count)]
    directory.close()
    assert damage(fs) == []


def test_a_thousand_small_jobs_leave_the_files_of_one() -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, {"retention.ms": -1, "segment.index.bytes": 4000})
    run_job(directory, [{T: texts("0", 3)}], version=0)
    before = [path for path in fs.files() if "/t-0/" in path]
    for version in range(1, 1000):
        run_job(directory, [{T: texts(f"{version}", 3)}], version=version)
    assert [path for path in fs.files() if "/t-0/" in path] == before
    assert found(directory.log("t")) == [text for version in range(1000) for text in texts(f"{version}", 3)]
    assert directory.fs.stat(f"{DIR}/seglog.ledger").size < 200
    directory.close()


def test_many_small_tasks_of_a_large_job_leave_few_files_too() -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    run_job(directory, [{T: texts(f"{task}", 2)} for task in range(200)])
    log = directory.log("t")
    assert log.size > 8 * log.config.segment_bytes
    assert len(log.segments) <= 2 * log.size / log.config.segment_bytes
    directory.close()


def test_a_start_after_a_crash_checks_no_segment_that_was_adopted_whole() -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, {**SMALL, "internal.segment.bytes": 3000})
    run_job(directory, [{T: texts("a", 120)}, {T: texts("b", 30)}])
    assert directory.log("t").size > 9_000
    left = fs.after_crash(random.Random(4))
    report = open_dir(left).reports[T]
    assert report.bytes_scanned <= 1500
    assert not report.rebuilt


# Once


def test_a_version_is_adopted_once_and_none_below_it() -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    done = [
        run_job(directory, [{T: texts(f"{at}", 2)}], application=application, version=version).already
        for at, (application, version) in enumerate(
            [("txn:a", 5), ("txn:a", 4), ("txn:a", 5), ("txn:b", 4), ("txn:a", 6)]
        )
    ]
    assert done == [False, True, True, False, False]
    assert found(directory.log("t")) == [*texts("0", 2), *texts("3", 2), *texts("4", 2)]
    assert run_job(directory, [], application="query:empty", version=3) == ({}, False, 0)
    assert run_job(directory, [], application="query:empty", version=3).already
    directory.close()
    with open_dir(fs) as again:
        assert run_job(again, [{T: texts("x", 2)}], application="txn:b", version=4).already


def test_a_file_that_another_job_has_read_meanwhile_is_refused() -> None:
    directory = open_dir(MemoryFs())
    directory.create_topic("t", 1, SMALL)
    marks = [InputMark("t", "id", "/in", 1, 2, 3, position, "head", "tail") for position in (10, 20)]
    first = Intake(((None, marks[0]),), "one")
    run_job(directory, [{T: texts("0", 2)}], application="txn:a", version=1, intake=first)
    with pytest.raises(AdoptError, match="/in was read into topic t by another job in the meantime"):
        run_job(directory, [{T: texts("1", 2)}], application="txn:a", version=2, intake=Intake(((None, marks[1]),)))
    with pytest.raises(AdoptError, match="txn:a version 1 was adopted with other input"):
        run_job(directory, [{T: texts("1", 2)}], application="txn:a", version=1, intake=Intake((), "two"))
    assert run_job(directory, [{T: texts("0", 2)}], application="txn:a", version=1, intake=first).already
    assert found(directory.log("t")) == texts("0", 2)
    directory.close()


def test_the_ledger_is_bounded_and_jobs_do_not_drive_queries_out() -> None:
    ledger = Ledger()
    ledger.note("query:slow", 7)
    for number in range(ledger_module.MOST + 10):
        ledger.note(f"job:{number}", 0)
    assert ledger.is_adopted("query:slow", 7)
    assert len(ledger.versions) == ledger_module.MOST_JOBS + 1
    for number in range(ledger_module.MOST):
        ledger.note(f"txn:{number}", 0)
    assert len(ledger.versions) == ledger_module.MOST
    assert not ledger.is_adopted("query:slow", 0)
    assert decode_ledger(encode_ledger(ledger)).versions == ledger.versions


@pytest.mark.parametrize("at", range(0, 200, 3))
def test_a_flipped_bit_in_ledger_or_manifest_is_seen(at: int) -> None:
    plan = PartitionPlan(
        T, 3, 0, (AdoptItem("t-0/.seglog/staging/j/0/00000000000000000000.log", AdoptMode.APPEND, 4, 500),)
    )
    mark = InputMark("t", "id", "/in", 1, 2, 3, 4, "head", "tail")
    manifest = AdoptManifest("j", "txn:a", 5, (plan,), (mark,), "digest")
    assert decode_manifest(encode_manifest(manifest)) == manifest
    ledger = Ledger({"txn:a": 5, "query:b": 0, "query:" + "c" * 140: 1}, [mark], {("txn:a", 5): "digest"})
    found = decode_ledger(encode_ledger(ledger))
    assert (found.versions, found.inputs, found.digests) == (ledger.versions, ledger.inputs, ledger.digests)
    for data, decode in (
        (encode_manifest(manifest), decode_manifest),
        (encode_ledger(ledger), decode_ledger),
    ):
        broken = bytearray(data)
        broken[at % (len(data) - 1)] ^= 1 << at % 8
        with pytest.raises(CorruptCheckpointError, match="file-name"):
            decode(bytes(broken), "file-name")


def test_readers_and_writers_go_on_meanwhile() -> None:
    fs = MemoryFs()
    directory = open_dir(fs, background=True)
    directory.create_topic("t", 1, SMALL)
    log, stop = directory.log("t"), threading.Event()

    def read() -> int:
        times = 0
        while not stop.is_set():
            here = values(log)
            assert list(here) == list(range(len(here)))
            times += 1
        return times

    def write() -> None:
        for at in range(150):
            log.append(batches_of(texts(f"w{at}", 3))[0])

    with ThreadPoolExecutor(3) as pool:
        readers, writer = [pool.submit(read) for _ in range(2)], pool.submit(write)
        try:
            for version in range(30):
                count = 3 if version % 3 else 40
                assert run_job(directory, [{T: texts(f"j{version}", count)}], version=version).records == count
            writer.result()
        finally:
            stop.set()
        assert min(reader.result() for reader in readers) > 0
    here = found(log)
    assert len(here) == 450 + sum(3 if version % 3 else 40 for version in range(30))
    for version in range(30):
        ours = texts(f"j{version}", 3 if version % 3 else 40)
        assert here[here.index(ours[0]) :][: len(ours)] == ours
    directory.close()
    assert damage(fs) == []


def place(data: bytes, config: LogConfig) -> object:
    """Batches of a bulk writer as the log takes them at offset 7, or why it does not."""
    try:
        out, placed = place_all(data, 7, 2, config, Origin.BULK, NOW_MS)
        return bytes(out), list(placed)
    except SeglogError as error:
        return type(error), str(error)


@pytest.mark.parametrize("seed", range(4))
def test_a_run_of_batches_is_placed_as_its_batches_are(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    traffic = Traffic(seed, codecs=(0, 1, 4), hostile_headers=True)
    config = LogConfig.from_mapping({"message.timestamp.after.max.ms": 60_000, "max.message.bytes": 900})
    runs = []
    for _ in range(400):
        batches = []
        for _ in range(rng.randrange(1, 5)):
            batch = bytearray(traffic.next()[0])
            patch_offset_and_epoch(batch, 0, rng.randrange(9), rng.randrange(3))
            batches.append(bytes(batch))
        run = b"".join(batches)
        runs.append(run[: rng.randrange(len(run))] if rng.random() < 0.1 else run)
    case(len(runs))
    together = [place(run, config) for run in runs]
    monkeypatch.setattr(placing, "_place_plain_run", lambda *_: None)
    assert [place(run, config) for run in runs] == together
    assert sum(isinstance(one, tuple) and isinstance(one[0], bytes) for one in together) > 50

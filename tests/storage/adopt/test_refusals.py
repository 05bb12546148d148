"""Staged segments that cannot be adopted, and adoptions that stop in the middle: the errors, and the state after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from seglog.core.clock import SystemClock
from seglog.core.errors import (
    AdoptError,
    DamagedPartitionError,
    InvalidLogDirError,
    InvalidRecordError,
    LogDirFullError,
    LogDirOfflineError,
    SeglogError,
    UnknownTopicError,
)
from seglog.core.fs import OsFs
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, encode_batch
from seglog.storage.adopt import StagedPart, StagingWriter, adopt, collect_orphans, remove_job, staged_at
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.offline.repair.file_replacement import FileReplacement
from tests.cases import case
from tests.kit.crash_fs import Call, CrashFs, SimulatedCrash
from tests.kit.memory_fs import MemoryFs
from tests.storage.adopt.adopting import (
    DIR,
    SMALL,
    T,
    Texts,
    batches_of,
    damage,
    found,
    open_dir,
    run_job,
    stage,
    texts,
)

# Refused, and nothing of the job is there


def refused(directory: LogDir, parts: Sequence[StagedPart], error: type[Exception], match: str) -> None:
    before = {str(one): directory.log(*one).log_end_offset for one in directory.partitions()}
    with pytest.raises(error, match=match):
        adopt(directory, "job", parts, "query:q", 0)
    assert {str(one): directory.log(*one).log_end_offset for one in directory.partitions()} == before
    assert not directory.fs.exists(f"{DIR}/seglog.adopt")
    assert not adopt(directory, "another", [], "query:q", 0).already


def test_a_topic_that_was_deleted_meanwhile() -> None:
    directory = open_dir(MemoryFs())
    directory.create_topic("t", 1, SMALL)
    directory.create_topic("other", 1, SMALL)
    parts = [
        stage(directory, texts("a", 40), job="job", task=one, partition=TopicPartition(one, 0))
        for one in ("other", "t")
    ]
    directory.delete_topic("t")
    refused(directory, parts, UnknownTopicError, "t-0 is not in /logs: was the topic deleted since the job began")
    directory.create_topic("t", 1, SMALL)
    with pytest.raises(AdoptError, match=r"t-0/\.seglog.* is missing: was the topic deleted and created again"):
        adopt(directory, "job", parts, "query:r", 0)
    assert directory.log("other").log_end_offset == 0
    assert collect_orphans(directory, keep=["job"]) == 0
    assert collect_orphans(directory) == 1
    assert directory.fs.listdir(f"{DIR}/other-0/.seglog/staging") == []
    directory.housekeeping()
    directory.close()
    assert [name for name in directory.fs.listdir(DIR) if name.endswith("-delete")] == []


def test_a_writer_whose_topic_is_deleted() -> None:
    directory = open_dir(MemoryFs())
    directory.create_topic("t", 1, SMALL)
    where = staged_at(T, "job", "0")
    writer = StagingWriter(directory.fs, directory.clock, f"{DIR}/{where}", directory.log("t").config)
    directory.delete_topic("t")
    with pytest.raises(AdoptError, match="the topic was deleted"):
        writer.append(batches_of(texts("a", 3))[0])
    writer.discard()
    assert writer.finish() == []
    directory.close()


@pytest.mark.parametrize("change", ["size", "records", "name", "elsewhere", "missing", "cut"])
def test_parts_that_are_not_what_they_say(change: str) -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    part = stage(directory, texts("a", 60), job="job", task="0", partition=T)
    first, *rest = part.segments
    path = f"{DIR}/{part.directory}/{first.name}"
    if change == "size":
        first = first._replace(size=first.size + 1)
    elif change == "records":
        first, rest = first._replace(records=first.records + 1), []
    elif change == "name":
        first = first._replace(name=f"{7:020d}.log")
    elif change == "elsewhere":
        part = part._replace(directory="t-0/.seglog/staging/job/../other")
    elif change == "missing":
        fs.unlink(path)
    else:
        data = fs.read(path)
        fs.write(path, data[:-400] + bytes(400))
    given = part._replace(segments=(first, *rest))
    reasons = {
        "size": "its task has written", "records": "records but its task has written", "name": "begins at record 7",
        "elsewhere": "not in t-0/.seglog/staging/job/<task>", "missing": "is missing",
        "cut": "under the smallest|ends in a batch",
    }  # fmt: skip
    refused(directory, [given], SeglogError, reasons[change])
    directory.close()


def test_a_compacted_topic_takes_keys_only() -> None:
    directory = open_dir(MemoryFs())
    directory.create_topic("t", 1, SMALL)
    unseen = stage(directory, texts("a", 40), job="job", task="0", partition=T)
    directory.alter_config("t", {"cleanup.policy": "compact"})
    refused(directory, [unseen], InvalidRecordError, "compacted, and it is not known")
    directory.alter_config("t", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.9})
    config = directory.log("t").config
    for has_keys, ok in ((False, False), (True, True)):
        where = staged_at(T, "job", f"keys-{has_keys}")
        writer = StagingWriter(directory.fs, directory.clock, f"{DIR}/{where}", config, has_keys=has_keys)
        without = bytes(encode_batch([NewRecord(b"v", timestamp=5)]))
        if ok:  # it believes its caller
            writer.append(without)
        else:
            with pytest.raises(InvalidRecordError):
                writer.append(without)
            writer.append(batches_of(texts("k", 3))[0])
        part = StagedPart.of(T, where, writer.finish(), keyed=writer.keyed)
        assert adopt(directory, "job", [part], "query:keys", int(has_keys)).records > 0
    directory.close()


def test_a_topic_of_kafkas_making_must_be_allowed() -> None:
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    directory.close()
    fs.unlink(f"{DIR}/seglog.topics")
    directory = open_dir(fs)
    part = stage(directory, texts("a", 4), job="job", task="0", partition=T)
    refused(directory, [part], AdoptError, "made by a Kafka broker")
    assert adopt(directory, "job", [part], "query:allowed", 0, allow_foreign=True).records == 4
    directory.close()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}, "producer or transaction"),
        ({"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}, "producer or transaction"),
    ],
)
def test_batches_of_producers_are_not_staged(options: dict[str, Any], match: str) -> None:
    directory = open_dir(MemoryFs())
    directory.create_topic("t", 1, SMALL)
    where = f"{DIR}/{staged_at(T, 'job', '0')}"
    writer = StagingWriter(directory.fs, directory.clock, where, directory.log("t").config)
    with pytest.raises(InvalidRecordError, match=match):
        writer.append(encode_batch([NewRecord(b"v", timestamp=1)], **options))
    assert writer.finish() == []
    assert not directory.fs.exists(where)
    directory.close()


def test_log_append_time_is_stamped_when_staged() -> None:
    directory = open_dir(MemoryFs())
    directory.create_topic("t", 1, {**SMALL, "message.timestamp.type": "LogAppendTime"})
    now_ms = directory.clock.now_ms()
    run_job(directory, [{T: texts("a", 4)}])
    assert {record.timestamp for record in directory.log("t").read(0).records()} == {now_ms}
    directory.close()


# What somebody else does


def committed_and_dead(jobs: Sequence[Texts]) -> MemoryFs:
    """A disk with a job that was committed, none of it in a log yet."""
    fs = MemoryFs()
    with open_dir(fs) as directory:
        directory.create_topic("t", 1, SMALL)
        directory.create_topic("u", 1, SMALL)
        directory.log("t").append(batches_of(texts("before", 3))[0])
    is_written = False

    def watch(call: Call) -> None:
        nonlocal is_written
        if is_written and call.operation != "fsync_dir":
            crashing.crash_at = call.number
        is_written = is_written or (call.operation == "rename" and call.path.endswith("seglog.adopt.tmp"))

    crashing = CrashFs(fs, before_change=watch)
    directory = open_dir(crashing)
    parts = [
        stage(directory, payloads, job="job", task=f"{at}", partition=partition)
        for at, task in enumerate(jobs)
        for partition, payloads in task.items()
    ]
    with pytest.raises(SimulatedCrash):
        adopt(directory, "job", parts, "query:q", 0)
    fs.locked.clear()
    assert fs.exists(f"{DIR}/seglog.adopt")
    return fs


@pytest.mark.parametrize("count", [3, 60])
def test_a_log_that_somebody_else_went_on_with_is_refused(count: int) -> None:
    fs = committed_and_dead([{T: texts("a", count)}])
    manifest = fs.read(f"{DIR}/seglog.adopt")
    fs.unlink(f"{DIR}/seglog.adopt")
    with open_dir(fs) as directory:  # as a Kafka broker, who knows of no manifest
        directory.log("t").append(batches_of(texts("x", 3))[0])
    fs.write(f"{DIR}/seglog.adopt", manifest)
    with pytest.raises(InvalidLogDirError, match=r"/logs/seglog\.adopt: .*another program has written.*remove"):
        open_dir(fs)
    fs.unlink(f"{DIR}/seglog.adopt")
    with open_dir(fs) as directory:
        assert found(directory.log("t")) == [*texts("before", 3), *texts("x", 3)]
        assert fs.exists(f"{DIR}/t-0/.seglog/staging/job")


@pytest.mark.parametrize("count", [3, 60])
def test_a_refused_partition_gets_its_part_when_it_is_repaired(count: int) -> None:
    fs = committed_and_dead([{T: texts("a", count), TopicPartition("u", 0): texts("b", 60)}])
    path = f"{DIR}/t-0/{0:020d}.log"
    whole = fs.read(path)
    fs.write(path, b"x" * len(whole))
    with open_dir(fs) as directory:
        assert found(directory.log("u")) == texts("b", 60)
        with pytest.raises(DamagedPartitionError):
            directory.log("t")
        with pytest.raises(AdoptError, match="job job is adopted except for t-0, which did not load"):
            run_job(directory, [{TopicPartition("u", 0): texts("c", 3)}], job="next", version=1)
        assert collect_orphans(directory) == 1
        remove_job(directory, "job")
        directory.log("u").append(batches_of(texts("more", 3))[0])
    fs.write(path, whole)
    with open_dir(fs) as directory:
        assert found(directory.log("t")) == [*texts("before", 3), *texts("a", count)]
        assert found(directory.log("u")) == [*texts("b", 60), *texts("more", 3)]
        assert run_job(directory, [], job="job").already
    assert damage(fs) == []


def test_a_topic_deleted_while_its_part_waits_is_forgotten() -> None:
    fs = committed_and_dead([{T: texts("a", 60), TopicPartition("u", 0): texts("b", 60)}])
    fs.write(f"{DIR}/t-0/{0:020d}.log", b"x" * 100)
    with open_dir(fs) as directory:
        directory.delete_topic("t")
        assert not run_job(directory, [{TopicPartition("u", 0): texts("c", 3)}], job="next", version=1).already
        assert found(directory.log("u")) == [*texts("b", 60), *texts("c", 3)]
    assert not fs.exists(f"{DIR}/seglog.adopt")


def test_a_full_disk() -> None:
    """Nothing or all, whatever step the space ends at; the rest follows when there is room."""
    ended = [run_out_of_space(room) for room in range(0, 1050, 35)]
    assert ended == sorted(ended)
    assert min(ended.count(False), ended.count(True)) > 5


def run_out_of_space(room: int) -> bool:
    """Whether the job was committed when there were so many bytes left."""
    case()
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    directory.log("t").append(batches_of(texts("before", 3))[0])
    counts = (2, 70, 2, 30)
    parts = [
        stage(directory, texts(f"{at}", count), job="job", task=f"{at}", partition=T) for at, count in enumerate(counts)
    ]
    expected = [text for at, count in enumerate(counts) for text in texts(f"{at}", count)]
    fs.capacity = fs.used + room
    with pytest.raises((LogDirOfflineError, LogDirFullError), match="No space left"):
        adopt(directory, "job", parts, "query:q", 0)
    directory.close()
    is_committed = fs.exists(f"{DIR}/seglog.adopt")
    fs.capacity = None
    with open_dir(fs) as again:
        assert found(again.log("t")) == [*texts("before", 3), *(expected if is_committed else [])]
        assert adopt(again, "job", parts, "query:q", 0).already == is_committed
        assert found(again.log("t")) == [*texts("before", 3), *expected]
    return is_committed


def test_interrupted_commit_takes_the_directory_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what is no error of the disk: half a job must not be closed as if all were well."""
    fs = MemoryFs()
    directory = open_dir(fs)
    directory.create_topic("t", 1, SMALL)
    part = stage(directory, texts("a", 60), job="job", task="0", partition=T)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(directory.log("t"), "_grown", interrupted)
    with pytest.raises(KeyboardInterrupt):
        adopt(directory, "job", [part], "query:q", 0)
    with pytest.raises(LogDirOfflineError, match="job job is adopted in part"):
        directory.flush()
    directory.close()
    assert not fs.exists(f"{DIR}/.kafka_cleanshutdown")
    with open_dir(fs) as again:
        assert found(again.log("t")) == texts("a", 60)


def test_repair_leaves_the_staging_of_jobs_alone(tmp_path: Path) -> None:
    own = tmp_path / ".seglog"
    (own / "staging" / "job").mkdir(parents=True)
    replacer = FileReplacement(OsFs(), str(tmp_path), str(own), SystemClock())
    replacer.replace(str(tmp_path / "file"), [b"new"])
    replacer.stage(str(tmp_path / "other"), [b"left"])
    replacer.finish()
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [path.name for path in (own / "staging").iterdir()] == ["job"]

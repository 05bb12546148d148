"""The commit coordinator: one process for each directory, which ends with its jobs or with their owners."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

import seglog
from seglog.core.clock import SystemClock
from seglog.core.config import LogConfig
from seglog.core.errors import AdoptError, InvalidConfigError, LogDirInUseError, SeglogError
from seglog.core.fs import OsFs
from seglog.core.ground import Ground
from seglog.core.types import TopicPartition
from seglog.records.record import NewRecord, Record, encode_batch
from seglog.spark.runtime.processes import ProcessWatch, driver_pid
from seglog.spark.write.directories.commit_client import CommitClient
from seglog.spark.write.directories.commit_coordinator import CommitCoordinatorError, JobRequest
from seglog.storage.adopt import StagedPart, StagingWriter, collect_orphans, staged_at
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.directory.owner_socket import socket_path
from seglog.storage.log.log import Log
from seglog.storage.offline.verify import verify
from tests.kit.memory_fs import MemoryFs
from tests.kit.waiting import wait_until

ME = os.getpid()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def client(path: Path) -> Iterator[CommitClient]:
    """The client of a coordinator that lingers for 0.2 s and ends with the test."""
    kept = CommitClient(str(path), linger=0.2)
    yield kept
    end(path, signal.SIGTERM)


def end(path: Path, number: signal.Signals) -> None:
    """End the coordinator of ``path``, if one runs, and wait until it has ended."""
    if OsFs().exists(socket_path(str(path))):
        pid = CommitClient(str(path), linger=0.2).status()["pid"]
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:  # without a job it ends by itself, and has since it answered
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
        wait_for(handle)


def wait_for(handle: int) -> None:
    """Wait until the process of a handle has ended."""
    try:
        assert select.select([handle], [], [], 30)[0], "the coordinator goes on"
    finally:
        os.close(handle)


def handle_of(client: CommitClient) -> int:
    return os.pidfd_open(client.status()["pid"])


def stage(path: Path, job: str, values: list[bytes], *, task: str = "0-0-a", partition: int = 0) -> StagedPart:
    place = TopicPartition("t", partition)
    directory = staged_at(place, job, task)
    writer = StagingWriter(OsFs(), SystemClock(), str(path / directory), LogConfig())
    writer.append(encode_batch([NewRecord(value) for value in values]))
    return StagedPart.of(place, directory, writer.finish())


def values(path: Path) -> list[bytes | None]:
    with seglog.open(path, create=False) as directory:
        return [None if record.value is None else bytes(record.value) for record in all_records(directory.log("t"))]


def all_records(log: Log) -> Iterator[Record]:
    offset = 0
    while offset < log.log_end_offset:
        for record in log.read(offset).records():
            yield record
            offset = record.offset + 1


def staged(path: Path) -> list[Path]:
    return [found for found in path.glob("t-*/.seglog/staging/*/*") if any(found.iterdir())]


def test_a_job_from_begin_to_commit(path: Path, client: CommitClient) -> None:
    opened = client.begin(
        JobRequest("job", owner=ME, topic="t", create={"t": 2}, config={"cleanup.policy": "compact,delete"})
    )
    assert opened.topics == {"t": (2, {"cleanup.policy": "compact,delete"})}
    assert not opened.adopted
    assert client.status()["jobs"] == ["job"]
    with pytest.raises(LogDirInUseError, match="is locked"):
        seglog.open(path)
    client.abort("job")
    client.begin(JobRequest("other", owner=ME, topic="u", create={"u": None}))
    handle = handle_of(client)  # only now: between two jobs it may have ended, and another one have been started
    client.abort("other")
    wait_for(handle)
    with seglog.open(path) as directory:
        assert {name: info.partitions for name, info in directory.topics().items()} == {"t": 2, "u": 1}


def test_a_commit_is_adopted_once_however_often_it_is_asked_for(path: Path, client: CommitClient) -> None:
    for attempt in range(3):
        client.begin(JobRequest(f"job{attempt}", owner=ME, topic="t", create={"t": None}))
        parts = [stage(path, f"job{attempt}", [b"a", b"b"])]
        done = client.commit(f"job{attempt}", "txn:app", 7, parts)
        assert (done.records, done.already) == ((2, False) if attempt == 0 else (0, True))
        assert client.commit(f"job{attempt}", "txn:app", 7, parts).already
    assert client.begin(JobRequest("next", owner=ME, topic="t", application="txn:app", version=7)).adopted
    assert not client.begin(JobRequest("next", owner=ME, topic="t", application="txn:app", version=8)).adopted
    end(path, signal.SIGTERM)
    assert values(path) == [b"a", b"b"]
    assert staged(path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_continues_with_a_new_coordinator(path: Path, client: CommitClient, number: signal.Signals) -> None:
    client.begin(JobRequest("job", owner=ME, topic="t", create={"t": None}))
    parts = [stage(path, "job", [b"a"])]
    orphan = stage(path, "of-an-older-job", [b"x"])
    end(path, number)
    assert client.commit("job", "job:job", 0, parts).records == 1
    assert not (path / orphan.directory).exists()
    end(path, number)
    assert client.commit("job", "job:job", 0, parts).already
    end(path, signal.SIGTERM)
    assert values(path) == [b"a"]
    assert list(verify([str(path)]).findings) == []


def test_removes_what_a_task_stages_after_its_job_ended_also_when_told_to_end(path: Path) -> None:
    client = CommitClient(str(path), linger=30)
    client.begin(JobRequest("job", owner=ME, topic="t", create={"t": None}))
    client.abort("job")
    stage(path, "job", [b"x"])
    end(path, signal.SIGTERM)
    assert staged(path) == []
    assert values(path) == []


_FATAL = """
import builtins, os, signal, sys
from pathlib import Path

def die():
    marks = list(Path(__file__).parent.glob("mark-*"))
    if len(marks) < 3:
        (Path(__file__).parent / f"mark-{os.getpid()}").touch()
        os.kill(os.getpid(), signal.SIGKILL)

if "keep" in sys.orig_argv:
    if MOMENT == "interpreter":
        die()
    said = builtins.print
    builtins.print = lambda *texts, **named: (die() if texts == ("ready",) else None, said(*texts, **named))
"""


@pytest.mark.parametrize("moment", ["interpreter", "ready"])
def test_a_coordinator_killed_at_its_start_is_started_again(
    path: Path, client: CommitClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_FATAL.replace("MOMENT", repr(moment)))
    monkeypatch.syspath_prepend(site)
    client.begin(JobRequest("job", owner=ME, topic="t", create={"t": None}))
    assert len(list(site.glob("mark-*"))) == 3
    assert client.commit("job", "job:job", 0, [stage(path, "job", [b"a"])]).records == 1
    end(path, signal.SIGTERM)
    assert values(path) == [b"a"]


@pytest.fixture
def owner() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which waits to be killed."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process


def test_ends_with_the_owner_of_its_jobs_and_removes_their_files(
    path: Path, client: CommitClient, owner: subprocess.Popen[bytes]
) -> None:
    client.begin(JobRequest("job", owner=owner.pid, topic="t", create={"t": None}))
    stage(path, "job", [b"a"])
    handle = handle_of(client)
    owner.kill()
    wait_for(handle)
    assert values(path) == []
    assert staged(path) == []


def test_a_job_of_a_living_owner_outlives_that_of_a_dead_one(
    path: Path, client: CommitClient, owner: subprocess.Popen[bytes]
) -> None:
    client.begin(JobRequest("mine", owner=ME, topic="t", create={"t": None}))
    client.begin(JobRequest("its", owner=owner.pid, topic="t"))
    parts = [stage(path, "mine", [b"mine"])]
    stage(path, "its", [b"its"])
    owner.kill()
    owner.wait()
    wait_until(lambda: client.status()["jobs"] == ["mine"], "the end of the job of a process that was killed")
    assert len(staged(path)) == 1
    assert client.commit("mine", "job:mine", 0, parts).records == 1


def test_an_owner_is_missed_once_it_has_ended(owner: subprocess.Popen[bytes]) -> None:
    with closing(ProcessWatch()) as owners:
        assert owners.gone({owner.pid, ME}) == set()
        owner.kill()
        owner.wait()
        assert owners.gone({owner.pid, ME}) == {owner.pid}
        assert owners.gone({ME}) == set()


def test_a_stream_has_one_job_and_drops_an_interrupted_one(path: Path, client: CommitClient) -> None:
    client.begin(JobRequest("batch-job", owner=ME, topic="t", create={"t": None}))
    client.begin(JobRequest("interrupted", owner=ME, topic="t", stream="s"))
    stage(path, "interrupted", [b"x"])
    client.begin(JobRequest("tasks", owner=ME, topic="t", stream="s"))
    parts = [stage(path, "tasks", [b"a"])]
    client.begin(JobRequest("commits", owner=ME, topic="t", stream="s"))
    assert client.status()["jobs"] == ["batch-job", "commits"]
    assert client.commit("tasks", "query:q", 0, parts, also=["commits"]).records == 1
    client.begin(JobRequest("tasks", owner=ME, topic="t", stream="s"))
    stage(path, "tasks", [b"x"])
    client.begin(JobRequest("aborts", owner=ME, topic="t", stream="s"))
    client.abort("aborts")
    assert client.status()["jobs"] == ["batch-job"]
    assert staged(path) == []
    client.abort("batch-job")
    end(path, signal.SIGTERM)
    assert values(path) == [b"a"]


def test_many_clients_at_once_start_one_coordinator(client: CommitClient) -> None:
    pids: list[int] = []
    failed: list[Exception] = []

    def ask(number: int) -> None:
        try:
            client.begin(JobRequest(f"job{number}", owner=ME, topic="t", create={"t": None}))
            pids.append(client.status()["pid"])
        except SeglogError as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(pids) == 6
    assert len(set(pids)) == 1
    assert client.status()["jobs"] == [f"job{number}" for number in range(6)]


def test_refuses_a_directory_that_is_open_elsewhere(path: Path, client: CommitClient) -> None:
    with seglog.open(path), pytest.raises(LogDirInUseError, match=rf"{path}/\.lock is locked"):
        client.begin(JobRequest("job", owner=ME, topic="t", create={"t": None}))
    assert client.begin(JobRequest("job", owner=ME, topic="t", create={"t": None})).topics["t"][0] == 1


def test_the_client_raises_the_coordinators_errors(path: Path, client: CommitClient) -> None:
    client.begin(JobRequest("job", owner=ME, topic="t", create={"t": 2}, config={"segment.bytes": "2000000"}))
    with pytest.raises(InvalidConfigError, match="numPartitions is 3, but topic t exists with 2 partitions"):
        client.begin(JobRequest("other", owner=ME, topic="t", create={"t": 3}))
    with pytest.raises(InvalidConfigError, match=r"topic\.retention\.ms is 5"):
        client.begin(JobRequest("other", owner=ME, topic="t", create={"t": 2}, config={"retention.ms": "5"}))
    client.begin(JobRequest("other", owner=ME, topic="t", create={"t": 2}, config={"segment.bytes": "2000000"}))
    part = stage(path, "job", [b"a"])
    (path / part.directory / part.segments[0].name).unlink()
    with pytest.raises(AdoptError, match="is missing"):
        client.commit("job", "job:job", 0, [part])
    with pytest.raises(CommitCoordinatorError, match="no request 'nonsense'"):
        client._ask("nonsense")
    assert client.status()["jobs"] == ["job", "other"]


class Busy(MemoryFs):
    """Somebody puts a file into a job's directory just before it is removed."""

    def rmdir(self, path: str) -> None:
        if "/staging/" in path:
            raise OSError(errno.ENOTEMPTY, "somebody is still writing", path)
        super().rmdir(path)


def test_a_task_that_has_not_heard_of_its_drivers_death_does_no_harm() -> None:
    fs = Busy()
    with seglog.open("/log", ground=Ground(fs=fs)) as directory:
        directory.create_topic("t")
        fs.mkdir("/log/t-0/.seglog")
        fs.mkdir("/log/t-0/.seglog/staging")
        fs.mkdir("/log/t-0/.seglog/staging/job")
        collect_orphans(directory)
        directory.log("t").append_records([NewRecord(b"goes on")])


def test_refuses_a_path_that_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SeglogError, match="is not a directory"):
        CommitClient(str(tmp_path / "file"), linger=0).begin(JobRequest("job", owner=ME))
    assert left(tmp_path / "file") == []


def left(path: Path) -> list[str]:
    """The files that coordinators of ``path`` have left outside of the log directory."""
    address = Path(socket_path(str(path)))
    return [found.name for found in address.parent.glob(f"{address.stem}*")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_coordinator_leaves_nothing_behind(client: CommitClient, path: Path, number: signal.Signals) -> None:
    client.begin(JobRequest("job", owner=ME, topic="t", create={"t": 1}))
    end(path, number)
    if number is signal.SIGKILL:  # the next one, in its place
        client.begin(JobRequest("job", owner=ME, topic="t"))
        end(path, signal.SIGTERM)
    assert left(path) == []


def test_the_socket_is_this_users_alone(path: Path) -> None:
    address = Path(socket_path(str(path)))
    assert address.parent.stat().st_mode & 0o777 == 0o700
    assert address == Path(socket_path(f"{path}/../{path.name}/"))
    assert len(os.fsencode(address)) <= 100


def test_clients_with_other_temporary_directories_share_a_coordinator(
    client: CommitClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.begin(JobRequest("job", owner=ME, topic="t", create={"t": 1}))
    pid = client.status()["pid"]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert client.status() == {"jobs": ["job"], "pid": pid}


def test_the_driver_is_found_behind_sparks_daemon() -> None:
    """A process that looks like a planner: its parent is called as Spark's daemon is, and ours is its driver."""
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    asks = "from seglog.spark.runtime.processes import driver_pid; print(driver_pid())"
    done = subprocess.run(
        [sys.executable, "-c", program, asks, "pyspark.daemon"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == ME
    done = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=True)
    assert int(done.stdout) == ME
    assert driver_pid() == os.getppid()


def test_without_lingering_the_directory_is_free_when_the_last_job_ends(path: Path) -> None:
    client = CommitClient(str(path), linger=0)
    for number in range(3):
        client.begin(JobRequest(f"job{number}", owner=ME, topic="t", create={"t": 1}))
        client.begin(JobRequest(f"other{number}", owner=ME, topic="t"))
        parts = [stage(path, f"job{number}", [b"a"])]
        assert client.commit(f"job{number}", f"job:{number}", 0, parts).records == 1
        with pytest.raises(LogDirInUseError):
            LogDir.open(str(path))
        client.abort(f"other{number}")
        with LogDir.open(str(path)) as directory:
            assert directory.log("t").log_end_offset == number + 1
    with pytest.raises(InvalidConfigError):
        client.begin(JobRequest("wrong", owner=ME, topic="t", create={"t": 7}))
    LogDir.open(str(path)).close()

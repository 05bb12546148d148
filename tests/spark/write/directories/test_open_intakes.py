"""Files that a driver reads into a directory which a broker has open, when it dies or comes back at any request of the
commit: their marks are in the ledger if and only if their records are in the topic."""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from seglog.core.errors import AdoptError
from seglog.core.fs import OsFs
from seglog.spark.write.directories import broker_client
from seglog.storage.adopt import InputMark, Intake, Ledger, adopt, begin_intake, read_ledger
from seglog.storage.directory.log_dir import LogDir
from tests.broker.broker_thread import RunningNode
from tests.cases import case, is_long
from tests.kit.manual_clock import ManualClock
from tests.spark.write.brokers.sink_runs import SECONDS, Steps, apart, join, left_open, threads_as_processes, written
from tests.spark.write.directories.broker_runs import DirectoryRun, counted_exchanges

VALUES: Final = [*range(0, 16, 2), 1, 3]
_STEP: Final = 1 if is_long() else 7
_numbers = itertools.count()
KINDS: Final = pytest.mark.parametrize("kind", ["txn", "job"])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    path = tmp_path_factory.mktemp("intakes") / "log"
    with RunningNode(path) as running, threads_as_processes(), counted_exchanges():
        yield running


class FileRun:
    """Jobs that read the same file into a topic of their own; each is a driver's."""

    def __init__(self, node: RunningNode, kind: str, *, careless: bool = False) -> None:
        self._path = node.path
        self.number = next(_numbers)
        self._kind = kind
        topic = f"f{self.number}"
        self.run = DirectoryRun(node.path, topic, topic=topic, failOnDataLoss=str(not careless).lower())
        self.mark = InputMark(self.run.topic, "id", f"/files/{self.number}", 1, 2, 3, 4, "head", "tail")

    @property
    def ledger(self) -> Ledger:
        return read_ledger(OsFs(), str(self._path))

    @property
    def intake(self) -> Intake:
        return Intake(((None, self.mark),), "digest")

    def ingest(self) -> int:
        """How many records this job has written."""
        job = f"{uuid.uuid4().hex}-thread"  # no process, whose end others would wait for
        application = f"txn:files-{self.number}" if self._kind == "txn" else f"job:{job}"
        self.run.begin(application)
        client = self.run.client()
        client.settle_intakes(self.run.topic)
        if self.mark in self.ledger.inputs:
            return 0
        parts = self.run.task(job, 0, VALUES)
        try:
            return client.commit(job, application, 0, parts, intake=self.intake).records
        finally:
            client.abort(job)

    def check(self, node: RunningNode, stop_at: int) -> None:
        assert written(node.bootstrap, self.run.topic) == sorted(VALUES), f"at request {stop_at}"
        assert self.mark in self.ledger.inputs
        assert self.ledger.open_for(self.run.topic) is None
        assert left_open(node.bootstrap, f"txn-files-{self.number}") == []


def count(node: RunningNode, kind: str) -> int:
    """The requests of one job."""
    counted = Steps()
    join(apart(FileRun(node, kind).ingest, counted))
    assert counted.count > 15
    return counted.count


@KINDS
@pytest.mark.parametrize("sent", [False, True], ids=["before a request", "after a request"])
def test_a_driver_dies(node: RunningNode, kind: str, sent: bool) -> None:
    for stop_at in range(int(sent), count(node, kind), _STEP):
        case()
        files = FileRun(node, kind)
        join(apart(files.ingest, Steps(stop_at, sent=sent)))
        files.ingest()
        files.check(node, stop_at)


@KINDS
def test_a_driver_comes_back(node: RunningNode, kind: str) -> None:
    """It stands still at a request, while another job reads the same file; then it goes on."""
    for stop_at in range(0, count(node, kind), _STEP):
        case()
        files = FileRun(node, kind)
        at = Steps(stop_at, waits=True)
        zombie = apart(files.ingest, at)
        assert at.stands.wait(SECONDS)
        files.ingest()
        at.go_on()
        join(zombie)
        files.check(node, stop_at)


def test_a_job_that_fails_leaves_no_mark(node: RunningNode, monkeypatch: pytest.MonkeyPatch) -> None:
    files = FileRun(node, "job")

    def fail(*_: object) -> None:
        raise AdoptError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(broker_client, "write_staged", fail)
        with pytest.raises(AdoptError, match="the disk is full"):
            files.ingest()
    assert (files.ledger.open_for(files.run.topic), written(node.bootstrap, files.run.topic)) == (None, [])
    assert files.ingest() == len(VALUES)
    files.check(node, -1)


def test_a_job_waits_for_one_that_commits_to_the_topic(node: RunningNode) -> None:
    files = FileRun(node, "job")
    files.run.begin()
    (owner,) = broker_client.running_brokers([str(node.path)])
    owner.begin_intake(f"other-{os.getppid()}", "job:other", 0, files.intake)
    with pytest.raises(AdoptError, match=rf"process {os.getppid()} commits files to topic {files.run.topic} now"):
        files.ingest()
    with pytest.raises(AdoptError, match=r"another job commits files to topic"):
        owner.begin_intake("third", "job:third", 0, files.intake)
    owner.end_intake(f"other-{os.getppid()}", committed=False)
    assert files.ingest() == len(VALUES)
    with pytest.raises(AdoptError, match="was read into topic"):
        owner.begin_intake("late", "job:late", 0, files.intake)


def test_a_job_of_which_brokers_have_forgotten_whether_it_committed(
    node: RunningNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, careless = FileRun(node, "job"), FileRun(node, "job", careless=True)
    week = 7 * 24 * 3_600_000
    for one in (files, careless):
        one.run.begin()
        (owner,) = broker_client.running_brokers([str(node.path)])
        owner.begin_intake(f"dead-{2**22 + one.number}", "job:dead", 0, one.intake)
        begun = max(intake.begun_ms for intake in one.ledger.open_intakes)
    monkeypatch.setattr(broker_client, "SystemClock", partial(ManualClock, begun + week + 1))
    with pytest.raises(AdoptError, match=r"died 168 hours ago .* offsets\.retention\.minutes .* failOnDataLoss=false"):
        files.ingest()
    assert careless.ingest() == len(VALUES)
    careless.check(node, -1)
    monkeypatch.setattr(broker_client, "SystemClock", partial(ManualClock, begun + week - 60_000))
    assert files.ingest() == len(VALUES)
    files.check(node, -1)


def test_while_the_broker_is_stopped_nothing_says_whether_a_dead_job_has_committed(tmp_path: Path) -> None:
    mark = InputMark("t", "id", "/file", 1, 2, 3, 4, "head", "tail")
    intake = Intake(((None, mark),), "digest")
    with LogDir.open(str(tmp_path)) as directory:
        directory.create_topic("t", 1)
        begin_intake(directory, "dead", "job:dead", 0, intake)
        with pytest.raises(
            AdoptError, match=r"a job that ended early was committing files to topic t .* start the bro"
        ):
            adopt(directory, "next", [], "job:next", 0, intake=intake)
        adopt(directory, "other", [], "job:other", 0)

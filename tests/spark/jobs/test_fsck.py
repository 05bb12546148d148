"""`seglog spark fsck`: each directory is read by an executor on the host that is named."""

from __future__ import annotations

import socket
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from seglog.core.errors import InvalidLogDirError
from seglog.core.fs import Fs
from seglog.spark.jobs.fsck import HostRunner, NoExecutorError, is_here, is_same_host
from seglog.storage.offline.fsck.check import Place, PlaceCall, carry_out_repairs, check, plan_repairs
from tests.cli.run import Run
from tests.storage.offline.verify.verified import LOG, make_damaged_pair

pytestmark = pytest.mark.xdist_group("spark-jobs")


@pytest.fixture
def replicas(tmp_path: Path) -> tuple[Path, Path]:
    return make_damaged_pair(tmp_path)


def test_a_batch_comes_from_the_host_that_has_it(spark: SparkSession, replicas: tuple[Path, Path]) -> None:
    first, second = replicas
    places = [Place(str(first), socket.gethostname()), Place(str(second), "localhost")]
    run = HostRunner(spark)
    expected = check([Place(str(path)) for path in replicas], workers=1)
    report = check(places, run, workers=1)
    assert [one for _, one in report.places] == [one for _, one in expected.places]
    planned = plan_repairs(report, run)
    assert f": as in localhost:{second / 't-0' / LOG} (" in str(planned[0].plan.all_steps[0])
    carry_out_repairs(planned, run)
    assert not check(places, run, workers=1).is_damaged
    assert (first / "t-0" / LOG).read_bytes() == (second / "t-0" / LOG).read_bytes()


def test_the_command_takes_hosts_and_mounts(run: Run, replicas: tuple[Path, Path]) -> None:
    first, second = replicas
    ran = run("spark", "fsck", f"localhost:{first}", second)
    assert ran.code == 1
    assert ran.lines[0].startswith(f"damage: localhost:{first / 't-0' / LOG}, position ")
    assert ran.lines[-1] == "1 partition compared: none different"
    ran = run("spark", "fsck", "relative/path")
    assert ran.code == 2
    assert "name a directory as /path, or as host:/path" in ran.err


def test_a_host_without_an_executor_and_a_missing_directory_are_named(spark: SparkSession, tmp_path: Path) -> None:
    run = HostRunner(spark)
    with pytest.raises(NoExecutorError, match=r"no executor of Spark runs on 192\.0\.2\.1: start one there"):
        check([Place(str(tmp_path), "192.0.2.1")], run)
    with pytest.raises(InvalidLogDirError, match=f"none does not exist on host {socket.gethostname()}"):
        check([Place(str(tmp_path / "none"), "localhost")], run)


def test_a_file_that_disappears_is_the_same_error_as_here(spark: SparkSession, replicas: tuple[Path, Path]) -> None:
    first, _ = replicas
    missing = first / "t-0" / "none.log"
    calls = [PlaceCall(Place(str(first), "localhost"), _open, (str(path),)) for path in (first / "t-0" / LOG, missing)]
    with pytest.raises(FileNotFoundError) as raised:
        HostRunner(spark)(calls)
    assert raised.value.filename == str(missing)


def _open(fs: Fs, path: str) -> int:
    with closing(fs.open(path, write=False)) as file:
        return file.size()


def test_names_of_hosts() -> None:
    assert is_here(socket.gethostname())
    assert is_here("127.0.0.1")
    assert not is_here("192.0.2.1")
    assert is_same_host("Broker1", "broker1")
    assert is_same_host("localhost", "127.0.0.1")
    assert not is_same_host("192.0.2.1", "192.0.2.2")
    assert not is_same_host("192.0.2.1", "localhost")

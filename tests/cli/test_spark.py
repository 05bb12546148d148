"""`seglog spark`: help, errors in one line before Spark starts, and one whole run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from seglog.cli.main import SPARK_COMMANDS
from tests.cli.run import Run, seglog_command
from tests.spark.killed_stream import INTERPRETED, SHORT_LIVED
from tests.storage.offline.verify.verified import flip, make_dir


def test_no_argument_prints_the_help_with_all_jobs(run: Run) -> None:
    with_help, without = run("spark", "--help"), run("spark")
    assert (with_help.code, without.code) == (0, 0)
    assert with_help.text == without.text
    for job in SPARK_COMMANDS:
        assert f"\n  {job} " in with_help.text


def test_each_job_has_help(run: Run) -> None:
    for job in SPARK_COMMANDS:
        ran = run("spark", job, "--help")
        assert (ran.code, ran.err) == (0, ""), job
        assert f"Usage: seglog spark {job}" in ran.text
        for option in ("--json",) if job == "package" else ("--json", "--master", "--conf"):
            assert option in ran.text, (job, option)


def test_reports_errors_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a\n")
    into = ("--into", tmp_path, "--topic", "t")
    table = ("table", tmp_path, tmp_path / "warehouse")
    for arguments, reason in (
        (("nothing",), "no such command: nothing"),
        (("verify",), "Missing argument"),
        (("verify", tmp_path / "none"), "No such file or directory"),
        (("verify", tmp_path, "--conf", "spark.x"), "as in spark.driver.memory=4g"),
        (table, "--topic is missing"),
        ((*table, "--topic", "t", "--retain", "day"), "--retain day: it can only be log"),
        ((*table, "--topic", "t", "--latest"), "no such option: --latest"),
        (("export", tmp_path, "out"), "no such command: export"),
        (("dump", tmp_path, "--json", "--output", "x"), "exclude each other"),
        (("ingest", tmp_path / "x.csv", *into, "--bad-lines", "no"), "error or skip"),
        (("ingest", tmp_path / "x.csv", *into, "--header", "x"), "--header: 'x' is not NAME=EXPR"),
        (("ingest", tmp_path / "y.csv", *into), "No such file or directory"),
        (("package", tmp_path / "x.csv"), "exists: give another name"),
        (("package", tmp_path / "y.zip"), "by its suffix, .tar.gz or .tgz"),
        (("package", tmp_path / "y.tar.gz", "--extra", "spark"), "they have Spark and Java already"),
        (("package", tmp_path / "y.tar.gz", "--extra", "format"), "has no extra 'format'; it has "),
        (("package", tmp_path / "y.tar.gz", "--with", "no-such-thing"), "pip install 'no-such-thing'"),
    ):
        ran = seglog_command("spark", *arguments)
        assert (ran.code, ran.out) == (2, b""), arguments
        assert ran.err.startswith("seglog: "), arguments
        assert reason in ran.err, ran.err
        assert ran.err.count("\n") == 1, ran.err


def test_names_the_extra_if_pyspark_is_missing(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['pyspark'] = None; sys.modules['pyspark.sql'] = None\n"
        "from seglog.cli.main import main; sys.exit(main(['spark', 'verify', sys.argv[1]]))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "seglog: a job on Spark needs pyspark.sql: pip install 'seglog[spark]'\n"


def test_runs_a_job_in_its_own_process(tmp_path: Path) -> None:
    log = make_dir(tmp_path / "logs", size=20_000) / f"{0:020d}.log"
    log.write_bytes(flip(log.read_bytes(), 5000, 1))
    engines = seglog_command("verify", tmp_path / "logs")
    quick = {**INTERPRETED, "spark.driver.extraJavaOptions": SHORT_LIVED}
    settings = [word for name, value in quick.items() for word in ("--conf", f"{name}={value}")]
    ours = seglog_command("spark", "verify", tmp_path / "logs", "--master", "local[2]", *settings)
    assert (ours.code, ours.text, ours.err) == (1, engines.text, "")

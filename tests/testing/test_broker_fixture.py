"""The fixtures of `seglog.testing.pytest`: the sample project's own tests, and what they promise to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_EXAMPLE = Path(__file__).parents[2] / "examples" / "orders"
_PLUGIN = "seglog.testing.pytest"


def run_pytest(directory: Path, *arguments: str, code: int = 0) -> str:
    """The output of pytest, without colours and timings; its exit code must be ``code``."""
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", _PLUGIN, "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": paths, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_the_sample_projects_tests_pass_in_two_processes() -> None:
    assert "7 passed" in run_pytest(_EXAMPLE, "-n", "2")


def test_the_plugin_is_an_entry_point() -> None:
    """Named as its module, so that ``-p`` of a project that has it installed does not load it twice."""
    import tomllib

    project = tomllib.loads((_EXAMPLE.parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {_PLUGIN: _PLUGIN}


@pytest.mark.parametrize("process", [False, True], ids=["thread", "process"])
def test_each_test_finds_a_broker_that_is_as_new(tmp_path: Path, *, process: bool) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n"
        "@pytest.fixture(scope='session')\n"
        "def seglog_topics():\n    return {'a': 2}\n"
        "@pytest.fixture(scope='session')\n"
        "def seglog_settings():\n    return {'auto.create.topics.enable': False}\n"
        f"@pytest.fixture(scope='session')\ndef seglog_process():\n    return {process}\n"
    )
    (tmp_path / "test_it.py").write_text(
        "from confluent_kafka.admin import AdminClient\n"
        "def topics(bootstrap):\n"
        "    return sorted(AdminClient({'bootstrap.servers': bootstrap}).list_topics(timeout=60).topics)\n"
        "def test_it_is_stopped(seglog_broker):\n"
        "    seglog_broker.create_topic('b')\n"
        "    assert topics(seglog_broker.bootstrap) == ['a', 'b']\n"
        "    assert seglog_broker.settings['auto.create.topics.enable'] == 'false'\n"
        f"    assert seglog_broker.is_process is {process}\n"
        "    seglog_broker.stop()\n"
        "def test_it_is_paused(seglog_broker, seglog_bootstrap):\n"
        "    assert topics(seglog_bootstrap) == ['a']\n"
        "    seglog_broker.pause()\n"
        "def test_it_is_there(seglog_bootstrap):\n"
        "    assert topics(seglog_bootstrap) == ['a']\n"
    )
    assert "3 passed" in run_pytest(tmp_path)


def test_a_test_fails_if_its_fault_was_never_met(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "from confluent_kafka import Producer\n"
        "def test_it_is_met(seglog_faults, seglog_broker, seglog_clock):\n"
        "    seglog_broker.lose('Produce')\n"
        "    producer = Producer({'bootstrap.servers': seglog_broker.bootstrap})\n"
        "    producer.produce('t', b'tea')\n"
        "    assert producer.flush(60) == 0\n"
        "    seglog_clock.advance(1)\n"
        "def test_it_is_not_met(seglog_faults, seglog_broker):\n"
        "    seglog_broker.lose('Produce')\n"
    )
    said = run_pytest(tmp_path, code=1)
    assert "2 passed, 1 error" in said
    assert "was met by 0 requests" in said


def test_a_cluster_is_healed_for_each_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "import pytest\n@pytest.fixture(scope='session')\ndef seglog_cluster_topics():\n    return {'t': 1}\n"
    )
    (tmp_path / "test_it.py").write_text(
        "def test_one_is_killed(seglog_cluster):\n"
        "    seglog_cluster[1].kill()\n"
        "    seglog_cluster[2].fail('Produce', error=6)\n"
        "def test_all_run(seglog_cluster):\n"
        "    assert seglog_cluster.in_sync('t') == {1, 2, 3}\n"
        "    assert [broker.is_running for broker in seglog_cluster] == [True] * 3\n"
        "    assert len(seglog_cluster[2].faults) == 0\n"
    )
    assert "2 passed" in run_pytest(tmp_path)

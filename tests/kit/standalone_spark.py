"""A standalone cluster of Spark: a master and workers as processes that have Spark and a bare Python only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyspark

from seglog.spark.runtime.java import ensure_java
from tests.kit.ports import free_port
from tests.kit.service import Service
from tests.kit.waiting import wait_until

_HOST: Final = "127.0.0.1"
_SPARK_HOME: Final = Path(pyspark.__file__).parent
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_START_SECONDS: Final = 180


def bare_environment(home: Path) -> dict[str, str]:
    """Spark's programs and the Python that this environment was made from, on PATH. No package of ours is there."""
    environment = {
        "PATH": os.pathsep.join([str(_SPARK_HOME / "bin"), str(Path(sys.base_prefix, "bin")), "/usr/bin", "/bin"]),
        "HOME": str(home),
        "SPARK_HOME": str(_SPARK_HOME),
        "SPARK_LOCAL_IP": _HOST,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    found = {**os.environ}
    ensure_java(found)
    return environment | ({"JAVA_HOME": found["JAVA_HOME"]} if "JAVA_HOME" in found else {})


class StandaloneSpark(Service):
    """``with StandaloneSpark(path) as spark``: its workers have a core each, and their files below ``path``."""

    def __init__(self, path: Path, *, workers: int = 2) -> None:
        self.path = path
        self.environment = bare_environment(path)
        self._workers = workers
        self._port, self._pages = free_port(), free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://{_HOST}:{self._port}"

    def start(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._launch("master", _MASTER, "--port", str(self._port), "--webui-port", str(self._pages))
            for number in range(self._workers):
                where = ["--work-dir", str(self.path / f"worker-{number}"), "--webui-port", str(free_port())]
                self._launch(f"worker-{number}", _WORKER, self.master, "--cores", "1", "--memory", "1g", *where)
            wait_until(lambda: self._alive() == self._workers, "all workers to register", _START_SECONDS)
        except BaseException:
            self.leave()
            raise

    def _launch(self, name: str, program: str, *arguments: str) -> None:
        command = [str(_SPARK_HOME / "bin" / "spark-class"), program, "--host", _HOST, *arguments]
        with (self.path / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, env=self.environment, cwd=self.path, stdout=log, stderr=log)
            )

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://{_HOST}:{self._pages}/json", timeout=5) as answer:
                return int(json.load(answer)["aliveworkers"])
        except OSError:  # it does not listen yet
            return 0

    def leave(self) -> None:
        """Workers end their executors at SIGTERM."""
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def files(self, pattern: str) -> Sequence[Path]:
        """Files of executors, which have a directory ``worker-N/app-…/<number>`` each."""
        return sorted(path for path in self.path.glob(f"worker-*/app-*/*/{pattern}") if path.is_file())

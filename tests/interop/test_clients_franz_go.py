"""franz-go's own tests of groups and transactions: chains of members that join, leave and quit, in both protocols."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.servers import Server
from tests.clients.versions import franz_tests

_RECORDS = 20_000
_SECONDS = 540
_CASES = {
    "range",
    "range/848",
    "sticky/848",
    "sticky/848/static",
    "cooperative-sticky",
    "cooperative-sticky/static",
}


@pytest.mark.everything
@pytest.mark.parametrize("test", ["TestGroupETL", "TestTxnEtl"])
def test_its_chains_of_members_lose_and_double_nothing(server: Server, test: str, tmp_path: Path) -> None:
    settings = {"KGO_SEEDS": server.bootstrap, "KGO_TEST_RF": "1", "KGO_TEST_RECORDS": str(_RECORDS)}
    command = [str(franz_tests()), "-test.v", f"-test.run=^{test}$", f"-test.timeout={_SECONDS}s"]
    done = subprocess.run(
        command,
        env={**os.environ, **settings, "KGO_LOG_LEVEL": "none"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=_SECONDS + 10,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}{done.stderr[-2000:]}"
    passed = re.findall(rf"^ +--- PASS: {test}/(\S+) ", done.stdout, re.MULTILINE)
    assert set(passed) >= _CASES, passed

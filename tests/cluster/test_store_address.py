"""Addresses of stores: errors for wrong addresses, for a missing store, and without kazoo."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from seglog.cluster.store import StoreFailedError
from seglog.cluster.store_address import open_store, parse_store
from seglog.core.clock import SystemClock
from seglog.core.errors import InvalidConfigError
from tests.kit.ports import free_port

_WITHOUT_KAZOO = """
import asyncio, sys
sys.modules["kazoo"] = None
from seglog.cluster.store_address import open_store
from seglog.core.clock import SystemClock
from seglog.core.errors import MissingExtraError
try:
    asyncio.run(open_store("zookeeper://localhost/c", clock=SystemClock(), session_timeout_ms=1000))
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("", "not the address of a metadata store"),
        ("store", "not the address of a metadata store"),
        ("sqlite:", "not the address of a metadata store"),
        ("sqlite://path", "not the address of a metadata store"),
        ("etcd://localhost/c", "not the address of a metadata store"),
        ("zookeeper:localhost/c", "not the address of a metadata store"),
        ("zookeeper://localhost", "needs the cluster's name"),
        ("zookeeper://localhost/", "needs the cluster's name"),
        ("zookeeper://localhost/a/b", "needs the cluster's name"),
        ("zookeeper://localhost/..", "needs the cluster's name"),
        ("zookeeper://localhost/a\n", "needs the cluster's name"),
        ("zookeeper:///c", "not the HOST:PORT"),
        ("zookeeper://one,/c", "not the HOST:PORT"),
        ("zookeeper://one:0/c", "not the HOST:PORT"),
        ("zookeeper://one:65536/c", "not the HOST:PORT"),
        ("zookeeper://o ne:1/c", "not the HOST:PORT"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, what: str) -> None:
    with pytest.raises(InvalidConfigError, match=what) as refused:
        parse_store(address)
    assert "sqlite:/path/to/file" in str(refused.value)


def test_a_server_that_does_not_answer_is_named() -> None:
    address = f"zookeeper://127.0.0.1:{free_port()}/c"
    with pytest.raises(StoreFailedError, match=f"{address}: no server of ZooKeeper"):
        asyncio.run(open_store(address, clock=SystemClock(), session_timeout_ms=300))


def test_without_kazoo_its_command_is_said() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_KAZOO], capture_output=True, text=True, check=True)
    assert done.stdout == "a cluster on ZooKeeper needs kazoo.client: pip install 'seglog[zookeeper]'\n"


def test_a_store_in_a_file_needs_no_kazoo(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from seglog.cluster.store_address import open_store\n"
        "from seglog.core.clock import SystemClock\n"
        "store = asyncio.run(open_store(f'sqlite:{sys.argv[1]}', clock=SystemClock(), session_timeout_ms=1000))\n"
        "sys.exit('kazoo' in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "store")], check=True)
    assert (tmp_path / "store").exists()

"""A process that has a log directory open is found by others of its user, wherever their temporary files are."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from seglog.storage.directory.owner_socket import address_of_owner, exchange, listen_for, why_unreachable


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "log").mkdir()
    return str(tmp_path / "log")


@contextmanager
def answering(directory: str) -> Iterator[None]:
    """An owner of ``directory`` that answers one request."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with closing(connection), connection.makefile("rwb") as lines:
            lines.write(b"you said " + lines.readline())

    with closing(listen_for(directory)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield
        thread.join()


@pytest.mark.parametrize("owners", ["", "a", "long" * 40])
@pytest.mark.parametrize("clients", ["", "b", "gone"])
def test_the_owner_is_found_from_every_temporary_directory(
    directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owners: str, clients: str
) -> None:
    places = {name: tmp_path / name if name else Path(tempfile.gettempdir()) for name in (owners, clients)}
    for place in places.values():
        place.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(places[owners]))
    with answering(directory):
        if clients == "gone":
            places[clients].rmdir()
        monkeypatch.setattr(tempfile, "tempdir", str(places[clients]))
        assert exchange(directory, b"hello\n") == b"you said hello\n"


def test_an_owner_that_has_ended_is_not_found(directory: str) -> None:
    assert exchange(directory, b"hello\n") is None
    assert why_unreachable(directory) == ""
    listen_for(directory).close()
    assert exchange(directory, b"hello\n") is None
    assert "does not answer (Connection refused)" in why_unreachable(directory)
    with answering(directory):
        assert exchange(directory, b"again\n") == b"you said again\n"


def test_a_socket_that_is_out_of_reach_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as home:
        os.chmod(home, 0o755)  # pytest's own directories are this user's alone
        monkeypatch.setattr(tempfile, "tempdir", home)
        os.mkdir(f"{home}/log")
        check_out_of_reach(f"{home}/log")


def check_out_of_reach(directory: str) -> None:
    with closing(listen_for(directory)) as listener:
        address: str = listener.getsockname()
        assert address_of_owner(directory) == address
        with unprivileged(Path(address).parent):
            assert exchange(directory, b"hello\n") is None
            assert f"listens on {address}, which only its user may use" in why_unreachable(directory)
        os.unlink(address)
    assert exchange(directory, b"hello\n") is None
    assert f"listens on {address}, which is not there for this process" in why_unreachable(directory)


@contextmanager
def unprivileged(sockets: Path) -> Iterator[None]:
    """As a user who may not enter the directory ``sockets``, which root always may."""
    mode = sockets.stat().st_mode
    sockets.chmod(0)
    capable = os.geteuid() == 0
    if capable:
        os.seteuid(65534)
    try:
        yield
    finally:
        if capable:
            os.seteuid(0)
        sockets.chmod(mode)

"""Namespaces: what is cut is cut, in one direction, without a word, and heals."""

from __future__ import annotations

import subprocess
import sys

from tests.kit.network import Namespaces

_LISTEN = """
import socket, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listener:
    listener.bind((sys.argv[1], 9092))
    print("ready", flush=True)
    while (data := listener.recv(100)) != b"end":
        print(data.decode(), flush=True)
"""
_SEND = "import socket, sys; socket.socket(2, 2).sendto(sys.argv[2].encode(), (sys.argv[1], 9092))"


def hears(listener: subprocess.Popen[str], text: str) -> bool:
    """Whether that is the next that it hears: a packet is waited for before anything is done to the network."""
    assert listener.stdout is not None
    return listener.stdout.readline() == f"{text}\n"


def test_a_cut_goes_one_way_and_heals() -> None:
    if not Namespaces.can_be_made():
        return  # the proxies of tests/clients and tests/cluster cut on such a machine
    with Namespaces(2) as network:

        def listener(node_id: int) -> subprocess.Popen[str]:
            command = [*network.prefix(node_id), sys.executable, "-c", _LISTEN, network.host(node_id)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process

        def send(source: int, target: int, text: str) -> None:
            prefix = network.prefix(source) if source else ()
            subprocess.run([*prefix, sys.executable, "-c", _SEND, network.host(target), text], check=True)

        with listener(1) as first, listener(2) as second:
            send(1, 2, "before")
            assert hears(second, "before")
            network.cut(1, 2)
            send(1, 2, "lost")
            send(2, 1, "the other way")
            assert hears(first, "the other way")
            send(0, 2, "from the test")
            assert hears(second, "from the test")
            network.heal()
            send(1, 2, "after")
            assert hears(second, "after")
            for node_id in (1, 2):
                send(0, node_id, "end")
            assert (first.communicate(timeout=30)[0], second.communicate(timeout=30)[0]) == ("", "")

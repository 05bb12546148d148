"""Connections are cut in the middle of requests and answers while other people's clients produce and consume."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.process import ClientProcess, told
from tests.clients.proxy import CuttingProxy
from tests.clients.servers import Kind, Server
from tests.clients.versions import CLIENTS
from tests.kafka.jars import CURRENT

_RECORDS = 3000
_PARTITIONS = 3
_CUTS = 20
_EVERYTHING = pytest.mark.everything
_TELLING = ("confluent", "aiokafka", f"java-{CURRENT}")
_KINDS: list[object] = [
    *(pytest.param("ours", name, 1, marks=() if name in _TELLING else _EVERYTHING) for name in CLIENTS),
    *(pytest.param(kind, name, 2, marks=_EVERYTHING) for kind in ("ours", "kafka") for name in CLIENTS),
    *(pytest.param("ours", name, seed, marks=_EVERYTHING) for seed in range(3, 10) for name in _TELLING),
]


@pytest.mark.parametrize(("kind", "name", "seed"), _KINDS)
def test_no_loss_no_duplicate_and_order_kept(kind: Kind, name: str, seed: int, tmp_path: Path) -> None:
    with (
        CuttingProxy(seed=seed, cuts=_CUTS) as proxy,
        Server(kind, tmp_path / "log", advertised=proxy.port) as server,
    ):
        proxy.upstream = server.port
        with ClientProcess(name, server.bootstrap) as client:
            client.create("t", _PARTITIONS)
            idempotent = client.kind.idempotent
            said = client.run(
                "produce",
                topic="t",
                numbers=[0, _RECORDS],
                partitions=_PARTITIONS,
                size=300,
                codec="none",
                idempotent=idempotent,
                linger_ms=1,
            )
            assert sorted(what[:2] for what in said) == [["acked", number] for number in range(_RECORDS)]
            assert proxy.happened >= _CUTS // 2, "the connections were not cut"
            ends = dict.fromkeys(range(_PARTITIONS), 0)
            for what in said:
                ends[what[2]] = max(ends[what[2]], what[3] + 1)
            if idempotent:
                assert all(what[2:] == [what[1] % _PARTITIONS, what[1] // _PARTITIONS] for what in said)
            # The consumer's connections are cut as well, as far as the producer's have left cuts to do.
            read = told(client.run("consume", topic="t", starts=dict.fromkeys(ends, 0), count=sum(ends.values())))
        for partition, end in ends.items():
            found = [record for record in read if record.partition == partition]
            assert [record.offset for record in found] == list(range(end))
            values = [int(record.value or b"") for record in found]
            # Without idempotence a batch may be there twice; nothing is lost, and nothing comes too early.
            wanted = list(range(partition, _RECORDS, _PARTITIONS))
            assert (values if idempotent else list(dict.fromkeys(values))) == wanted

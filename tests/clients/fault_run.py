"""Which clients keep order and lose nothing under `CASES`: ``python -m tests.clients.fault_run [CLIENT …]``.

Writes the results into ``docs_site/faults.json``, and from there the table into ``docs/testing.md``. The verdicts:

- ``ok``: every record once and in order, and the program was told so;
- ``told n``: n records are not confirmed, and the program was told; everything else is as for ``ok``;
- ``twice n``, ``lost n``, ``order``: n records are there twice, were confirmed and are not there, or the order changed;
- ``stuck``: the client did not end within `SECONDS`;
- ``never``: the client does not send a request that meets the faults.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from seglog.testing import Broker
from tests.clients.fault_cases import CASES, FaultCase
from tests.clients.process import ClientProcess, told
from tests.clients.versions import CLIENTS, OTHERS, version_of

__all__ = ["FAULT_CLIENTS", "MARKS", "PAGE", "PATH", "run", "table", "verdict"]

FAULT_CLIENTS: Final = ("java-4.3.0", "confluent", "aiokafka", "kafka-python", "kafkajs")
PATH: Final = Path(__file__).parents[2] / "docs_site" / "faults.json"
PAGE: Final = Path(__file__).parents[2] / "docs" / "testing.md"
MARKS: Final = ("<!-- faults: written by `python -m tests.clients.fault_run` -->\n", "<!-- end of faults -->\n")
COUNT: Final = 300
_TITLES: Final = {"java-4.3.0": "Java", "confluent": "confluent-kafka"}
_SIZE: Final = 2_000


def verdict(broker: Broker, client: ClientProcess, case: FaultCase, number: int, *, idempotent: bool = True) -> str:
    """One client through one case."""
    topic = f"t{number}"
    records = [str(one).ljust(_SIZE) for one in range(COUNT)] if case.side == "consumer" else []
    broker.create_topic(topic, records=records)
    # A request for the metadata of no topic has no entry for an error.
    named = [replace(one, topic=topic) if one.api == "Metadata" and one.error else one for one in case.faults]
    faults = broker.inject(*named, in_order=True)
    try:
        found = _produced(broker, client, topic, idempotent) if case.side == "producer" else _consumed(client, topic)
    except AssertionError:
        return "stuck"
    finally:
        fired = [fault.fired for fault in faults]
        problems = [fault.report.problem for fault in faults if fault.report.problem]
        broker.faults.clear()
    assert not problems, problems
    return found if all(fired) or found != "ok" else "never"


def _produced(broker: Broker, client: ClientProcess, topic: str, idempotent: bool) -> str:
    said = client.run(
        "produce",
        topic=topic,
        numbers=[0, COUNT],
        partitions=1,
        rate=200,
        size=10,
        linger_ms=0,
        timeout_ms=20_000,
        idempotent=idempotent,
    )
    acked = [what[1] for what in said if what[0] == "acked"]
    stored = [int(value) for value in _values(broker, topic)]
    if lost := set(acked) - set(stored):
        return f"lost {len(lost)}"
    if twice := len(stored) - len(set(stored)):
        return f"twice {twice}"
    if stored != sorted(stored):
        return "order"
    return "ok" if len(acked) == COUNT else f"told {COUNT - len(acked)}"


def _consumed(client: ClientProcess, topic: str) -> str:
    said = client.run("consume", topic=topic, starts={"0": "earliest"}, count=COUNT)
    read = [int(one.value or b"-1") for one in told([what for what in said if what[0] == "record"])]
    if twice := len(read) - len(set(read)):
        return f"twice {twice}"
    if read != sorted(read):
        return "order"
    if len(read) == COUNT:
        return "ok"
    return f"told {COUNT - len(read)}" if any(what[0] == "error" for what in said) else f"lost {COUNT - len(read)}"


def _values(broker: Broker, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "-", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while (message := consumer.consume(1, 30)[0]).error() is None:
        found.append(message.value() or b"")
    consumer.close()
    return found


def run(name: str) -> dict[str, Any]:
    """All cases with one client."""
    found: dict[str, str] = {}
    with Broker() as broker:
        client: ClientProcess | None = None
        try:
            for number, case in enumerate(CASES):
                client = client or ClientProcess(name, broker.bootstrap)  # each job makes its own producer or consumer
                found[case.name] = verdict(broker, client, case, number)
                print(f"{name:14} {found[case.name]:10} {case.name}", flush=True)
                if found[case.name] == "stuck":
                    client.end()
                    client = None
        finally:
            if client is not None:
                client.end()
    return {"version": _version(name), "verdicts": found}


def _version(name: str) -> str:
    return version_of((CLIENTS | OTHERS)[name])


def table(results: Mapping[str, Any]) -> str:
    """The Markdown of the results."""
    names = [name for name in FAULT_CLIENTS if name in results]
    titles = " | ".join(f"{_TITLES.get(name, name)} {results[name]['version']}" for name in names)
    lines = [f"| fault | {titles} |", "|---|" + "---|" * len(names)]
    for case in CASES:
        cells = (results[name]["verdicts"].get(case.name, "") for name in names)
        lines.append(f"| {case.side}, {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def write(results: Mapping[str, Any]) -> None:
    PATH.write_text(json.dumps(results, indent=1) + "\n")
    page = PAGE.read_text()
    begin, end = (page.index(mark) for mark in MARKS)
    PAGE.write_text(page[: begin + len(MARKS[0])] + "\n" + table(results) + "\n" + page[end:])


def main(names: Sequence[str]) -> None:
    results = json.loads(PATH.read_text()) if PATH.exists() else {}
    for name in names or FAULT_CLIENTS:
        results[name] = run(name)
    write({one: results[one] for one in FAULT_CLIENTS if one in results})


if __name__ == "__main__":
    main(sys.argv[1:])

"""Programs that copy a topic: killed during the work, with a broker of three, and started again.

Those that write in transactions with their group's offsets copy every record once; all others at least once.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.clients.versions import CLIENTS, version_of
from tests.ecosystem.artefacts import java_app, npm_modules, python_packages
from tests.ecosystem.places import Place
from tests.ecosystem.processes import APPS, running
from tests.ecosystem.results import Report
from tests.ecosystem.tails import Tail, fill

_KAFKAJS: Final = "2.2.4"
_PLATFORMATIC: Final = "2.12.1"
_NODE: Final = "22.22.0"
"""Of npm: @platformatic/kafka needs a newer one than many machines have."""
_CONFLUENT: Final = "confluent-kafka==2.16.1"
_ONCE: Final = "read, process, write"
_AT_LEAST_ONCE: Final = "copy, at least once"
_EACH_COMMITTED: Final = 1_000
"""Records for a program that commits each of them before it reads the next one."""


class Copier(NamedTuple):
    """``pins``: Python packages that only this program needs. ``ahead``: its state may be ahead of the records that its
    producer has written. A kill in between loses records, with Kafka too, so it is killed when all is written."""

    product: str
    version: str
    app: str
    arguments: tuple[str, ...] = ()
    job: str = _ONCE
    pins: tuple[str, ...] = ()
    records: int = 6_000
    ahead: bool = False

    def command(self, bootstrap: str) -> list[str]:
        if self.app == "kafkajs_app.js":
            return ["node", str(APPS / self.app), bootstrap]
        if self.app == "platformatic_app.mjs":
            modules = _platformatic()
            node = next(modules.glob("node-linux-*/bin/node"))
            return [str(node), str(APPS / self.app), str(modules), bootstrap]
        if self.app.endswith(".py"):
            return [sys.executable, str(APPS / self.app), bootstrap, *self.arguments]
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        return ["java", *options, "-cp", java_app(self.app), f"{self.app.title()}App", bootstrap]

    def environment(self) -> Mapping[str, str]:
        if self.app == "kafkajs_app.js":
            modules = npm_modules(f"kafkajs@{_KAFKAJS}") / "node_modules"
            return {"NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return {"PYTHONPATH": str(python_packages(*self.pins))} if self.pins else {}


def _platformatic() -> Path:
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else "x64"
    return npm_modules(f"@platformatic/kafka@{_PLATFORMATIC}", f"node-linux-{machine}@{_NODE}") / "node_modules"


_COPIERS: Final = [
    Copier("confluent-kafka", version_of(CLIENTS["confluent"]), "confluent_app.py", ("classic",)),
    Copier("confluent-kafka", version_of(CLIENTS["confluent"]), "confluent_app.py", ("consumer",)),
    Copier("aiokafka", version_of(CLIENTS["aiokafka"]), "aiokafka_app.py"),
    Copier("kafkajs", _KAFKAJS, "kafkajs_app.js"),
    Copier("@platformatic/kafka", _PLATFORMATIC, "platformatic_app.mjs"),
    Copier("Spring Kafka", "4.0.8", "spring"),
    Copier("Camel", "4.22.0", "camel", job=_AT_LEAST_ONCE, records=_EACH_COMMITTED),
    Copier(
        "FastStream", "0.7.8", "faststream_app.py", (), _AT_LEAST_ONCE, ("faststream[confluent]==0.7.8", _CONFLUENT)
    ),
    Copier("Bytewax", "0.21.1", "bytewax_app.py", (), _AT_LEAST_ONCE, ("bytewax[kafka]==0.21.1", _CONFLUENT)),
    Copier("dlt", "1.31.0", "dlt_app.py", (), _AT_LEAST_ONCE, ("dlt==1.31.0", _CONFLUENT)),
    Copier("Pathway", "0.33.0", "pathway_app.py", (), _AT_LEAST_ONCE, ("pathway==0.33.0",), ahead=True),
]


@pytest.mark.parametrize("copier", _COPIERS, ids=lambda copier: "-".join((copier.product, *copier.arguments)))
def test_copier_copies_every_record(place: Place, copier: Copier, tmp_path: Path, report: Report) -> None:
    killed = "killed when all is written" if copier.ahead else "killed"
    report.of(copier.product, copier.version, f"{' '.join((copier.job, *copier.arguments))}; {killed}")
    lines = [(f"k{number % 40}", f"line {number}") for number in range(copier.records)]
    half = len(lines) // 2
    more, enough = (half + half // 2, half + half // 2) if copier.ahead else (len(lines), half + 1)
    place.create("lines", "copies")
    fill(place.bootstrap, "lines", lines[:half])
    with Tail(place.bootstrap, "copies") as tail:
        with running(copier.command(place.bootstrap), tmp_path, copier.environment()):
            tail.read_until(lambda records: len(records) >= half)
            place.disturb()
            fill(place.bootstrap, "lines", lines[half:more])
            tail.read_until(lambda records: len({one.value for one in records}) >= enough)
        fill(place.bootstrap, "lines", lines[more:])
        with running(copier.command(place.bootstrap), tmp_path, copier.environment()):
            tail.read_until(lambda records: len({one.value for one in records}) >= len(lines), 180)
            records = tail.read_on(3)
    report.counted(len(lines), len(records))
    if copier.job == _ONCE:
        assert sorted(records) == sorted(lines)
    else:
        assert {one.value for one in records} == {value for _, value in lines}

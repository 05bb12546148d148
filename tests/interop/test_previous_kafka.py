"""A directory of the newest Kafka, opened by the version before it: what `docs/formats.md` says of that."""

from __future__ import annotations

from pathlib import Path

from tests.kafka import KafkaNode, Recipe, tools
from tests.kafka.jars import BEFORE, KafkaVersion
from tests.kafka.records import Record
from tests.kit.ports import free_port

_TOPIC = "t"
_T0 = 1_700_000_000_000


class _Node(KafkaNode):
    """One version after the other, with the features that both have."""

    def __init__(self, data_dir: Path, version: KafkaVersion, ports: tuple[int, int]) -> None:
        super().__init__(data_dir, ports=ports)
        self.version = version

    def format_options(self) -> list[str]:
        return ["--release-version", BEFORE.rpartition(".")[0]]


def test_the_version_before_reads_and_continues_a_directory(tmp_path: Path) -> None:
    ports = free_port(), free_port()
    recipe = Recipe()
    recipe.producer("t", {"transactional.id": "t"})
    for end in (recipe.commit, recipe.abort):
        recipe.begin("t")
        recipe.batch("t", _TOPIC, [Record(value=b"%d" % number, timestamp=_T0 + number) for number in range(5)])
        end("t")
    with _Node(tmp_path, KafkaNode.version, ports) as newest:
        tools.topics(newest.bootstrap, "--create", "--topic", _TOPIC)
        tools.produce(newest.bootstrap, recipe)
        written = tools.consume(newest.bootstrap, [f"{_TOPIC}-0"], isolation="read_committed")
    with _Node(tmp_path, BEFORE, ports) as before:
        found = tools.consume(before.bootstrap, [f"{_TOPIC}-0"], isolation="read_committed")
        assert found == written
        assert len(found) == 5
        tools.produce(before.bootstrap, recipe)
    with _Node(tmp_path, KafkaNode.version, ports) as newest:
        again = tools.consume(newest.bootstrap, [f"{_TOPIC}-0"], isolation="read_committed")
        assert [one.value for one in again] == [one.value for one in written] * 2

"""Kafka's Java tools, and our Java producer and consumer, as Python functions. A call costs 0.5-2 s of JVM."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tests.kafka.jars import CURRENT, KafkaVersion, class_path
from tests.kafka.records import ConsumedRecord, Recipe, parse_consumed

__all__ = [
    "Isolation",
    "acls",
    "configs",
    "consume",
    "consume_text",
    "delete_records",
    "dump_log_segments",
    "dump_many",
    "groups",
    "produce",
    "run_java",
    "topics",
]

Isolation = Literal["read_uncommitted", "read_committed"]

_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dfile.encoding=UTF-8",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)
_SECONDS = 400


def run_java(
    main: str,
    arguments: Sequence[str],
    *,
    version: KafkaVersion = CURRENT,
    with_ours: bool = False,
    cwd: Path | None = None,
    options: Sequence[str] = (),
) -> str:
    """Run one Java program to its end and return its stdout. Raises RuntimeError, with its stderr, if it fails.
    ``options`` are the JVM's."""
    command = ["java", *_JVM, *options, "-cp", class_path(version, with_ours=with_ours), main, *arguments]
    done = subprocess.run(command, capture_output=True, timeout=_SECONDS, cwd=cwd, check=False)
    out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    if done.returncode:
        raise RuntimeError(f"{main} {' '.join(arguments)} ended with {done.returncode}:\n{out[-2000:]}\n{err[-4000:]}")
    return out


def dump_log_segments(version: KafkaVersion, files: Sequence[Path | str], *args: str, cwd: Path | None = None) -> str:
    """The stdout of DumpLogSegments. It prints each path as given: relative ones, to `cwd`, give a portable text."""
    main = "org.apache.kafka.tools.DumpLogSegments" if version == CURRENT else "kafka.tools.DumpLogSegments"
    return run_java(main, ["--files", ",".join(map(str, files)), *args], version=version, cwd=cwd)


def dump_many(jobs: Mapping[Path, Sequence[str]], *, cwd: Path) -> None:
    """DumpLogSegments 4.4.0 once for each `{output file: arguments}`, all in one JVM."""
    for out in jobs:
        out.parent.mkdir(parents=True, exist_ok=True)
    body = [{"out": str(out.absolute()), "args": list(args)} for out, args in jobs.items()]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(body, file)
        file.flush()
        run_java("DumpMany", [file.name], with_ours=True, cwd=cwd)


def consume(
    bootstrap: str, partitions: Sequence[str], *, isolation: Isolation = "read_uncommitted"
) -> list[ConsumedRecord]:
    """Everything in the partitions (`topic-0`), read by the Java consumer; in offset order within a partition."""
    return parse_consumed(consume_text(bootstrap, partitions, isolation=isolation))


def consume_text(bootstrap: str, partitions: Sequence[str], *, isolation: Isolation = "read_uncommitted") -> str:
    """As `consume`, one JSON object a line."""
    return run_java("Consume", [bootstrap, isolation, *partitions], with_ours=True)


def produce(bootstrap: str, recipe: Recipe) -> int:
    """Play the recipe with the Java producer; returns how many records were acknowledged."""
    with tempfile.TemporaryDirectory() as scratch:
        path = recipe.write(Path(scratch) / "recipe.json")
        return int(run_java("Produce", [bootstrap, str(path)], with_ours=True))


def topics(bootstrap: str, *args: str) -> str:
    """kafka-topics, for example `topics(b, "--describe", "--topic", "t")`."""
    return run_java("org.apache.kafka.tools.TopicCommand", ["--bootstrap-server", bootstrap, *args])


def configs(bootstrap: str, *args: str) -> str:
    """kafka-configs."""
    return run_java("org.apache.kafka.tools.ConfigCommand", ["--bootstrap-server", bootstrap, *args])


def acls(bootstrap: str, *args: str) -> str:
    """kafka-acls."""
    return run_java("org.apache.kafka.tools.AclCommand", ["--bootstrap-server", bootstrap, *args])


def groups(bootstrap: str, *args: str) -> str:
    """kafka-consumer-groups."""
    main = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    return run_java(main, ["--bootstrap-server", bootstrap, *args])


def delete_records(bootstrap: str, before: Mapping[str, int]) -> str:
    """kafka-delete-records: each partition (`topic-0`) loses what is below the offset."""
    entries = [
        {"topic": name.rpartition("-")[0], "partition": int(name.rpartition("-")[2]), "offset": offset}
        for name, offset in before.items()
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"version": 1, "partitions": entries}, file)
        file.flush()
        main = "org.apache.kafka.tools.DeleteRecordsCommand"
        return run_java(main, ["--bootstrap-server", bootstrap, "--offset-json-file", file.name])

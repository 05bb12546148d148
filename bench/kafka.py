"""Kafka's side of a benchmark: its own classes, in a JVM with the options that Kafka's own scripts give it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.kafka.jars import CURRENT, class_path

_PERFORMANCE: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
"""``KAFKA_JVM_PERFORMANCE_OPTS`` of ``kafka-run-class.sh``."""
TOOL: Final = ("-Xmx256M", *_PERFORMANCE)
BROKER: Final = ("-Xms1G", "-Xmx1G", *_PERFORMANCE)
QUIET: Final = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"


def describe(options: Sequence[str]) -> str:
    """What stands above the figures of a benchmark: who is compared, with which settings."""
    python = ".".join(map(str, sys.version_info[:3]))
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True).stderr.split("\n")[0]
    return f"seglog on Python {python}; Kafka {CURRENT} on {java}, {' '.join(options)}"


def dump_command(log: Path, *arguments: str) -> list[str]:
    """DumpLogSegments as ``kafka-dump-log.sh`` starts it."""
    main = "org.apache.kafka.tools.DumpLogSegments"
    return ["java", *TOOL, QUIET, "-cp", class_path(CURRENT), main, "--files", str(log), *arguments]


def run_ours(main: str, directories: Sequence[Path], config: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """One of our timed Java classes over partition directories, one after the other; the lines that it prints."""
    command = ["java", *BROKER, QUIET, "-cp", class_path(CURRENT, with_ours=True), main]
    command += ["--dirs", ",".join(map(str, directories)), "--now-ms", str(time.time_ns() // 1_000_000)]
    for key, value in config.items():
        command += ["--config", f"{key}={value}"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return (json.loads(line) for line in out.split("\n") if line)

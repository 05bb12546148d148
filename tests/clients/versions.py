"""Which clients there are, in which versions, and what each of them cannot do.

Newest versions in Python are the locked ones. Old ones are installed by pip, by name and version, once, into the cache
that Kafka's jars are in, and are never part of the environment: a program runs with them first on its path.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from tests.ecosystem.artefacts import npm_modules
from tests.kafka.jars import BEFORE, CURRENT, PREVIOUS, cache_dir, class_path, made_once

__all__ = ["CLIENTS", "OTHERS", "Client", "command", "franz_tests", "package_of", "version_of"]

_PIP_SECONDS = 300
_GO_SECONDS = 600
_ROOT = Path(__file__).parents[2]
_KGO: Final = "github.com/twmb/franz-go/pkg/kgo"
_GO_MOD: Final = Path(__file__).parent / "franz" / "go.mod"
_JVM = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
_ALL_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


class Client(NamedTuple):
    """``pins`` are what pip installs beside the environment. ``acks`` of 0 give no offset in any client."""

    driver: str
    pins: tuple[str, ...] = ()
    codecs: tuple[str, ...] = _ALL_CODECS
    idempotent: bool = True
    static: bool = True
    cooperative: bool = False
    server_side: bool = False
    """Whether it has groups that the broker assigns (KIP-848)."""
    cannot: frozenset[str] = frozenset()

    @property
    def is_java(self) -> bool:
        return self.driver == "java"


_OF_KAFKA_PYTHON = ("python-snappy==0.7.3",)

CLIENTS: Final[dict[str, Client]] = {
    "confluent": Client("confluent", cooperative=True, server_side=True),
    "confluent-2.0": Client(
        "confluent", ("confluent-kafka==2.0.2",), cooperative=True, cannot=frozenset({"delete_records"})
    ),
    "kafka-python": Client("kafka_python", _OF_KAFKA_PYTHON, cooperative=True),
    "kafka-python-2.0": Client(
        "kafka_python",
        ("kafka-python==2.0.2", *_OF_KAFKA_PYTHON),
        idempotent=False,
        static=False,
        cannot=frozenset({"delete_records"}),
    ),
    "kafka-python-1.4": Client(
        "kafka_python",
        ("kafka-python==1.4.7", *_OF_KAFKA_PYTHON),
        codecs=("none", "gzip", "snappy", "lz4"),
        idempotent=False,
        static=False,
        cannot=frozenset({"delete_records", "delete_group"}),
    ),
    "aiokafka": Client("aiokafka", cannot=frozenset({"delete_group"})),
    "aiokafka-0.8": Client(
        "aiokafka",
        ("aiokafka==0.8.1", "kafka-python==2.0.2", *_OF_KAFKA_PYTHON),
        static=False,
        cannot=frozenset({"delete_group", "delete_records"}),
    ),
    f"java-{CURRENT}": Client("java", (CURRENT,), cooperative=True, server_side=True),
    f"java-{BEFORE}": Client("java", (BEFORE,), cooperative=True, server_side=True),
    f"java-{PREVIOUS}": Client("java", (PREVIOUS,), cooperative=True, server_side=True),
}

OTHERS: Final[dict[str, Client]] = {
    "kafkajs": Client("kafkajs", ("kafkajs@2.2.4",), static=False),
    "franz-go": Client("franz", cooperative=True, server_side=True),
}
"""Clients that do only a part of the jobs."""

_PACKAGES: Final = {
    "confluent": "confluent-kafka",
    "kafka_python": "kafka-python",
    "aiokafka": "aiokafka",
    "kafkajs": "kafkajs",
    "franz": "franz-go",
}


def package_of(client: Client) -> str:
    """The name under which people know it."""
    return _PACKAGES.get(client.driver, "kafka-clients (Java)")


def version_of(client: Client) -> str:
    """The one that is pinned, required by ``go.mod``, or locked."""
    if client.is_java:
        return client.pins[0]
    if client.driver == "kafkajs":
        return client.pins[0].partition("@")[2]
    if client.driver == "franz":
        required = re.search(r"^require github\.com/twmb/franz-go v(\S+)$", _GO_MOD.read_text(), re.MULTILINE)
        assert required is not None
        return required[1]
    pinned = [pin.partition("==")[2] for pin in client.pins if pin.startswith(f"{package_of(client)}==")]
    locked = re.findall(rf"^{package_of(client)}==(\S+)", (_ROOT / "requirements.lock").read_text(), re.MULTILINE)
    return (pinned or locked)[0]


def command(client: Client, bootstrap: str) -> tuple[list[str], dict[str, str]]:
    """The command that starts the client's program in the repository's root, and its environment."""
    if client.is_java:
        (version,) = (version for version in (CURRENT, BEFORE, PREVIOUS) if client.pins == (version,))
        path = class_path(version, with_ours=True)
        return ["java", *_JVM, "-cp", path, "ClientDriver", bootstrap], dict(os.environ)
    if client.driver == "kafkajs":
        modules = npm_modules(*client.pins) / "node_modules"
        environment = {**os.environ, "NODE_PATH": str(modules), "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return ["node", "tests/clients/kafkajs_driver.js", bootstrap], environment
    if client.driver == "franz":
        return [str(_by_go("driver", "build", ".")), bootstrap], dict(os.environ)
    path = os.pathsep.join(map(str, _installed(client.pins)))
    return (
        [sys.executable, "-m", f"tests.clients.{client.driver}_driver", bootstrap],
        {**os.environ, "PYTHONPATH": path},
    )


def _installed(pins: tuple[str, ...]) -> list[Path]:
    if not pins:
        return []
    name = "+".join(pin.replace("==", "-") for pin in pins)
    return [made_once(cache_dir() / "clients" / name, lambda target: _install(pins, target))]


def franz_tests() -> Path:
    """The program with franz-go's own tests of its client."""
    return _by_go("tests", "test", "-c", _KGO)


def _by_go(name: str, *command: str) -> Path:
    """A program of the module in ``franz/``. Go fetches the modules of its ``go.mod``, by name and version."""
    source = _GO_MOD.parent
    names = ("go.mod", "go.sum", "main.go")
    digest = hashlib.sha256(b"".join((source / name).read_bytes() for name in names)).hexdigest()[:16]

    def build(target: Path) -> None:
        verb, *more = command
        go = ["go", verb, "-o", str(target / name), *more]
        done = subprocess.run(go, capture_output=True, text=True, timeout=_GO_SECONDS, cwd=source, check=False)
        if done.returncode:
            raise RuntimeError(f"go could not build {source}:\n{done.stderr[-2000:]}")

    return made_once(cache_dir() / "clients" / f"franz-{name}-{digest}", build) / name


def _install(pins: tuple[str, ...], target: Path) -> None:
    # Without what they depend on: that is in the environment, or named.
    what = ["--only-binary", ":all:", "--no-deps", "--target", str(target), *pins]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *what]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=_PIP_SECONDS, cwd=_ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"pip could not install {', '.join(pins)}:\n{done.stderr[-2000:]}")

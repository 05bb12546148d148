"""The entry point of an image: `seglog serve` with the variables and files of the image apache/kafka.

As there (``docker/resources/common-scripts``): ``KAFKA_LOG_RETENTION_MS`` is the key ``log.retention.ms``,
``CLUSTER_ID`` the cluster's id; a mounted ``/mnt/shared/config/server.properties`` is read, and variables override it.
"""

from __future__ import annotations

import gc
import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from seglog.cli.options import read_properties
from seglog.cli.output import Out, fail
from seglog.cli.serve import log_to_stderr, serve_keys
from seglog.cli.signals import leave_on_signals
from seglog.core.broker_config import keys_of_environment
from seglog.core.errors import InvalidConfigError, SeglogError
from seglog.core.fs import OsFs

if TYPE_CHECKING:
    from seglog.broker.app import Node

MOUNTED: Final = "/mnt/shared/config/server.properties"
_DATA: Final = "/var/lib/kafka/data"
_INSECURE: Final = "seglog.insecure.listeners"
"""A container has a network of its own, and whoever publishes its ports decides who reaches it. So the default is that
of Kafka's image; ``KAFKA_SEGLOG_INSECURE_LISTENERS=false`` makes it strict."""
_HOST: Final = re.compile(r"://(\[[^\]]*\]|[^:,]*):")


def container_keys(environment: Mapping[str, str], mounted: Mapping[str, str]) -> dict[str, str]:
    """The broker's keys, from variables and from a mounted file. Raises `InvalidConfigError` for a container
    that is only a controller.

    Without listeners, the broker listens on the advertised ports, on all interfaces; without both, it advertises
    ``localhost:9092``, as for a published port.

    >>> container_keys({"KAFKA_ADVERTISED_LISTENERS": "OUT://kafka.test:19092", "PATH": "/bin"}, {})["listeners"]
    'OUT://0.0.0.0:19092'
    """
    keys = {**mounted, **keys_of_environment(environment)}
    keys = {name: value for name, value in keys.items() if value.strip()}
    roles = {role.strip() for role in keys.get("process.roles", "broker").split(",")}
    if "broker" not in roles:
        raise InvalidConfigError("KAFKA_PROCESS_ROLES must contain broker: seglog has no separate controllers")
    if "listeners" not in keys:
        advertised = keys.setdefault("advertised.listeners", "PLAINTEXT://localhost:9092")
        keys["listeners"] = _HOST.sub("://0.0.0.0:", advertised)
    if "log.dirs" not in keys and "log.dir" not in keys:
        keys["log.dirs"] = _DATA
    return keys


def ready_lines(node_id: int) -> list[str]:
    """The output of Kafka's images that tools such as Testcontainers' modules wait for."""
    return [
        f"[BrokerLifecycleManager id={node_id}] The broker has been unfenced. Transitioning from RECOVERY to RUNNING.",
        f"[KafkaServer id={node_id}] started",
        f"[KafkaRaftServer nodeId={node_id}] Kafka Server started",
    ]


def main(mounted: str = MOUNTED) -> int:
    """Serve until SIGTERM."""
    leave_on_signals()
    gc.disable()
    log_to_stderr(logging.WARNING)

    def say_ready(node: Node, seconds: float) -> None:
        out = Out()
        addresses = ", ".join(str(address) for address in node.addresses)
        out.line(f"seglog is ready: {addresses} (cluster {node.identity.cluster_id}, {seconds:.2f} s)")
        for line in ready_lines(node.identity.node_id):
            out.line(line)
        out.flush()

    try:
        keys = container_keys(os.environ, read_properties(mounted) if OsFs().exists(mounted) else {})
        keys = {_INSECURE: "true", **keys}
        return serve_keys(keys, say_ready, cluster_id=os.environ.get("CLUSTER_ID") or None)
    except (SeglogError, OSError) as error:
        return fail(str(error))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))

"""Both brokers side by side, as processes of their own: what each has used of the machine, and work done turn about."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from bench.kafka import BROKER, QUIET
from tests.broker.python_clients import AdminClient, NewTopic
from tests.kafka.node import KafkaNode
from tests.kit.broker_process import BrokerProcess

ROUNDS: Final = int(os.environ.get("SEGLOG_BENCH_ROUNDS", "3"))
_TICK: Final = os.sysconf("SC_CLK_TCK")
_PATIENCE: Final = 120
_numbers: Final = itertools.count()


class Reached(Protocol):
    @property
    def bootstrap(self) -> str: ...


class Server(Reached, Protocol):
    """A broker on this machine."""

    @property
    def port(self) -> int: ...
    @property
    def pid(self) -> int: ...


class Seglog(BrokerProcess):
    """Stopped cleanly at the end of the ``with``."""

    def __init__(
        self, data_dir: Path, properties: Mapping[str, str] | None = None, *, options: Sequence[str] = ()
    ) -> None:
        super().__init__(data_dir, properties, options=options, log_level="warning")

    def leave(self) -> None:
        self.stop()


@contextmanager
def both(properties: Mapping[str, str] | None = None) -> Iterator[dict[str, Server]]:
    """Both brokers, running; their data are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="seglog-bench-") as name, ExitStack() as stack:
        root = Path(name)
        yield {
            "seglog": stack.enter_context(Seglog(root / "seglog", properties)),
            "Kafka": stack.enter_context(KafkaNode(root / "kafka", properties, jvm=(*BROKER, QUIET))),
        }


class Use(NamedTuple):
    """What a turn took: seconds that the work says it took, and seconds of CPU of the server and of its clients."""

    wall: float
    server: float
    client: float


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process has used, in user and in kernel mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def own_cpu() -> float:
    """Of this process, and of the clients that it has waited for."""
    return sum(os.times()[:4])


def used(server: Server, work: Callable[[], float]) -> Use:
    own, theirs = own_cpu(), cpu_of(server.pid)
    wall = work()
    return Use(wall, cpu_of(server.pid) - theirs, own_cpu() - own)


def turn_about(
    servers: Mapping[str, Server], work: Callable[[str, Server], float], rounds: int = ROUNDS, *, unmeasured: int = 1
) -> dict[str, Use]:
    """The median of each side's rounds; the sides begin in turn. The first ``unmeasured`` rounds are not counted."""
    uses: dict[str, list[Use]] = {name: [] for name in servers}
    for number in range(-unmeasured, rounds):
        names = list(servers) if number % 2 == 0 else list(servers)[::-1]
        for name in names:
            use = used(servers[name], partial(work, name, servers[name]))
            if number >= 0:
                uses[name].append(use)
    return {name: median(several) for name, several in uses.items()}


def median(uses: Sequence[Use]) -> Use:
    return Use(*(statistics.median(column) for column in zip(*uses, strict=True)))


def new_topic(server: Server, partitions: int = 1) -> str:
    """A topic of its own for each turn: what one has left does not change another."""
    name = f"bench-{next(_numbers)}"
    create_topic(server.bootstrap, NewTopic(name, partitions, 1))
    return name


def create_topic(bootstrap: str, topic: NewTopic) -> None:
    admin = _admin(bootstrap)  # whose end would be theirs
    for done in admin.create_topics([topic]).values():
        done.result(_PATIENCE)


def delete_topic(server: Reached, name: str) -> None:
    admin = _admin(server.bootstrap)
    for done in admin.delete_topics([name]).values():
        done.result(_PATIENCE)


def _admin(bootstrap: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def load() -> str:
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def show(title: str, uses: Mapping[str, Use], size: int) -> None:
    """A line: MB/s and CPU seconds per GB of both sides, and their ratios."""
    sides = [
        f"{name} {size / use.wall / 1e6:.0f} MB/s, server {use.server / size * 1e9:.2f} s/GB, "
        f"client {use.client / size * 1e9:.2f} s/GB"
        for name, use in uses.items()
    ]
    ours, theirs = uses["seglog"], uses["Kafka"]
    ratio = f"{theirs.wall / ours.wall:.2f}x as fast at {ours.server / max(theirs.server, 0.01):.2f} of its CPU"
    print(f"  {title:32} {'; '.join(sides)}: {ratio}; {load()}", flush=True)

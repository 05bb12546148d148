"""`seglog fsck` over directories of several hosts: each is read by an executor on the host that has it.

The driver sees none of the directories. It asks for reports and digests, compares them, and asks for the batches that
differ (`seglog.storage.offline.fsck`). Spark prefers the host that is named, and the task makes sure: a task that
Spark ran elsewhere does nothing, and is sent again.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.errors import InvalidLogDirError, SeglogError
from seglog.core.fs import OsFs
from seglog.spark.jobs.driver import plain_errors
from seglog.spark.runtime.processes import freeze_imports
from seglog.storage.offline.fsck.check import PlaceCall

if TYPE_CHECKING:
    from pyspark.core.rdd import RDD
    from pyspark.sql import SparkSession

_ROUNDS: Final = 20
"""How often a call is sent again after Spark ran it on another host."""
_LOOKS: Final = 60
_LOOK_SECONDS: Final = 0.5
_DRIVER: Final = "driver"


class NoExecutorError(SeglogError):
    """Spark has no executor on a host whose directory is named."""


class _Misplaced(NamedTuple):
    """The call was not made: Spark ran the task on this host."""

    host: str


class _Failed(NamedTuple):
    """The call raised this. Spark would try it again, and then hide its class."""

    error: OSError


class HostRunner:
    """A `PlaceRunner`: makes calls in tasks on the hosts of their places."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._found: dict[str, str] = {}

    def __call__(self, calls: Sequence[PlaceCall]) -> list[Any]:
        """Raises `NoExecutorError`, `InvalidLogDirError` if a host has no such directory, and errors of the calls."""
        results: dict[int, Any] = {}
        waiting = list(range(len(calls)))
        for _ in range(_ROUNDS):
            with plain_errors():
                made = self._placed([calls[at] for at in waiting]).map(_make).collect()
            results |= dict(zip(waiting, made, strict=True))
            waiting = [at for at in waiting if isinstance(results[at], _Misplaced)]
            failed = next((one for one in results.values() if isinstance(one, _Failed)), None)
            if failed is not None:
                raise failed.error
            if not waiting:
                return [results[at] for at in range(len(calls))]
        place = calls[waiting[0]].place
        raise NoExecutorError(
            f"{place}: Spark has an executor on {place.host}, but ran the task on {results[waiting[0]].host} each "
            "time: give spark.locality.wait a longer time, as in --conf spark.locality.wait=60s"
        )

    def _placed(self, calls: Sequence[PlaceCall]) -> RDD[PlaceCall]:
        """One partition for each call, preferably on its host. Only Spark's Scala API takes preferred locations."""
        from pyspark import CPickleSerializer
        from pyspark.core.rdd import RDD

        context = self._spark.sparkContext
        serializer: Any = CPickleSerializer()
        jvm: Any = context._jvm
        lists = jvm.java.util.ArrayList
        as_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
        pairs = lists()
        for call in calls:
            hosts = lists()
            if call.place.host:
                hosts.add(self._executor(call.place.host))
            pairs.add(jvm.scala.Tuple2(bytearray(serializer.dumps(call)), as_scala(hosts).toSeq()))
        java: Any = context._jsc
        placed = java.sc().makeRDD(as_scala(pairs).toSeq(), java.emptyRDD().classTag())
        return RDD(placed.toJavaRDD(), context, serializer)

    def _executor(self, host: str) -> str:
        """The name under which Spark knows the executors on ``host``."""
        if host not in self._found:
            names: list[str] = []
            for _ in range(_LOOKS):  # executors start after the session, and some only for a job
                names = self._executors()
                known = next((one for one in names if is_same_host(host, one)), None)
                if known is not None:
                    self._found[host] = known
                    return known
                if _DRIVER in names:
                    break
                self._spark.sparkContext.parallelize(range(1), 1).count()
                Event().wait(_LOOK_SECONDS)
            where = ", ".join(sorted(set(names))) or "no host"
            raise NoExecutorError(
                f"no executor of Spark runs on {host}: start one there, or mount its directory; there are some on "
                f"{where}"
            )
        return self._found[host]

    def _executors(self) -> list[str]:
        """The hosts of executors; in local mode that of the driver, which is one itself."""
        java: Any = self._spark.sparkContext._jsc
        active_only = True
        found = java.sc().statusStore().executorList(active_only)
        hosts = {}
        for at in range(found.size()):
            one = found.apply(at)
            hosts[one.id()] = one.hostPort().rpartition(":")[0].strip("[]")
        return [host for name, host in hosts.items() if name != _DRIVER] or list(hosts.values())


def is_same_host(name: str, other: str) -> bool:
    """Whether two names are those of one host, by their text, their addresses, or as both are this machine."""
    if name.casefold() == other.casefold():
        return True
    return bool(_addresses(name) & _addresses(other)) or (is_here(name) and is_here(other))


def is_here(host: str) -> bool:
    """Whether ``host`` is this machine: one of its addresses can be bound here.

    >>> is_here("127.0.0.1"), is_here("192.0.2.1")
    (True, False)
    """
    if host.casefold() == socket.gethostname().casefold():
        return True
    for address in _addresses(host):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                continue
            return True
    return False


def _addresses(host: str) -> set[str]:
    try:
        return {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return set()


def _make(call: PlaceCall) -> Any:
    """Make a call, in a worker."""
    fs, here = OsFs(), socket.gethostname()
    place = call.place
    if place.host and not is_here(place.host):
        return _Misplaced(here)
    if not fs.exists(place.path):
        raise InvalidLogDirError(f"{place.path} does not exist on host {here}")
    try:
        result = call.function(fs, *call.arguments)
    except OSError as error:
        return _Failed(error)
    freeze_imports()
    return result

"""`seglog consume`: records of topics on standard output, as kcat -C, rpk and Kafka's console consumer give them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import with_options
from seglog.cli.output import FINE, Out, fail
from seglog.cli.signals import Termination, note_termination
from seglog.cli.wire import clients as wire
from seglog.cli.wire.clients import Cluster
from seglog.cli.wire.formats import Formats, Received, check_format, compile_format, record_object, show, unescape
from seglog.cli.wire.start_offsets import Start, find_starts, parse_start
from seglog.core.clock import SystemClock
from seglog.core.errors import RequestFailedError

_LEVELS: Final = ("read_uncommitted", "read_committed")
_BATCH: Final = 10_000
_WAIT: Final = 0.2
"""Seconds after which a wait looks for Ctrl-C."""
Write = Callable[[Out, Received], None]


class Topics(NamedTuple):
    """What is read."""

    names: Annotated[list[str] | None, typer.Argument(metavar="TOPIC...", help="Topics.", show_default=False)] = None
    topics: wire.TopicsToo = None
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partition", "-p", metavar="0,2-4", help="Only these partitions.", show_default="all"),
    ] = None

    def all(self) -> list[str]:
        return [*(self.names or ()), *(self.topics or ())]


class Reading(NamedTuple):
    """From where to where, and for whom."""

    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="WHERE",
            help="Begin at beginning (earliest, start), end (latest), an offset, -N for the last N of each partition, "
            "or @TIME: ms since 1970, ISO 8601 (in UTC without a zone), or -1h, -15m, -7d.",
            show_default="beginning; of a group, where it is",
        ),
    ] = None
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="The same as --offset beginning.")] = False
    follow: Annotated[
        bool, typer.Option("--follow/--exit-at-end", " /-e", help="Wait for more records, or stop at the end.")
    ] = True
    most: Annotated[
        int | None,
        typer.Option("--count", "--max-messages", "-c", metavar="N", min=1, help="Stop after N.", show_default=False),
    ] = None
    timeout_ms: Annotated[
        int | None,
        typer.Option("--timeout-ms", metavar="MS", min=1, help="Stop when so long nothing came.", show_default=False),
    ] = None
    group: Annotated[
        str | None,
        typer.Option("--group", "-g", "-G", metavar="GROUP", help="Share partitions, and commit.", show_default=False),
    ] = None
    isolation_level: Annotated[str, typer.Option(metavar="LEVEL", help="read_uncommitted or read_committed.")] = (
        _LEVELS[0]
    )

    def check(self, partitions: Sequence[str] | None) -> None:
        """Raises ValueError for what excludes each other."""
        if self.isolation_level not in _LEVELS:
            raise ValueError(f"--isolation-level is {' or '.join(_LEVELS)}, not {self.isolation_level}")
        if self.group is not None and partitions:
            raise ValueError("consume takes --group or --partition, not both: a group's partitions are dealt out")
        if self.from_beginning and self.offset not in (None, "beginning"):
            raise ValueError(f"consume takes --from-beginning or --offset {self.offset}, not both")

    def start(self) -> Start:
        is_stored = self.group is not None and not self.from_beginning
        return parse_start(self.offset or ("stored" if is_stored else "beginning"))

    def settings(self, start: Start) -> dict[str, object]:
        """Of the consumer, by librdkafka's names."""
        return {
            "group.id": self.group or "seglog-consume",
            "enable.auto.commit": self.group is not None,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": self.isolation_level,
            "auto.offset.reset": "latest" if start.kind == "end" and self.group is not None else "earliest",
            "allow.auto.create.topics": False,
            "fetch.wait.max.ms": 100,
        }


class Shown(NamedTuple):
    """How records are printed."""

    format_string: Annotated[
        str | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="As kcat's: %t topic, %p partition, %o offset, %T time, %k key, %s value, %K and %S their sizes, "
            "%h headers, \\n.",
            show_default="%s\\n",
        ),
    ] = None
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Print keys, and this.", show_default=False),
    ] = None
    key_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="text, json, hex or base64.", show_default="text")
    ] = None
    value_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="The same, of values.", show_default="text")
    ] = None
    header_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="The same, of headers.", show_default="text")
    ] = None
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="What stands for null.")] = ""

    def writer(self, *, json: bool) -> Write:
        key, value, header = (
            check_format(given or ("base64" if json else "text"), option)
            for given, option in (
                (self.key_format, "--key-format"),
                (self.value_format, "--value-format"),
                (self.header_format, "--header-format"),
            )
        )
        formats = Formats(key, value, header, unescape(self.null))
        return _writer(formats, self.format_string, self.key_separator, json=json)


_NO_TOPICS: Final = Topics()
_ALL: Final = Reading()
_PLAIN: Final = Shown()


@with_options
def consume(
    which: Topics = _NO_TOPICS,
    reading: Reading = _ALL,
    shown: Shown = _PLAIN,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: Annotated[
        bool,
        typer.Option(
            "--json", "-J", help="Print an object a record, as `seglog dump --records --json`; bytes as base64."
        ),
    ] = False,
) -> int:
    """Print the records of topics: of all partitions from their beginning, and wait for more."""
    wanted = which.all()
    if not wanted:
        return fail("consume needs the name of a topic")
    try:
        reading.check(which.partitions)
        write = shown.writer(json=json)
        start = reading.start()
    except ValueError as error:
        return fail(error)
    cluster = brokers.cluster()
    there = cluster.partitions(wanted)
    has_group = reading.group is not None
    run = _Run(cluster, cluster.consumer(reading.settings(start)), write, stores=has_group)
    try:
        if has_group:
            if start.kind not in ("stored", "beginning", "end"):
                return fail("a group begins where it is: seglog groups reset-offsets puts it somewhere else")
            run.subscribe(wanted)
        else:
            only = wire.numbers(which.partitions, "--partition")
            run.assign(find_starts(cluster, _chosen(there, only), start))
        idle = None if reading.timeout_ms is None else reading.timeout_ms / 1000
        with note_termination(wanted=has_group) as termination:
            try:
                run.work(count=reading.most, follow=reading.follow, idle=idle, termination=termination)
            finally:
                run.close()
    except ValueError as error:
        return fail(error)
    finally:
        run.close()
    return FINE


def _chosen(there: dict[str, list[int]], only: Sequence[int]) -> list[tuple[str, int]]:
    for topic, numbers in there.items():
        for number in only:
            if number not in numbers:
                raise RequestFailedError(f"topic {topic}: there is no partition {number}")
    return [(topic, number) for topic, numbers in there.items() for number in numbers if not only or number in only]


def _writer(formats: Formats, format_string: str | None, key_separator: str | None, *, json: bool) -> Write:
    if json:
        return lambda out, record: out.json(record_object(record, formats))
    if format_string is not None:
        render = compile_format(format_string, formats)
        return lambda out, record: out.raw(render(record))
    separator = None if key_separator is None else unescape(key_separator)

    def write(out: Out, record: Received) -> None:
        value = show(record.value, formats.value, formats.null)
        if separator is not None:
            value = show(record.key, formats.key, formats.null) + separator + value
        out.raw(value + b"\n")

    return write


class _Run:
    """A consumer and where its records go. Offsets of a group are stored when the records have been written."""

    def __init__(self, cluster: Cluster, consumer: Any, write: Write, *, stores: bool) -> None:
        self._cluster = cluster
        self._consumer = consumer
        self._write = write
        self._stores = stores
        self._out = Out()
        self._ended: set[tuple[str, int]] = set()
        self._assigned: set[tuple[str, int]] = set()
        self._is_closed = False

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke)

    def assign(self, starts: dict[tuple[str, int], int]) -> None:
        make = self._cluster.kafka.TopicPartition
        self._assigned = set(starts)
        self._consumer.assign([make(topic, number, offset) for (topic, number), offset in starts.items()])

    def work(self, *, count: int | None, follow: bool, idle: float | None, termination: Termination) -> None:
        """Until there is nothing more to do, or SIGTERM: what was written by then is committed by `close`."""
        now = SystemClock().monotonic
        seen, last = 0, now()
        while not termination.has_come and (count is None or seen < count):
            with self._cluster.errors("consume"):
                batch = self._consumer.consume(_BATCH if count is None else min(_BATCH, count - seen), _WAIT)
            read = self._take(batch)
            seen += read
            if read:
                last = now()
            if not follow and self._assigned and self._assigned <= self._ended:
                return
            if idle is not None and now() - last >= idle:
                return
            if not follow:
                self._cluster.check_quiet("consume", now() - last)

    def _take(self, batch: Sequence[Any]) -> int:
        """Write a batch's records; returns how many they are."""
        newest: dict[tuple[str, int], Any] = {}
        read = 0
        for message in batch:
            at = message.topic(), message.partition()
            if message.error() is not None:
                self._event(at, message.error())
                continue
            self._ended.discard(at)
            self._write(self._out, _received(message))
            newest[at] = message
            read += 1
        if newest:
            self._out.flush()
        for message in newest.values() if self._stores else ():
            self._store(message)
        return read

    def _event(self, at: tuple[str, int], error: Any) -> None:
        if error.code() == self._cluster.kafka.KafkaError._PARTITION_EOF:
            self._ended.add(at)
        elif error.fatal() or not error.retriable():
            where = f"topic {at[0]}, partition {at[1]}" if at[0] else "consume"
            raise RequestFailedError(f"{where}: {self._cluster.describe(error)}")

    def _store(self, message: Any) -> None:
        try:
            self._consumer.store_offsets(message=message)
        except self._cluster.kafka.KafkaException:
            # The partition has just gone to another member, who reads these records again.
            self._ended.discard((message.topic(), message.partition()))

    def _on_assign(self, _: Any, partitions: Sequence[Any]) -> None:
        self._assigned = {(one.topic, one.partition) for one in partitions}
        self._ended.clear()

    def _on_revoke(self, _: Any, partitions: Sequence[Any]) -> None:
        self._assigned -= {(one.topic, one.partition) for one in partitions}

    def close(self) -> None:
        """Commit and leave the group, once."""
        if not self._is_closed:
            self._is_closed = True
            self._out.flush()
            self._consumer.close()


def _received(message: Any) -> Received:
    kind, timestamp = message.timestamp()
    return Received(
        message.topic(),
        message.partition(),
        message.offset(),
        timestamp if kind else -1,
        kind - 1,
        message.key(),
        message.value(),
        message.headers() or (),
        message.leader_epoch(),
    )

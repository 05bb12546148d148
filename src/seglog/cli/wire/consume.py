"""`seglog consume`: print the records of topics, as kcat -C, rpk and Kafka's console consumer do."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import ISOLATION_LEVELS, OptionError, check_choice, key_values, parse_time, with_options
from seglog.cli.output import FINE, Out
from seglog.cli.signals import Termination, note_termination
from seglog.cli.wire.clients import DEFAULT_BROKERS, NO_TOPICS, Brokers, Cluster, TopicNames
from seglog.cli.wire.formats import (
    FORMATS,
    ConsumedRecord,
    RecordFormats,
    check_format,
    compile_format,
    json_line,
    show,
    unescape,
)
from seglog.cli.wire.partition_lists import check_partitions, partition_numbers
from seglog.cli.wire.typed_records import TYPED_FORMATS, TypedRecords
from seglog.cluster.reassignment_plan import Place
from seglog.core.clock import SystemClock
from seglog.core.errors import RequestFailedError

_BATCH: Final = 10_000
_ANY_FORMAT: Final = "|".join((*FORMATS, *TYPED_FORMATS))
_WAIT: Final = 0.2
"""Seconds between two checks for Ctrl-C."""
Write = Callable[[Out, ConsumedRecord], None]
_WORDS: Final = {
    "beginning": "beginning",
    "earliest": "beginning",
    "start": "beginning",
    "end": "end",
    "latest": "end",
    "stored": "stored",
}


class StartPosition(NamedTuple):
    """``kind``: beginning, end, stored, offset, last (``value`` records before the end) or time (in ms)."""

    kind: str
    value: int = 0


def parse_start(text: str) -> StartPosition:
    """
    >>> parse_start("latest"), parse_start("17"), parse_start("-5"), parse_start("@2013-01-01T00:00Z")
    (StartPosition(kind='end', value=0), StartPosition(kind='offset', value=17), StartPosition(kind='last', value=5), \
StartPosition(kind='time', value=1356998400000))
    """
    if text in _WORDS:
        return StartPosition(_WORDS[text])
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        number = int(text)
        return StartPosition("last", -number) if text.startswith("-") else StartPosition("offset", number)
    if "@" in text[:2]:  # kcat has s@TIME
        try:
            return StartPosition("time", parse_time(text.partition("@")[2]))
        except ValueError:
            pass
    raise OptionError(f"--offset must be beginning, end, an offset, -N or @TIME, not {text}")


def find_starts(cluster: Cluster, partitions: Sequence[Place], start: StartPosition) -> dict[Place, int]:
    """Each partition's first offset to read. An offset out of range is an error; it is not replaced by another one."""
    if start.kind == "stored":
        raise OptionError("--offset stored needs --group")
    if start.kind == "time":
        return cluster.offsets_from(partitions, start.value)
    first = cluster.first(partitions)
    if start.kind == "beginning":
        return first
    ends = cluster.ends(partitions)
    if start.kind == "end":
        return ends
    if start.kind == "last":
        return {place: max(first[place], ends[place] - start.value) for place in partitions}
    for place in partitions:
        if not first[place] <= start.value <= ends[place]:
            raise RequestFailedError(
                f"topic {place[0]}, partition {place[1]}: offset {start.value} is out of range {first[place]} to "
                f"{ends[place]}"
            )
    return dict.fromkeys(partitions, start.value)


class ConsumeOptions(NamedTuple):
    """The range of records to read, and the group that reads them."""

    offset: Annotated[
        str | None,
        typer.Option(
            "--offset",
            "-o",
            metavar="beginning|end|N|-N|@TIME",
            help="Begin there (also earliest, start, latest): N is an offset, -N the last N of each partition, "
            "@TIME ms since 1970, ISO 8601 (in UTC without a zone), or relative to now: -1h, -15m, -7d.",
            show_default="beginning; with --group, its offset",
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
        typer.Option(
            "--timeout-ms", metavar="MS", min=1, help="Stop when no record arrives for MS.", show_default=False
        ),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(
            "--group", "-g", "-G", metavar="GROUP", help="Join GROUP and commit its offsets.", show_default=False
        ),
    ] = None
    isolation_level: Annotated[str, typer.Option(metavar="|".join(ISOLATION_LEVELS), help="Which records.")] = (
        ISOLATION_LEVELS[0]
    )

    def check(self, partitions: Sequence[str] | None) -> None:
        """Raise `OptionError` for options that exclude each other."""
        check_choice("--isolation-level", self.isolation_level, ISOLATION_LEVELS)
        if self.group is not None and partitions:
            raise OptionError("consume takes --group or --partition, not both: a group assigns partitions itself")
        if self.from_beginning and self.offset not in (None, "beginning"):
            raise OptionError(f"consume takes --from-beginning or --offset {self.offset}, not both")

    def start(self) -> StartPosition:
        is_stored = self.group is not None and not self.from_beginning
        return parse_start(self.offset or ("stored" if is_stored else "beginning"))

    def settings(self, start: StartPosition) -> dict[str, object]:
        """The consumer's settings for librdkafka."""
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


class PrintOptions(NamedTuple):
    """The format of the output."""

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
        typer.Option(
            "--key-separator", "-K", metavar="TEXT", help="Print keys too, followed by TEXT.", show_default=False
        ),
    ] = None
    key_format: Annotated[
        str | None,
        typer.Option(metavar=_ANY_FORMAT, help="How keys are printed.", show_default="text"),
    ] = None
    value_format: Annotated[
        str | None, typer.Option(metavar=_ANY_FORMAT, help="The same, for values.", show_default="text")
    ] = None
    registry: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The schema registry, for avro and protobuf.", show_default=False),
    ] = None
    format_options: Annotated[
        list[str] | None,
        typer.Option(
            "--format-option",
            metavar="KEY=VALUE",
            help="How keys and values are read, as in valueSchema=flight.avsc; see docs/values.md.",
            show_default=False,
        ),
    ] = None
    header_format: Annotated[
        str | None, typer.Option(metavar="|".join(FORMATS), help="The same, for headers.", show_default="text")
    ] = None
    null: Annotated[str, typer.Option("--null", metavar="TEXT", help="Printed instead of null.")] = ""

    def typed(self, topics: Sequence[str]) -> TypedRecords | None:
        """The decoder of avro and protobuf; None if neither is asked for."""
        options = self.typed_options()
        return TypedRecords(options, topics) if options else None

    def typed_options(self) -> dict[str, str]:
        """The options of `seglog.values.value_options` for avro and protobuf; empty if neither is asked for."""
        given = (("valueFormat", self.value_format), ("keyFormat", self.key_format))
        options = {name: form for name, form in given if form in TYPED_FORMATS}
        if not options:
            if self.registry is not None or self.format_options:
                raise OptionError("--registry and --format-option need --value-format or --key-format avro or protobuf")
            return {}
        options |= key_values("--format-option", self.format_options)
        if self.registry is not None:
            options["schema.registry.url"] = self.registry
        return options

    def plain_null(self, *, json: bool) -> bytes | None:
        """The text for null if only values are printed, as they are; None for any other output."""
        others = (self.format_string, self.key_separator, self.key_format, self.value_format)
        return None if json or any(one is not None for one in others) else unescape(self.null)

    def writer(self, *, json: bool) -> Write:
        key, value = (
            "json" if given in TYPED_FORMATS else check_choice(option, given or "text", (*FORMATS, *TYPED_FORMATS))
            for given, option in ((self.key_format, "--key-format"), (self.value_format, "--value-format"))
        )
        header = check_format(self.header_format or "text", "--header-format")
        formats = RecordFormats(key, value, header, unescape(self.null))
        return _writer(formats, self.format_string, self.key_separator, json=json)


_ALL: Final = ConsumeOptions()
_PLAIN: Final = PrintOptions()


@with_options
def consume(
    names: TopicNames = NO_TOPICS,
    partitions: Annotated[
        list[str] | None,
        typer.Option("--partition", "-p", metavar="0,2-4", help="Only these partitions.", show_default="all"),
    ] = None,
    reading: ConsumeOptions = _ALL,
    shown: PrintOptions = _PLAIN,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            "-J",
            help="Print one object per record, as `seglog dump --records --json`; base64 of bytes that are not UTF-8.",
        ),
    ] = False,
) -> int:
    """Print the records of topics, of all partitions from the beginning, and wait for more."""
    wanted = names.all()
    if not wanted:
        raise OptionError("consume needs the name of a topic")
    reading.check(partitions)
    write = shown.writer(json=json)
    typed = shown.typed(wanted)
    start = reading.start()
    cluster = brokers.cluster()
    there = cluster.partitions(wanted)
    has_group = reading.group is not None
    null = shown.plain_null(json=json)
    run = _Consumption(cluster, cluster.consumer(reading.settings(start)), write, typed, null=null, stores=has_group)
    try:
        if has_group:
            if start.kind not in ("stored", "beginning", "end"):
                raise OptionError("a group starts at its committed offsets; seglog groups reset-offsets changes them")
            run.subscribe(wanted)
        else:
            only = partition_numbers(partitions, "--partition")
            run.assign(find_starts(cluster, _chosen(there, only), start))
        idle = None if reading.timeout_ms is None else reading.timeout_ms / 1000
        with note_termination(wanted=has_group) as termination:
            try:
                run.work(count=reading.most, follow=reading.follow, idle=idle, termination=termination)
            finally:
                run.close()
    finally:
        run.close()
    return FINE


def _chosen(there: dict[str, list[int]], only: Sequence[int]) -> list[Place]:
    check_partitions(there, ((topic, number) for topic in there for number in only))
    return [(topic, number) for topic, numbers in there.items() for number in numbers if not only or number in only]


def _writer(formats: RecordFormats, format_string: str | None, key_separator: str | None, *, json: bool) -> Write:
    if json:
        line = json_line(formats)
        return lambda out, record: out.write(line(record))
    if format_string is not None:
        render = compile_format(format_string, formats)
        return lambda out, record: out.raw(render(record))
    separator = None if key_separator is None else unescape(key_separator)

    def write(out: Out, record: ConsumedRecord) -> None:
        value = show(record.value, formats.value, formats.null)
        if separator is not None:
            value = show(record.key, formats.key, formats.null) + separator + value
        out.raw(value + b"\n")

    return write


class _Consumption:
    """Writes the records of a consumer. Offsets of a group are stored after the records have been written."""

    def __init__(
        self,
        cluster: Cluster,
        consumer: Any,
        write: Write,
        typed: TypedRecords | None,
        *,
        null: bytes | None,
        stores: bool,
    ) -> None:
        """``null`` is the text for null if only values are printed, as they are: ``write`` is not called then."""
        self._cluster = cluster
        self._typed = typed
        self._consumer = consumer
        self._write = write
        self._null = null
        self._stores = stores
        self._out = Out()
        self._ended: set[Place] = set()
        self._assigned: set[Place] = set()
        self._is_closed = False

    def subscribe(self, topics: Sequence[str]) -> None:
        self._consumer.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke)

    def assign(self, starts: dict[Place, int]) -> None:
        make = self._cluster.kafka.TopicPartition
        self._assigned = set(starts)
        self._consumer.assign([make(topic, number, offset) for (topic, number), offset in starts.items()])

    def work(self, *, count: int | None, follow: bool, idle: float | None, termination: Termination) -> None:
        """Read until the limit is reached or SIGTERM arrives; `close` commits the offsets of the records written."""
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
        """Write the records of a batch; returns their number."""
        messages: list[Any] = []
        newest: dict[Place, Any] = {}
        for message in batch:
            error = message.error()
            if error is not None:
                self._event((message.topic(), message.partition()), error)
                continue
            messages.append(message)
            if self._stores or self._ended:
                at = message.topic(), message.partition()
                self._ended.discard(at)
                newest[at] = message
        if messages:
            self._write_all(messages)
            self._out.flush()
        for message in newest.values() if self._stores else ():
            self._store(message)
        return len(messages)

    def _write_all(self, messages: Sequence[Any]) -> None:
        if self._null is not None:
            null = self._null
            values = [null if (value := message.value()) is None else value for message in messages]
            self._out.raw(b"\n".join([*values, b""]))
            return
        records = [received(message) for message in messages]
        for record in records if self._typed is None else self._typed.decode(records):
            try:
                self._write(self._out, record)
            except OptionError as error:
                where = f"topic {record.topic}, partition {record.partition}, offset {record.offset}"
                raise OptionError(f"{where}: {error}") from error

    def _event(self, at: Place, error: Any) -> None:
        if error.code() == self._cluster.kafka.KafkaError._PARTITION_EOF:
            self._ended.add(at)
        elif error.fatal() or not error.retriable():
            where = f"topic {at[0]}, partition {at[1]}" if at[0] else "consume"
            raise RequestFailedError(f"{where}: {self._cluster.describe(error)}")

    def _store(self, message: Any) -> None:
        try:
            self._consumer.store_offsets(message=message)
        except self._cluster.kafka.KafkaException:
            # The partition now belongs to another member, which reads these records again.
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


def received(message: Any) -> ConsumedRecord:
    """A message of the library."""
    kind, timestamp = message.timestamp()
    return ConsumedRecord(
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

"""`seglog produce`: lines of standard input or of files into a topic, as kcat -P, rpk and Kafka's console producer."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import with_options
from seglog.cli.output import FAILED, FINE, Out, fail
from seglog.cli.wire import clients as wire
from seglog.cli.wire.follow import FollowedFile, Line, Place, Positions
from seglog.cli.wire.formats import check_format, parse, unescape
from seglog.cli.wire.input_lines import LineReader, ToSend, read_object
from seglog.cli.wire.partition_choice import PARTITIONERS
from seglog.cli.wire.sender import Sender, SendSettings
from seglog.core.clock import SystemClock

_SAVE_EVERY: Final = 1.0
"""Seconds between two times that positions are saved."""
_LOOK_EVERY: Final = 0.25
"""Seconds between two looks for more lines."""

_Format = Annotated[str, typer.Option(metavar="FORMAT", help="text, json, hex or base64.")]


class _Place(NamedTuple):
    """Where a line came from, for errors and for the positions that are saved."""

    path: str
    number: int
    end: Place | None


class Source(NamedTuple):
    """Where lines come from."""

    from_file: Annotated[
        list[str] | None,
        typer.Option("--from-file", "-l", metavar="FILE", help="Read this file, not stdin.", show_default=False),
    ] = None
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on as files grow, are rotated or cut, as tail -F does.")
    ] = False
    from_end: Annotated[bool, typer.Option("--from-end", help="Begin behind what is there already.")] = False
    position_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Keep here how far files were sent, and go on there.", show_default=False),
    ] = None

    def check(self) -> None:
        """Raises ValueError for what excludes each other."""
        if (self.follow or self.from_end or self.position_file) and not self.from_file:
            raise ValueError("--follow, --from-end and --position-file need --from-file")

    def feed(self, run: _Run) -> None:
        if self.from_file:
            run.files(self.from_file, follow=self.follow, from_end=self.from_end, position_file=self.position_file)
        else:
            run.stream(sys.stdin.buffer)


class Lines(NamedTuple):
    """What a line is."""

    records: Annotated[bool, typer.Option("--records", help="Each line is a record as consume --json prints it.")] = (
        False
    )
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="With --records: each goes to its partition.")
    ] = False
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="A line is key, this, value.", show_default=False),
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="The key of all.", show_default=False)
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of all.", show_default=False),
    ] = None
    parse_headers: Annotated[
        bool, typer.Option("--parse-headers", help="A line begins with name:value,name:value and a tab.")
    ] = False
    key_format: _Format = "text"
    value_format: _Format = "text"
    header_format: _Format = "text"
    tombstones: Annotated[bool, typer.Option("--tombstones", "-Z", help="Send what is empty as null.")] = False
    null: Annotated[
        str | None, typer.Option("--null", metavar="TEXT", help="Send what is TEXT as null.", show_default=False)
    ] = None

    def reader(self) -> Callable[[bytes], ToSend]:
        """Raises ValueError for what is no format."""
        formats = (self.key_format, "--key"), (self.value_format, "--value"), (self.header_format, "--header")
        for given, option in formats:
            check_format(given, f"{option}-format")
        lines = LineReader(
            None if self.key_separator is None else unescape(self.key_separator),
            None if self.key is None else _typed(self.key, self.key_format),
            [(name, _typed(value, self.header_format)) for name, value in _headers(self.header or ())],
            self.parse_headers,
            self.key_format,
            self.value_format,
            self.header_format,
            self.tombstones,
            None if self.null is None else unescape(self.null),
        )
        return partial(read_object, keep_partition=self.keep_partitions) if self.records else lines.read


class Sending(NamedTuple):
    """To which partitions, and how."""

    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Send all to this one.", show_default=False),
    ] = None
    partitioner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="murmur2 (Java's), crc32 (librdkafka's) and fnv1a hash the key, and without one stay with a partition "
            "for a batch; sticky does so always; round-robin; random.",
        ),
    ] = "murmur2"
    acks: Annotated[str, typer.Option("--acks", "-a", metavar="N", help="all (-1), 1 or 0.")] = "all"
    idempotent: Annotated[
        bool | None,
        typer.Option("--idempotent/--no-idempotent", help="Once and in order.", show_default="with --acks all"),
    ] = None
    retries: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="How often to send again.", show_default="for five minutes")
    ] = None
    codec: Annotated[
        str, typer.Option("--codec", "--compression", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd.")
    ] = "none"
    batch_size: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of a batch.")] = 1_000_000
    linger_ms: Annotated[int, typer.Option(metavar="MS", min=0, help="Wait so long for a batch to fill.")] = 5

    def check(self) -> None:
        if self.partitioner not in PARTITIONERS:
            raise ValueError(f"--partitioner is {', '.join(PARTITIONERS)}, not {self.partitioner}")

    def settings(self, *, for_ever: bool) -> SendSettings:
        """Raises ValueError for what excludes each other."""
        return SendSettings.parse(
            self.acks, self.codec, self.idempotent, self.retries, self.batch_size, self.linger_ms, for_ever=for_ever
        )


_STDIN: Final = Source()
_TEXT: Final = Lines()
_SAFELY: Final = Sending()


@with_options
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    source: Source = _STDIN,
    lines: Lines = _TEXT,
    sending: Sending = _SAFELY,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: Annotated[bool, typer.Option("--json", help="Print at the end what was sent, as a JSON document.")] = False,
) -> int:
    """Send each line as a record; ends when all are acknowledged. A line that is no record ends it, too."""
    try:
        sending.check()
        source.check()
        settings = sending.settings(for_ever=source.follow)
        read = lines.reader()
    except ValueError as error:
        return fail(error)
    sender = Sender(brokers.cluster(), topic, settings, sending.partitioner, sending.partition)
    run = _Run(sender, read)
    code = FINE
    with _interrupted_by_sigterm(wanted=source.follow):
        try:
            source.feed(run)
        except KeyboardInterrupt:
            if not source.follow:
                sender.discard()
                raise
        except ValueError as error:
            fail(error)
            code = FAILED
        finally:
            run.end()
    if json:
        out = Out()
        out.json(sender.document())
        out.flush()
    return code


def _typed(text: str, form: str) -> bytes:
    """What an argument stands for; of one that is not UTF-8, its bytes."""
    return parse(text.encode(errors="surrogateescape"), form)


def _headers(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ValueError(f"--header: {text!r} is not NAME=VALUE")
        yield name, value


@contextmanager
def _interrupted_by_sigterm(*, wanted: bool) -> Iterator[None]:
    """SIGTERM as Ctrl-C, so that what was read is sent."""
    if not wanted:
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Run:
    """Lines from wherever to a sender."""

    def __init__(self, sender: Sender, read: Callable[[bytes], ToSend]) -> None:
        self._sender = sender
        self._read = read
        self._positions: Positions | None = None
        self._sent: dict[str, Place] = {}
        self._now = SystemClock().monotonic
        self._saved_at = self._now()

    def stream(self, stream: Any) -> None:
        for number, line in enumerate(stream, start=1):
            self._send(line.removesuffix(b"\n"), f"line {number}")

    def files(self, paths: Sequence[str], *, follow: bool, from_end: bool, position_file: str | None) -> None:
        if position_file is not None:
            self._positions = Positions(position_file)
            self._positions.load()
        places = {path: self._positions.of(path) if self._positions else None for path in paths}
        files = {path: FollowedFile(path, at=place, from_end=from_end) for path, place in places.items()}
        numbers = dict.fromkeys(paths, 0)
        if not follow:
            for path, file in files.items():
                for line in file.whole():
                    numbers[path] += 1
                    self._line(line, numbers[path])
            return
        while True:
            for path, file in files.items():
                for line in file.lines():
                    numbers[path] += 1
                    self._line(line, numbers[path])
                    self._save_now_and_then()
            self._save_now_and_then()
            self._sender.wait(_LOOK_EVERY)

    def _line(self, line: Line, number: int) -> None:
        self._send(line.data, f"{line.path}, line {number} since the start")
        self._sent[line.path] = line.end

    def _send(self, line: bytes, where: str) -> None:
        try:
            record = self._read(line)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        self._sender.send(record)

    def _save_now_and_then(self) -> None:
        if self._positions is not None and self._now() - self._saved_at >= _SAVE_EVERY:
            self._save()

    def _save(self) -> None:
        """A position counts when all before it is acknowledged."""
        self._sender.flush()
        if self._positions is not None and not self._sender.has_ended:
            for path, place in self._sent.items():
                self._positions.delivered(path, place)
            self._positions.save()
        self._saved_at = self._now()

    def end(self) -> None:
        self._save()

"""`seglog produce`: send lines of stdin or of files to a topic, as kcat -P, rpk and Kafka's console producer do."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import OptionError, check_choice, key_values, with_options
from seglog.cli.output import FINE, Out, fail
from seglog.cli.wire.clients import DEFAULT_BROKERS, Brokers
from seglog.cli.wire.follow import FileLine, FilePosition, FollowedFile, PositionFile
from seglog.cli.wire.formats import FORMATS, check_format, parse, unescape
from seglog.cli.wire.input_lines import LineReader, OutgoingRecord
from seglog.cli.wire.sender import ACKS, CODECS, PARTITIONERS, Sender, producer_settings
from seglog.core.clock import SystemClock

_SAVE_EVERY: Final = 1.0
"""Seconds between two saves of positions."""
_LOOK_EVERY: Final = 0.25
_READ_BYTES: Final = 1 << 16
"""Seconds between two checks for more lines."""

_Format = Annotated[str, typer.Option(metavar="|".join(FORMATS), help="How these bytes are written in a line.")]


class SourceOptions(NamedTuple):
    """The files that lines are read from."""

    from_file: Annotated[
        list[str] | None,
        typer.Option("--from-file", "-l", metavar="FILE", help="Read this file, not stdin.", show_default=False),
    ] = None
    follow: Annotated[bool, typer.Option("--follow", help="Follow files as they grow and rotate, as tail -F does.")] = (
        False
    )
    from_end: Annotated[bool, typer.Option("--from-end", help="Start at the end of the files.")] = False
    position_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Save positions here and resume from them.", show_default=False),
    ] = None

    def check(self) -> None:
        """Raise `OptionError` for options that exclude each other."""
        if (self.follow or self.from_end or self.position_file) and not self.from_file:
            raise OptionError("--follow, --from-end and --position-file need --from-file")

    def feed(self, run: _LineFeed) -> None:
        if self.from_file:
            run.files(self.from_file, follow=self.follow, from_end=self.from_end, position_file=self.position_file)
        else:
            run.stream(sys.stdin.buffer)


class LineOptions(NamedTuple):
    """The format of a line."""

    records: Annotated[bool, typer.Option("--records", help="Read records as printed by consume --json.")] = False
    keep_partitions: Annotated[
        bool, typer.Option("--keep-partitions", help="With --records: keep each record's partition.")
    ] = False
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-K", metavar="TEXT", help="Lines are key, TEXT, value.", show_default=False),
    ] = None
    key: Annotated[
        str | None, typer.Option("--key", "-k", metavar="KEY", help="The key of all records.", show_default=False)
    ] = None
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of all records.", show_default=False),
    ] = None
    parse_headers: Annotated[
        bool, typer.Option("--parse-headers", help="Lines start with name:value,name:value and a tab.")
    ] = False
    key_format: _Format = "text"
    value_format: _Format = "text"
    header_format: _Format = "text"
    tombstones: Annotated[bool, typer.Option("--tombstones", "-Z", help="Send empty fields as null.")] = False
    null: Annotated[
        str | None, typer.Option("--null", metavar="TEXT", help="Send TEXT as null.", show_default=False)
    ] = None

    def reader(self) -> Callable[[bytes], OutgoingRecord]:
        """Raises `OptionError` for an unknown format."""
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
        return partial(lines.read_object, keep_partition=self.keep_partitions) if self.records else lines.read


class SendOptions(NamedTuple):
    """The partitions and the settings of the producer."""

    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", metavar="N", min=0, help="Send all records to N.", show_default=False),
    ] = None
    partitioner: Annotated[
        str,
        typer.Option(
            metavar="|".join(PARTITIONERS),
            help="murmur2 (Java's), crc32 (librdkafka's) and fnv1a hash the key; records without a key stick to a "
            "partition per batch, as all do with sticky; round-robin; random.",
        ),
    ] = "murmur2"
    acks: Annotated[
        str, typer.Option("--acks", "-a", metavar="|".join(ACKS), help="Replicas that acknowledge; -1 is all.")
    ] = "all"
    idempotent: Annotated[
        bool | None,
        typer.Option(
            "--idempotent/--no-idempotent", help="Write each record once and in order.", show_default="with --acks all"
        ),
    ] = None
    retries: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Retries of a request.", show_default="for five minutes")
    ] = None
    codec: Annotated[
        str, typer.Option("--codec", "--compression", "-z", metavar="|".join(CODECS), help="Compression of batches.")
    ] = "none"
    batch_size: Annotated[int, typer.Option(metavar="BYTES", min=1, help="Size of a batch.")] = 1_000_000
    linger_ms: Annotated[int, typer.Option(metavar="MS", min=0, help="Wait MS for a batch to fill.")] = 5

    def check(self) -> None:
        check_choice("--partitioner", self.partitioner, PARTITIONERS)

    def settings(self, *, for_ever: bool) -> dict[str, object]:
        """Raises `OptionError` for options that exclude each other."""
        return producer_settings(
            self.acks, self.codec, self.idempotent, self.retries, self.batch_size, self.linger_ms, for_ever=for_ever
        )


_STDIN: Final = SourceOptions()
_TEXT: Final = LineOptions()
_SAFELY: Final = SendOptions()


@with_options
def produce(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.", show_default=False)],
    source: SourceOptions = _STDIN,
    lines: LineOptions = _TEXT,
    sending: SendOptions = _SAFELY,
    brokers: Brokers = DEFAULT_BROKERS,
    json: Annotated[bool, typer.Option("--json", help="Print a summary as a JSON document at the end.")] = False,
) -> int:
    """Send each line as a record and wait until all are acknowledged. Stop at a line that is not a record."""
    sending.check()
    source.check()
    settings = sending.settings(for_ever=source.follow)
    read = lines.reader()
    sender = Sender(brokers.cluster(), topic, settings, sending.partitioner, sending.partition, counts=json)
    run = _LineFeed(sender, read)
    code = FINE
    with _interrupted_by_sigterm(wanted=source.follow):
        try:
            source.feed(run)
        except KeyboardInterrupt:
            if not source.follow:
                sender.discard()
                raise
        except ValueError as error:
            code = fail(error)
        finally:
            run.end()
    if json:
        with Out() as out:
            out.json(sender.document())
    return code


def _typed(text: str, form: str) -> bytes:
    """The bytes of an argument, in a format. Raises `OptionError`."""
    try:
        return parse(text.encode(errors="surrogateescape"), form)
    except ValueError as error:
        raise OptionError(str(error)) from error


def _headers(given: Sequence[str]) -> Iterator[tuple[str, str]]:
    """A header may be given several times."""
    for text in given:
        yield from key_values("--header", [text], shape="NAME=VALUE").items()


@contextmanager
def _interrupted_by_sigterm(*, wanted: bool) -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C, so that the lines read so far are sent."""
    if not wanted:
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _LineFeed:
    """Passes lines of stdin or of files to a sender."""

    def __init__(self, sender: Sender, read: Callable[[bytes], OutgoingRecord]) -> None:
        self._sender = sender
        self._read = read
        self._positions: PositionFile | None = None
        self._sent: dict[str, FilePosition] = {}
        self._now = SystemClock().monotonic
        self._saved_at = self._now()

    def stream(self, stream: Any) -> None:
        """Lines that have arrived are sent before the next read, which may wait."""
        begun: list[bytes] = []
        number = 0
        while part := stream.read1(_READ_BYTES):
            head, newline, tail = part.partition(b"\n")
            begun.append(head)
            if not newline:
                continue
            *whole, rest = tail.split(b"\n")
            for line in (b"".join(begun), *whole):
                number += 1
                self._send(line, f"line {number}")
            begun = [rest] if rest else []
            self._sender.push()
        if begun:
            self._send(b"".join(begun), f"line {number + 1}")

    def files(self, paths: Sequence[str], *, follow: bool, from_end: bool, position_file: str | None) -> None:
        if position_file is not None:
            self._positions = PositionFile(position_file)
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

    def _line(self, line: FileLine, number: int) -> None:
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
        """Save positions after all records before them are acknowledged."""
        self._sender.flush()
        if self._positions is not None and not self._sender.has_ended:
            for path, place in self._sent.items():
                self._positions.delivered(path, place)
            self._positions.save()
        self._saved_at = self._now()

    def end(self) -> None:
        self._save()

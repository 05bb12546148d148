"""The text of a ``.log`` file (and of a KRaft ``.checkpoint``) as Kafka 4.4's DumpLogSegments prints it.

The tool shows damaged data as it is: a batch with a wrong CRC is printed with ``isvalid: false``, followed by its
records. Only bytes that cannot be read as a record end the dump, possibly in the middle of a line.
"""

from __future__ import annotations

import re
import zlib
from typing import Final, NamedTuple

from crc32c import crc32c

from seglog.cli.dump.lax_records import Decoder, increment_sequence, lax_messages, lax_records
from seglog.cli.output import Out
from seglog.core.errors import CorruptBatchError, CorruptError, CorruptRecordError
from seglog.core.fs import File
from seglog.core.progress import progress
from seglog.core.types import MAX_INT32, Buffer
from seglog.core.utf8 import decode_utf8
from seglog.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_BIT,
    CRC_START,
    DELETE_HORIZON_BIT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
)
from seglog.records.java_text import boolean, int64
from seglog.storage.offline.batch_reading import Chunk, read_chunks

_CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_TIMESTAMP_NAMES: Final = ("CreateTime", "LogAppendTime")
_SNAPSHOT_NAME: Final = re.compile(r"(\d{20})-(\d{10})\.checkpoint")


class DumpOptions(NamedTuple):
    """The options of DumpLogSegments.

    ``deep``: a line for each record; ``contents``: with key and value; ``skip_metadata``: with nothing else.
    ``sanity_only``: check indexes as a broker does at its start; ``quiet``: verify indexes and print no entries.
    ``max_message_bytes``: the largest batch that an index entry may point to. ``max_bytes``: of each log.
    """

    deep: bool = False
    contents: bool = False
    skip_metadata: bool = False
    decoder: Decoder | None = None
    sanity_only: bool = False
    quiet: bool = False
    max_message_bytes: int = 5 << 20
    max_bytes: int = MAX_INT32


class LogFindings(NamedTuple):
    """``damage``: batches with a wrong CRC, and one for bytes after the last whole batch; ``gaps``: the offsets on both
    sides of missing ones."""

    damage: int
    gaps: list[tuple[int, int]]


def log_title(name: str) -> str:
    """The first line of a file named ``name``. Raises ValueError unless Kafka names files so."""
    if not name.endswith(".checkpoint"):
        return f"Log starting offset: {base_offset(name)}"
    if name == "bootstrap.checkpoint":
        return "KRaft bootstrap snapshot"
    match = _SNAPSHOT_NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} does not have the name of a KRaft snapshot, <offset>-<epoch>.checkpoint")
    return f"Snapshot end offset: {int(match[1])}, epoch: {int(match[2])}"


def base_offset(name: str) -> int:
    """The number at the start of a segment file's name. Raises ValueError without one."""
    number = name.split(".", maxsplit=1)[0]
    if not number.isdecimal():
        raise ValueError(f"{name}: a segment's file must be named by its base offset, like 00000000000000000000.log")
    return int(number)


def dump_log(file: File, name: str, options: DumpOptions, out: Out) -> LogFindings:
    """Print a log. Raises `CorruptError`, after all text before it, at bytes that Kafka's tool cannot read either."""
    text = _LogText(file, options, out)
    size, position = min(file.size(), options.max_bytes), 0
    with progress(name, size) as advance:
        for chunk in read_chunks(file, 0, size):
            text.write(chunk)
            position = chunk.position + chunk.end
            advance(chunk.end)
    if position < size and options.max_bytes == MAX_INT32:
        out.line(f"Found {size - position} invalid bytes at the end of {name}")
        text.found_damage()
    return LogFindings(text.damage, text.gaps)


def _attribute_texts(attributes: int) -> tuple[str, str | None, str]:
    codec = attributes & CODEC_MASK
    is_transactional, is_control = boolean(attributes & TRANSACTIONAL_BIT), boolean(attributes & CONTROL_BIT)
    return (
        f"isTransactional: {is_transactional} isControl: {is_control} deleteHorizonMs: OptionalLong",
        _CODEC_NAMES[codec] if codec < len(_CODEC_NAMES) else None,
        _TIMESTAMP_NAMES[attributes >> 3 & 1],
    )


_ATTRIBUTE_TEXTS: Final = tuple(map(_attribute_texts, range(256)))
"""Flags, codec (None: unknown) and timestamp type for each low byte of the attributes; Kafka ignores the other byte."""


def _unknown_codec(attributes: int, offset: int) -> CorruptBatchError:
    return CorruptBatchError(f"unknown compression type {attributes & CODEC_MASK}", offset=offset)


class _LogText:
    """Writes the text of one log, chunk by chunk. A batch may end in the middle of a line."""

    def __init__(self, file: File, options: DumpOptions, out: Out) -> None:
        self._file = file
        self._options = options
        self._out = out
        self._chunk = Chunk(0, b"", [])
        self._parts: list[str] = []
        self._next: int | None = None
        self.gaps: list[tuple[int, int]] = []
        self.damage = 0

    def found_damage(self) -> None:
        self.damage += 1

    def write(self, chunk: Chunk) -> None:
        self._chunk = chunk
        start = 0
        try:
            for start, size, _, magic in chunk.entries:
                following = start + size
                if magic in (0, 1):
                    self._legacy_batch(start, following)
                else:
                    self._batch(start, following)
        except CorruptError as error:
            raise type(error)(
                error.reason, position=chunk.position + start, file=self._file.path, offset=error.offset
            ) from error
        finally:
            self._out.write("".join(self._parts))
            self._parts.clear()

    def _batch(self, start: int, end: int) -> None:
        header = self._header(start, end)
        (
            base,
            _,
            epoch,
            magic,
            crc,
            attributes,
            delta,
            base_time,
            max_time,
            producer,
            producer_epoch,
            sequence,
            count,
        ) = header
        if magic < 0:
            self._parts.append(f"offset: {base}")
            raise CorruptBatchError(f"magic is {magic}", offset=base)
        flags, codec, time_name = _ATTRIBUTE_TEXTS[attributes & 0xFF]
        horizon = f"[{base_time}]" if attributes & DELETE_HORIZON_BIT else ".empty"
        last_sequence = -1 if sequence == -1 else increment_sequence(sequence, delta)
        text = (
            f"baseOffset: {base} lastOffset: {int64(base + delta)} count: {count} baseSequence: {sequence} "
            f"lastSequence: {last_sequence} producerId: {producer} producerEpoch: {producer_epoch} "
            f"partitionLeaderEpoch: {epoch} {flags}{horizon}"
        )
        if codec is None:
            self._parts.append(text)
            raise _unknown_codec(attributes, base)
        is_valid = (
            end - start >= BATCH_OVERHEAD and crc32c(memoryview(self._chunk.data)[start + CRC_START : end]) == crc
        )
        self.damage += not is_valid
        self._parts.append(
            f"{text} position: {self._chunk.position + start} {time_name}: {max_time} size: {end - start} "
            f"magic: {magic} compresscodec: {codec} crc: {crc} isvalid: {'true' if is_valid else 'false'}\n"
        )
        if self._options.deep:
            if end - start < BATCH_OVERHEAD:
                raise CorruptRecordError(f"a batch of {end - start} bytes has no records", offset=base)
            self._records(start, end, header, time_name)

    def _header(self, start: int, end: int) -> BatchHeader:
        """If the batch is too small for a header, the bytes after it complete the header, as in Kafka."""
        data = self._chunk.data
        if end - start >= BATCH_OVERHEAD:
            return read_header(data, start)
        return read_header(self._file.pread(BATCH_OVERHEAD, self._chunk.position + start))

    def _records(self, start: int, end: int, header: BatchHeader, time_name: str) -> None:
        append, options, is_control = self._parts.append, self._options, header.is_control
        contents = options.contents and not is_control
        is_plain = contents and options.decoder is None and not options.skip_metadata
        for offset, timestamp, sequence, key, value, header_keys in lax_records(self._chunk.data, start, end, header):
            if offset != self._next:
                self._note_gap(offset)
            self._next = offset + 1
            if not options.skip_metadata:
                append(
                    f"| offset: {offset} {time_name}: {timestamp} keySize: {-1 if key is None else len(key)} "
                    f"valueSize: {-1 if value is None else len(value)} sequence: {sequence} "
                    f"headerKeys: [{','.join(header_keys) if header_keys else ''}]"
                )
            if is_plain:  # in place: a call would take a tenth of the time
                append(
                    f"{'' if key is None else f' key: {decode_utf8(key)}'}"
                    f"{'' if value is None else f' payload: {decode_utf8(value)}'}\n"
                )
                continue
            if is_control and not options.skip_metadata:
                append(_control_text(offset, key, value))
            if contents:
                append(self._contents(key, value, offset))
            append("\n")

    def _legacy_batch(self, start: int, end: int) -> None:
        data = self._chunk.data
        offset = int.from_bytes(data[start : start + 8], signed=True)
        magic, attributes = data[start + MAGIC_POSITION], data[start + MAGIC_POSITION + 1]
        self._parts.append(f"offset: {offset}")
        codec = _ATTRIBUTE_TEXTS[attributes][1]
        if codec is None:
            raise _unknown_codec(attributes, offset)
        timestamp, time_name = -1, "NoTimestampType"
        if magic:
            timestamp = int.from_bytes(data[start + 18 : start + 26], signed=True)
            time_name = _TIMESTAMP_NAMES[attributes >> 3 & 1]
        crc = int.from_bytes(data[start + LOG_OVERHEAD : start + MAGIC_POSITION])
        is_valid = crc == zlib.crc32(memoryview(data)[start + MAGIC_POSITION : end])
        self.damage += not is_valid
        self._parts.append(
            f" position: {self._chunk.position + start} {time_name}: {timestamp} size: {end - start} magic: {magic} "
            f"compresscodec: {codec} crc: {crc} isvalid: {boolean(is_valid)}\n"
        )
        if not self._options.deep:
            return
        for message in lax_messages(data, start, end):
            if message.offset != self._next:
                self._note_gap(message.offset)
            self._next = message.offset + 1
            if not self._options.skip_metadata:
                self._parts.append(
                    f"| offset: {message.offset} {time_name}: {message.timestamp} keySize: {message.key_size} "
                    f"valueSize: {message.value_size} isValid: {boolean(message.is_valid)} crc: {message.crc}"
                )
            if self._options.contents:
                self._parts.append(self._contents(message.key, message.value, message.offset))
            self._parts.append("\n")

    def _note_gap(self, offset: int) -> None:
        if self._next is not None:
            self.gaps.append((self._next - 1, offset))

    def _contents(self, key: Buffer | None, value: Buffer | None, offset: int) -> str:
        decoder = self._options.decoder
        if decoder is None:
            text = "" if key is None else f" key: {decode_utf8(key)}"
            text += "" if value is None else f" payload: {decode_utf8(value)}"
        else:
            key_text, value_text = decoder(key, value, offset)
            text = "" if key_text is None else f" key: {key_text}"
            text += "" if value_text is None else f" payload: {value_text}"
        return f"|{text}" if text and self._options.skip_metadata else text


def _control_text(offset: int, key: bytes | None, value: bytes | None) -> str:
    """The text of a control record: the end of a transaction, or a message of KRaft."""
    if key is None or len(key) < 4 or key[0] & 0x80:
        raise CorruptRecordError("a control record without a version and a type", offset=offset)
    kind = int.from_bytes(key[2:4], signed=True)
    if kind in (0, 1):
        if value is None or len(value) < 6 or value[0] & 0x80:
            raise CorruptRecordError("a transaction marker without a coordinator epoch", offset=offset)
        epoch = int.from_bytes(value[2:6], signed=True)
        return f" endTxnMarker: {'COMMIT' if kind else 'ABORT'} coordinatorEpoch: {epoch}"
    if 2 <= kind <= 6:
        from seglog.cli.dump.decoders import control_text

        return control_text(kind, value, offset)
    return f" controlType: UNKNOWN({kind})"

"""Every error that seglog raises on purpose.

A class knows its Kafka error code, if the protocol has one, and whether a client may retry.

The codes are those of Kafka's ``Errors.java``; -1 (UNKNOWN_SERVER_ERROR) stands for what has no code of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from seglog.core.error_codes import ErrorCode


class SeglogError(Exception):
    """Root of all errors of this project."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False


# Bytes that are not what they should be.


class CorruptError(SeglogError):
    """Bytes that cannot be what they claim to be.

    ``position`` counts bytes from the start of ``file`` (or of the buffer, where there is no file), -1 where unknown;
    ``offset`` is the log offset nearest to the damage, None where unknown.
    """

    code = ErrorCode.CORRUPT_MESSAGE
    retriable = True

    def __init__(self, reason: str, *, position: int = -1, file: str | None = None, offset: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.file = file
        self.offset = offset

    def at(self, *, file: str | None = None, base: int = 0, offset: int | None = None) -> CorruptError:
        """The same error seen from further out: named by its file, its position counted from ``base``."""
        return type(self)(
            self.reason,
            position=self.position + base if self.position >= 0 else (base or -1),
            file=file or self.file,
            offset=self.offset if self.offset is not None else offset,
        )

    def __str__(self) -> str:
        where = [self.file] if self.file else []
        if self.position >= 0:
            where.append(f"position {self.position}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{', '.join(where)}: {self.reason}" if where else self.reason


class CorruptBatchError(CorruptError):
    """A batch whose header, CRC or records are wrong."""


class CorruptRecordError(CorruptError):
    """A batch with a right CRC whose records cannot be decoded."""


class CorruptIndexError(CorruptError):
    """An ``.index``, ``.timeindex`` or ``.txnindex`` that cannot belong to its segment."""


class CorruptSnapshotError(CorruptError):
    """A producer snapshot with a wrong version, CRC or size."""


class CorruptCheckpointError(CorruptError):
    """A checkpoint, ``meta.properties`` or ``partition.metadata`` that cannot be read."""


class TooLargeError(CorruptError):
    """A claimed or decompressed size over the limit; the limit is named in the reason."""

    code = ErrorCode.MESSAGE_TOO_LARGE
    retriable = False


class UnsupportedFormatError(SeglogError):
    """A format or codec that Kafka knows and this operation does not take, such as zstd in a message of version 1."""

    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class MissingExtraError(SeglogError, ImportError):
    """An optional dependency is not installed; the message has the pip command that brings it."""


# A log refuses an append.


class AppendError(SeglogError):
    """An append was refused; nothing was written.

    ``records``: which records of the batch, counted from 0, and why in Kafka's words (KIP-467), where it is for them;
    `PARTITION` in a text stands for the partition's name.
    """

    PARTITION: ClassVar[str] = "{partition}"

    def __init__(self, message: str, records: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(message)
        self.records = records


class InvalidRecordError(AppendError):
    code = ErrorCode.INVALID_RECORD


class RecordTooLargeError(AppendError):
    code = ErrorCode.MESSAGE_TOO_LARGE


class RecordListTooLargeError(AppendError):
    code = ErrorCode.RECORD_LIST_TOO_LARGE


class InvalidTimestampError(AppendError):
    code = ErrorCode.INVALID_TIMESTAMP


class InvalidProducerEpochError(AppendError):
    code = ErrorCode.INVALID_PRODUCER_EPOCH


class OutOfOrderSequenceError(AppendError):
    code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


class TransactionCoordinatorFencedError(AppendError):
    code = ErrorCode.THROTTLING_QUOTA_EXCEEDED


class InvalidTransactionStateError(AppendError):
    code = ErrorCode.INVALID_TXN_STATE


class UnexpectedAppendOffsetError(AppendError):
    """A follower's append does not continue its log."""


class UnsupportedCompressionTypeError(AppendError):
    code = ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


# A log refuses a read or another operation.


class OffsetOutOfRangeError(SeglogError):
    code = ErrorCode.OFFSET_OUT_OF_RANGE


class InvalidReadError(SeglogError, ValueError):
    """A read that means nothing: a start that is no offset and no time, an isolation level that does not exist."""


class DataLossError(OffsetOutOfRangeError):
    """Records that a query was to read are no longer there. ``failOnDataLoss=false`` goes on without them."""


class FencedLeaderEpochError(SeglogError):
    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True


class UnknownLeaderEpochError(SeglogError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True


class NotLeaderError(SeglogError):
    """Another broker leads the partition, or nobody: clients ask for metadata and come again there."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True


class CutRefusedError(SeglogError):
    """A leader's log ends below what this replica knows to be committed, and no unclean election explains it."""


class NotEnoughReplicasError(SeglogError):
    """Fewer replicas in sync than ``min.insync.replicas``; nothing was written."""

    code = ErrorCode.NOT_ENOUGH_REPLICAS
    retriable = True


class InvalidTopicError(SeglogError, ValueError):
    code = ErrorCode.INVALID_TOPIC_EXCEPTION


class TopicExistsError(SeglogError):
    code = ErrorCode.TOPIC_ALREADY_EXISTS


class UnknownTopicError(SeglogError):
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    retriable = True


class InvalidConfigError(SeglogError, ValueError):
    """An unknown configuration key or a value outside of its range; both are named."""

    code = ErrorCode.INVALID_CONFIG


class LogClosedError(SeglogError):
    """The log or its directory was closed, or its partition was deleted."""


class LogDirOfflineError(SeglogError):
    """A write or fsync failed earlier; the directory is out of use until it is opened anew (KIP-112)."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class LogDirFullError(SeglogError):
    """The disk of a log directory is full: nothing was written, and it may be tried again when there is room.

    KAFKA_STORAGE_ERROR is the code that clients retry, after they have asked who leads now.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class TooManyFilesError(SeglogError):
    """This process may not open the files of another log (``ulimit -n``). A log that tried would take the whole
    directory out of use."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class LogDirInUseError(SeglogError):
    """Another process, ours or a Kafka broker, has the directory open."""


class InvalidLogDirError(SeglogError):
    """The directory is not a log directory that may be opened; the message says why."""


class DamagedPartitionError(SeglogError):
    """A partition has damage below its recovery point and is refused until it is repaired (`seglog repair`)."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class AdoptError(SeglogError):
    """The staged files of a job cannot be adopted; the message says why. Nothing of the job is visible."""


# Requests.


class InvalidRequestError(SeglogError):
    """A request that cannot be what it claims to be: its bytes do not make the message, or its fields exclude each
    other."""

    code = ErrorCode.INVALID_REQUEST


class RequestFailedError(SeglogError):
    """A broker that we are the client of refused, or did not answer; the message names it, or topic, group or key."""

"""Every error that seglog raises on purpose.

A class has its Kafka error code (``Errors.java``), or UNKNOWN_SERVER_ERROR (-1) if Kafka has none, and knows whether a
client may retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from seglog.core.error_codes import ErrorCode


class SeglogError(Exception):
    """Base class of all errors of seglog."""

    code: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    retriable: ClassVar[bool] = False


# Bytes that are not what they should be.


class CorruptError(SeglogError):
    """Bytes that cannot be what they claim to be.

    ``position`` counts bytes from the start of ``file``, or of the buffer without a file; -1 is unknown. ``offset`` is
    the log offset nearest to the damage; None is unknown.
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
        """The same error in a larger context: with its file, and its position counted from ``base``."""
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
    """A batch with a valid CRC whose records cannot be decoded."""


class CorruptIndexError(CorruptError):
    """An ``.index``, ``.timeindex`` or ``.txnindex`` that cannot belong to its segment."""


class CorruptSnapshotError(CorruptError):
    """A producer snapshot with a wrong version, CRC or size."""


class CorruptCheckpointError(CorruptError):
    """A checkpoint, ``meta.properties`` or ``partition.metadata`` that cannot be read."""


class TooLargeError(CorruptError):
    """A claimed or decompressed size exceeds the limit, which the reason names."""

    code = ErrorCode.MESSAGE_TOO_LARGE
    retriable = False


class UndecodableValueError(SeglogError):
    """A key or a value that cannot be decoded with its schema; the message names topic, partition, offset and why."""


class TimestampRangeError(SeglogError):
    """A record's timestamp, which should be milliseconds, is out of range; the message names topic, partition, offset
    and the number."""

    code = ErrorCode.INVALID_TIMESTAMP


class UnsupportedFormatError(SeglogError):
    """A format or codec that Kafka knows but this operation does not allow, such as zstd in a message of version 1."""

    code = ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


class MissingExtraError(SeglogError, ImportError):
    """An optional dependency is not installed; the message has the pip command for it."""


# A log refuses an append.


class AppendError(SeglogError):
    """An append was refused; nothing was written.

    ``records`` has the index of each refused record and Kafka's reason (KIP-467); `PARTITION` in a reason stands for
    the partition's name.
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
    code = ErrorCode.TRANSACTION_COORDINATOR_FENCED


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
    """A read with an invalid start or isolation level."""

    code = ErrorCode.INVALID_REQUEST


class DataLossError(OffsetOutOfRangeError):
    """Records that a query should read are gone. ``failOnDataLoss=false`` continues without them."""


class FencedLeaderEpochError(SeglogError):
    code = ErrorCode.FENCED_LEADER_EPOCH
    retriable = True


class UnknownLeaderEpochError(SeglogError):
    code = ErrorCode.UNKNOWN_LEADER_EPOCH
    retriable = True


class NotLeaderError(SeglogError):
    """This broker does not lead the partition. Clients refresh their metadata and retry."""

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True


class CutRefusedError(SeglogError):
    """A leader's log ends below this replica's high watermark, and no unclean election explains it."""


class NotEnoughReplicasError(SeglogError):
    """Fewer replicas are in sync than ``min.insync.replicas``; nothing was written."""

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
    """An unknown configuration key, or a value out of its range. The message names both."""

    code = ErrorCode.INVALID_CONFIG


class LogClosedError(SeglogError):
    """The log or its directory was closed, or its partition deleted.

    Clients refresh their metadata, which says whether there is such a partition, and retry.
    """

    code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    retriable = True


class LogDirOfflineError(SeglogError):
    """A write or fsync failed earlier; the directory is out of use until it is opened again (KIP-112)."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class LogDirFullError(SeglogError):
    """The disk of a log directory is full. Nothing was written, and a retry succeeds once there is room.

    Clients retry KAFKA_STORAGE_ERROR after they have refreshed their metadata.
    """

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class TooManyFilesError(SeglogError):
    """The process must not open the files of another log (``ulimit -n``): a failed open would take the whole directory
    out of use."""

    code = ErrorCode.KAFKA_STORAGE_ERROR
    retriable = True


class LogDirInUseError(SeglogError):
    """Another process, seglog or a Kafka broker, has the directory open."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class InvalidLogDirError(SeglogError):
    """The directory may not be opened as a log directory; the message says why."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class DamagedPartitionError(SeglogError):
    """A partition is damaged below its recovery point. It is refused until it is repaired (`seglog repair`)."""

    code = ErrorCode.KAFKA_STORAGE_ERROR


class UnknownTableError(SeglogError):
    """There is no table at a path, or it is none of ours."""


class TableInUseError(SeglogError):
    """Another job writes to the table, or has changed it first. Nothing was added, and a later run adds it."""


class CatalogError(SeglogError):
    """The catalog of a table refuses us, is away, or did not say whether it has committed. The next run asks it."""


class AdoptError(SeglogError):
    """The staged files of a job cannot be adopted; the message says why. No record of the job becomes visible."""


# Requests.


class InvalidRequestError(SeglogError):
    """A request whose bytes cannot be decoded, or whose fields contradict each other."""

    code = ErrorCode.INVALID_REQUEST


class RequestFailedError(SeglogError):
    """A broker refused our request or did not answer. The message names the broker, topic, group or key."""


class BrokerUnavailableError(RequestFailedError):
    """A broker cannot be reached, closed the connection, or is silent. Another broker may answer."""

    retriable = True


class UnknownPartitionError(RequestFailedError):
    """A partition that the brokers had named does not exist any more."""

    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class AuthenticationFailedError(RequestFailedError):
    """Broker and client do not accept each other: by a password, token or certificate. The next try would fail too."""

    code = ErrorCode.SASL_AUTHENTICATION_FAILED


class ProducerFencedError(RequestFailedError):
    """A producer may no longer write: another one has its transactional id, or its transaction has timed out."""

    code = ErrorCode.PRODUCER_FENCED

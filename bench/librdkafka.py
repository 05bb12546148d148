"""librdkafka without Python around each record: the library of confluent-kafka's wheel, called for thousands at once.

What ``rdkafka_performance``, its own tool, does, in the same calls: ``rd_kafka_produce_batch`` with values that are not
copied, and ``rd_kafka_consume_callback_queue``, whose callback is a function of the library's own that only looks at
the record. In Python a record costs a microsecond or more, which would be measured in the place of a broker.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import cache
from importlib.metadata import files
from typing import Any, Final

from tests.kit.waiting import wait_until

_PRODUCER, _CONSUMER = 0, 1
_BLOCK: Final = 0x4
_BEGINNING: Final = -2
_TIMEOUT_MS: Final = 300_000
_AT_ONCE: Final = 10_000
_ERROR_SIZE: Final = 512
_WARNINGS: Final = "4"


class _Message(ctypes.Structure):
    """``rd_kafka_message_t``."""

    _fields_ = (
        ("err", c_int),
        ("topic", c_void_p),
        ("partition", c_int32),
        ("payload", c_void_p),
        ("len", c_size_t),
        ("key", c_void_p),
        ("key_len", c_size_t),
        ("offset", c_int64),
        ("private", c_void_p),
    )


@cache
def _library() -> ctypes.CDLL:
    path = next(file.locate() for file in files("confluent-kafka") or () if "librdkafka" in file.name)
    library = ctypes.CDLL(str(path))
    for name, result, arguments in (
        ("conf_new", c_void_p, ()),
        ("conf_set", c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
        ("new", c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
        ("destroy", None, (c_void_p,)),
        ("topic_new", c_void_p, (c_void_p, c_char_p, c_void_p)),
        ("topic_destroy", None, (c_void_p,)),
        ("produce_batch", c_int, (c_void_p, c_int32, c_int, POINTER(_Message), c_int)),
        ("flush", c_int, (c_void_p, c_int)),
        ("queue_new", c_void_p, (c_void_p,)),
        ("queue_destroy", None, (c_void_p,)),
        ("consume_start_queue", c_int, (c_void_p, c_int32, c_int64, c_void_p)),
        ("consume_stop", c_int, (c_void_p, c_int32)),
        ("consume_callback_queue", c_int, (c_void_p, c_int, c_void_p, c_void_p)),
        (
            "query_watermark_offsets",
            c_int,
            (c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int),
        ),
    ):
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def version() -> str:
    function = _library().rd_kafka_version_str
    function.restype = c_char_p
    return str(function().decode())


@contextmanager
def _client(kind: int, bootstrap: str, settings: Mapping[str, str]) -> Iterator[int]:
    library = _library()
    conf = library.rd_kafka_conf_new()
    error = ctypes.create_string_buffer(_ERROR_SIZE)
    for key, value in {"bootstrap.servers": bootstrap, "log_level": _WARNINGS, **settings}.items():
        if library.rd_kafka_conf_set(conf, key.encode(), value.encode(), error, _ERROR_SIZE):
            raise ValueError(error.value.decode())
    handle = library.rd_kafka_new(kind, conf, error, _ERROR_SIZE)
    if not handle:
        raise ValueError(error.value.decode())
    try:
        yield handle
    finally:
        library.rd_kafka_destroy(handle)


@contextmanager
def _topic(handle: int, name: str) -> Iterator[int]:
    library = _library()
    topic = library.rd_kafka_topic_new(handle, name.encode(), None)
    try:
        yield topic
    finally:
        library.rd_kafka_topic_destroy(topic)


def produce(
    bootstrap: str, topic: str, count: int, size: int, settings: Mapping[str, str], *, partitions: Sequence[int] = (0,)
) -> float:
    """Send ``count`` records of ``size`` bytes to each partition; seconds from the first call to the last
    acknowledgement."""
    library = _library()
    values = ctypes.create_string_buffer(random.Random(1).randbytes(size + _AT_ONCE), size + _AT_ONCE)
    start = ctypes.addressof(values)
    messages = (_Message * min(_AT_ONCE, count))()
    for at, message in enumerate(messages):
        message.payload, message.len = start + at, size
    with _client(_PRODUCER, bootstrap, settings) as handle, _topic(handle, topic) as opened:
        before = _ends(handle, topic, partitions)
        began = time.perf_counter()
        for partition in partitions:
            left = count
            while left:
                taken = library.rd_kafka_produce_batch(opened, partition, _BLOCK, messages, min(left, len(messages)))
                if not taken:
                    raise RuntimeError(f"librdkafka took none of {left} records")
                left -= taken
        if library.rd_kafka_flush(handle, _TIMEOUT_MS):
            raise RuntimeError(f"{bootstrap} has not acknowledged all of {count} records in time")
        took = time.perf_counter() - began
        written = _ends(handle, topic, partitions) - before
    if written != count * len(partitions):
        raise RuntimeError(
            f"{bootstrap} took {written} records, {count} of each of {len(partitions)} partitions were sent"
        )
    return took


def consume(
    bootstrap: str, topic: str, count: int, settings: Mapping[str, str], *, partitions: Sequence[int] = (0,)
) -> float:
    """Read ``count`` records of each partition from the beginning; seconds from the first fetch, not from the
    connection."""
    library = _library()
    look: Any = library.rd_kafka_message_timestamp
    callback = ctypes.cast(look, c_void_p)
    kind = c_int()
    with _client(_CONSUMER, bootstrap, settings) as handle, _topic(handle, topic) as opened:
        _ends(handle, topic, partitions)
        queue = library.rd_kafka_queue_new(handle)
        began = time.perf_counter()
        for partition in partitions:
            library.rd_kafka_consume_start_queue(opened, partition, _BEGINNING, queue)
        left = count * len(partitions)
        while left > 0:
            got = library.rd_kafka_consume_callback_queue(queue, _TIMEOUT_MS, callback, byref(kind))
            if got <= 0:
                raise RuntimeError(f"{bootstrap} still owed {left} records when no more came in time")
            left -= got
        took = time.perf_counter() - began
        for partition in partitions:
            library.rd_kafka_consume_stop(opened, partition)
        library.rd_kafka_queue_destroy(queue)
    return took


def _ends(handle: int, topic: str, partitions: Sequence[int]) -> int:
    """The sum of the partitions' ends; by it the client has its connection, and the topic's metadata."""
    return sum(_end(handle, topic, partition) for partition in partitions)


def _end(handle: int, topic: str, partition: int) -> int:
    low, high = c_int64(), c_int64()
    ask: Callable[..., int] = _library().rd_kafka_query_watermark_offsets
    error = 0

    def is_told() -> bool:
        nonlocal error
        error = ask(handle, topic.encode(), partition, byref(low), byref(high), _TIMEOUT_MS)
        return error == 0

    # A new partition may have no leader yet: Kafka needs seconds for a thousand of them.
    wait_until(is_told, lambda: f"the end of {topic}-{partition}: error {error}", _TIMEOUT_MS / 1000)
    return high.value

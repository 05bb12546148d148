"""Batches of records as sources read them, and values with the id of a registered schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from seglog.core.fs import OsFs
from seglog.records.columns import HEADERS
from seglog.values.reader_schema import ReadFormats, resolve_formats
from seglog.values.registry import Registry
from seglog.values.value_options import RegistryConfig, parse_value_options
from tests.values.avro.test_decoder import encode


def batch_of(values: Sequence[bytes | None], *, keys: Sequence[bytes | None] | None = None, headers: Any = None) -> Any:
    """Records of topic ``t``, partition 3, from offset 10 on."""
    size = len(values)
    arrays = {
        "key": pa.array(keys or [None] * size, pa.binary()),
        "value": pa.array(values, pa.binary()),
        "topic": pa.array(["t"] * size, pa.string()),
        "partition": pa.array([3] * size, pa.int32()),
        "offset": pa.array(range(10, 10 + size), pa.int64()),
        "timestamp": pa.array([0] * size, pa.timestamp("us", tz="UTC")),
        "headers": pa.array(headers or [None] * size, HEADERS),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


def formats(topics: Sequence[str] = ("t",), **options: str) -> ReadFormats:
    """Options with ``_`` for ``.``."""
    given = {name.replace("_", "."): text for name, text in options.items()}
    return resolve_formats(parse_value_options(given), lambda: topics, OsFs())


def register(url: str, subject: str, schema: Any) -> int:
    """The id of an Avro schema in the registry at ``url``."""
    return Registry(RegistryConfig(urls=(url,))).register(subject, "AVRO", json.dumps(schema))


def framed(number: int, schema: Any, value: Any) -> bytes:
    """A value in Avro behind the id of its schema."""
    return b"\0" + number.to_bytes(4, "big") + encode(schema, value)

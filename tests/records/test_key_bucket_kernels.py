"""A key's bucket is Iceberg's, as pyiceberg has it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import BinaryType

from seglog.records.column_encoding import byte_column
from seglog.records.intrinsics import I64
from seglog.records.key_bucket_kernels import assign_key_buckets, hash_keys


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1), st.integers(1, 4096))
def test_buckets_are_those_of_iceberg(keys: list[bytes], count: int) -> None:
    column = byte_column("key", pa.array(keys, pa.binary()), len(keys))
    buckets: I64 = np.empty(len(keys), np.int64)
    assign_key_buckets(column.data, column.spans, count, buckets)
    oracle = BucketTransform[bytes](count).transform(BinaryType())
    assert buckets.tolist() == [oracle(key) for key in keys]


def test_an_empty_key_is_in_the_first_bucket() -> None:
    """Iceberg's specification: the hash of no bytes is 0. (pyiceberg 0.12 returns None.)"""
    column = byte_column("key", pa.array([b""], pa.binary()), 1)
    buckets: I64 = np.full(1, -1, np.int64)
    assign_key_buckets(column.data, column.spans, 16, buckets)
    assert buckets.tolist() == [0]


@given(st.lists(st.binary(max_size=20), min_size=1))
def test_hashes_are_equal_where_keys_are(keys: list[bytes]) -> None:
    column = byte_column("key", pa.array(keys, pa.binary()), len(keys))
    hashes: I64 = np.empty(len(keys), np.int64)
    hash_keys(column.data, column.spans, 1, 2, hashes)
    assert len(set(hashes.tolist())) == len(set(keys))

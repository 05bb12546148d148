"""Primitives of the compiled loops: unaligned big-endian loads and stores, memcpy, CRCs at the CPU's speed.

These functions check no bounds: `seglog.records.batch_kernels` compares every length with the bytes that are left.
Indexes are never negative (numba's own indexing would pay for Python's wrap-around).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils, config
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

from seglog.core.numba_cache import choose_cache_directory, numba_cache

U8 = npt.NDArray[np.uint8]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]
_F = TypeVar("_F", bound=Callable[..., Any])
as_int: Callable[[Any], int] = cast(Callable[[Any], int], np.int64)
"""Makes a signed 64-bit integer of any number in a kernel."""

_cache_directories: dict[frozenset[str], str] = {}


def _sources(function: Callable[..., Any], found: set[str]) -> frozenset[str]:
    """The files of which ``function`` is made: its own, and those of the compiled functions that its module knows."""
    if function.__code__.co_filename not in found:
        found.add(function.__code__.co_filename)
        for value in function.__globals__.values():
            if isinstance(value, Dispatcher):
                _sources(value.py_func, found)
    return frozenset(found)


def kernel(function: _F) -> _F:
    """Compile at the first call, without the GIL, and keep the result on disk as long as its sources stay the same."""
    sources = _sources(function, {__file__})
    if sources not in _cache_directories:
        _cache_directories[sources] = choose_cache_directory(sources)
    with numba_cache(_cache_directories[sources]):
        return njit(nogil=True, cache=True)(function)


def inlined(function: _F) -> _F:
    """A part of kernels: compiled into each caller."""
    return njit(nogil=True)(function)


_BYTE: Final = ir.IntType(8)
_WORD: Final = ir.IntType(64)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any, element: ir.Type) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    address = builder.gep(builder.bitcast(data, _BYTE.as_pointer()), [index])
    return builder.bitcast(address, element.as_pointer())


def _load(bits: int, *, signed: bool = True, big_endian: bool = True) -> Callable[[U8, int], int]:
    """``load(array, index)``: the integer that begins at that byte, widened to 64 bits."""
    element = ir.IntType(bits)
    result = types.int64 if signed else types.uint64

    def load(_typing: Any, array: Any, _index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = builder.load(_pointer(context, builder, signature.args[0], args[0], args[1], element), align=1)
            if big_endian and bits > 8:
                value = builder.bswap(value)
            if bits == 64:
                return value
            return builder.sext(value, _WORD) if signed else builder.zext(value, _WORD)

        return result(array, types.int64), generate

    made: Callable[[U8, int], int] = intrinsic(load)
    return made


def _store(bits: int) -> Callable[[U8, int, int], None]:
    """``store(array, index, value)``: the low bits of ``value``, big-endian, from that byte on."""
    element = ir.IntType(bits)

    def store(_typing: Any, array: Any, _index: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            value = args[2] if bits == 64 else builder.trunc(args[2], element)
            if bits > 8:
                value = builder.bswap(value)
            builder.store(value, _pointer(context, builder, signature.args[0], args[0], args[1], element), align=1)
            return context.get_dummy_value()

        return types.void(array, types.int64, types.int64), generate

    made: Callable[[U8, int, int], None] = intrinsic(store)
    return made


def _copy(_typing: Any, target: Any, _at: Any, source: Any, _position: Any, _length: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        to = _pointer(context, builder, signature.args[0], args[0], args[1], _BYTE)
        start = _pointer(context, builder, signature.args[2], args[2], args[3], _BYTE)
        cgutils.raw_memcpy(builder, to, start, args[4], 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


byte_at = _load(8, signed=False)
int8_at = _load(8)
int16_at = _load(16)
int32_at = _load(32)
uint32_at = _load(32, signed=False)
int64_at = _load(64)
_word_at = _load(64, signed=False, big_endian=False)
int32_le_at = _load(32, big_endian=False)
int64_le_at = _load(64, big_endian=False)
put8 = _store(8)
put16 = _store(16)
put32 = _store(32)
put64 = _store(64)
copy: Callable[[U8, int, U8, int, int], None] = intrinsic(_copy)
"""``copy(target, at, source, position, length)``: memcpy; the two must not overlap."""


def _has_crc_instruction() -> bool:
    """Whether the CPU that numba compiles for has SSE 4.2's ``crc32``. A CPU that the user set must name it."""
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return "+crc32" in (config.CPU_FEATURES or "").split(",")
    features = binding.get_host_cpu_features()
    return binding.get_default_triple().startswith("x86_64") and bool(features.get("crc32", features.get("sse4.2")))


def _byte_table(polynomial: int) -> U32:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(polynomial), table >> 1).astype(np.uint32)
    return table


def _slicing_tables(polynomial: int) -> U32:
    """[8, 256]: the change of the CRC by a byte that k more bytes follow ("slicing-by-8")."""
    tables = np.empty((8, 256), np.uint32)
    tables[0] = _byte_table(polynomial)
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 255]
    return tables


def _zeros_table(byte_table: U32, log2_bytes: int) -> U32:
    """[4, 256]: each byte of a CRC after ``2 ** log2_bytes`` zero bytes; XOR the four."""

    def apply(table: U32, crcs: U32) -> U32:
        parts: U32 = table[0][crcs & 255] ^ table[1][(crcs >> 8) & 255]
        parts ^= table[2][(crcs >> 16) & 255] ^ table[3][crcs >> 24]
        return parts

    one = [np.arange(256, dtype=np.uint32) << np.uint32(8 * k) for k in range(4)]
    table: U32 = np.stack([(crcs >> 8) ^ byte_table[crcs & 255] for crcs in one])
    for _ in range(log2_bytes):
        table = np.stack([apply(table, table[k]) for k in range(4)])
    return table


_CRC32C: Final = _slicing_tables(0x82F63B78)
_CRC32: Final = _slicing_tables(0xEDB88320)
_LONG: Final = 1024
_SHORT: Final = 256
_AFTER_LONG: Final = _zeros_table(_CRC32C[0], 10)
_AFTER_SHORT: Final = _zeros_table(_CRC32C[0], 8)
_BYTE_MASK: Final = np.uint64(255)
_ALL: Final = np.uint64(0xFFFFFFFF)
_U = np.uint64


@inlined
def _sliced(tables: U32, crc: Any, data: U8, start: int, end: int) -> Any:
    while end - start >= 8:
        word = _word_at(data, start) ^ crc
        crc = _U(
            tables[7, word & _BYTE_MASK]
            ^ tables[6, (word >> _U(8)) & _BYTE_MASK]
            ^ tables[5, (word >> _U(16)) & _BYTE_MASK]
            ^ tables[4, (word >> _U(24)) & _BYTE_MASK]
            ^ tables[3, (word >> _U(32)) & _BYTE_MASK]
            ^ tables[2, (word >> _U(40)) & _BYTE_MASK]
            ^ tables[1, (word >> _U(48)) & _BYTE_MASK]
            ^ tables[0, word >> _U(56)]
        )
        start += 8
    while start < end:
        crc = _U(tables[0, (crc ^ _U(byte_at(data, start))) & _BYTE_MASK]) ^ (crc >> _U(8))
        start += 1
    return crc


def _crc_step(_typing: Any, _crc: Any, _word: Any) -> Any:
    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        function_type = ir.FunctionType(_WORD, [_WORD, _WORD])
        name = "llvm.x86.sse42.crc32.64.64"
        return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)

    return types.uint64(types.uint64, types.uint64), generate


_step: Callable[[Any, Any], Any] = intrinsic(_crc_step)


@inlined
def _shifted(table: U32, crc: Any) -> Any:
    return _U(
        table[0, crc & _BYTE_MASK]
        ^ table[1, (crc >> _U(8)) & _BYTE_MASK]
        ^ table[2, (crc >> _U(16)) & _BYTE_MASK]
        ^ table[3, crc >> _U(24)]
    )


@inlined
def _interleaved(table: U32, block: int, crc: Any, data: U8, start: int) -> Any:
    """Three neighbouring blocks at once: the instruction takes 3 cycles, and one can start in each."""
    second = _U(0)
    third = _U(0)
    for position in range(start, start + block, 8):
        crc = _step(crc, _word_at(data, position))
        second = _step(second, _word_at(data, position + block))
        third = _step(third, _word_at(data, position + 2 * block))
    return _shifted(table, _shifted(table, crc) ^ second) ^ third


def _crc32c_by_instruction(data: U8, start: int, end: int) -> int:
    crc = _ALL
    while end - start >= 3 * _LONG:
        crc = _interleaved(_AFTER_LONG, _LONG, crc, data, start)
        start += 3 * _LONG
    while end - start >= 3 * _SHORT:
        crc = _interleaved(_AFTER_SHORT, _SHORT, crc, data, start)
        start += 3 * _SHORT
    while end - start >= 8:
        crc = _step(crc, _word_at(data, start))
        start += 8
    return as_int(_sliced(_CRC32C, crc, data, start, end) ^ _ALL)


@inlined
def crc32c_by_table(data: U8, start: int, end: int) -> int:
    return as_int(_sliced(_CRC32C, _ALL, data, start, end) ^ _ALL)


crc32c = inlined(_crc32c_by_instruction) if _has_crc_instruction() else crc32c_by_table
"""``crc32c(data, start, end)``: CRC-32C (Castagnoli), 0 to 2^32-1; 24 GB/s with the instruction, 2 GB/s without."""


@inlined
def crc32(data: U8, start: int, end: int) -> int:
    """CRC-32 as in zlib: messages of formats 0 and 1 have it."""
    return as_int(_sliced(_CRC32, _ALL, data, start, end) ^ _ALL)

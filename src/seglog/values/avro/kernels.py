"""The loop that reads Avro, compiled by numba: a program over the bytes of many values.

`seglog.values.avro.program` writes programs, `seglog.values.avro.layout` explains cells and spaces. An instruction is a
row of four numbers: the operation and three operands.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np

from seglog.records.intrinsics import I64, U8, as_int, byte_at, inlined, int32_le_at, int64_le_at, kernel


class Op(IntEnum):
    """The operations. ``column`` is where a cell goes, ``entry`` an index of the program's table of numbers."""

    INTEGER = 0  # column, entry of (factor, lowest, highest)
    BOOLEAN = 1  # column
    ENUM = 2  # column, number of symbols, entry of the reader's symbol for each, -1 for none
    FLOAT = 3  # column
    FLOAT_AS_DOUBLE = 4  # column
    DOUBLE = 5  # column
    INTEGER_AS_FLOAT = 6  # column
    INTEGER_AS_DOUBLE = 7  # column
    BYTES = 8  # column
    TEXT = 9  # column
    FIXED = 10  # column, size
    DECIMAL = 11  # column, size or -1, entry of the high and low half of the limit
    DURATION = 12  # column
    SKIP_INTEGER = 13
    SKIP = 14  # size
    SKIP_BYTES = 15
    CONSTANT = 16  # column, number
    END = 17  # column, space
    ELEMENT = 18  # space
    BRANCH = 19  # number of branches, entry of an instruction for each
    JUMP = 20  # instruction
    BLOCK = 21  # instruction after the last block, least bytes of an element
    NEXT = 22  # instruction of the element, instruction of the block, space or -1
    DONE = 23
    FAIL = 24  # reason


class Fault(IntEnum):
    """Why a value cannot be read. From `FAIL` on, a reason of the program."""

    NONE = 0
    ENDS = 1
    VARINT = 2
    RANGE = 3
    BOOLEAN = 4
    LENGTH = 5
    BRANCH = 6
    SYMBOL = 7
    TRAILING = 8
    TEXT = 9
    DECIMAL = 10
    BLOCK = 11
    FAIL = 100


(
    _INTEGER,
    _BOOLEAN,
    _ENUM,
    _FLOAT,
    _FLOAT_AS_DOUBLE,
    _DOUBLE,
    _INTEGER_AS_FLOAT,
    _INTEGER_AS_DOUBLE,
    _BYTES,
    _TEXT,
    _FIXED,
    _DECIMAL,
    _DURATION,
    _SKIP_INTEGER,
    _SKIP,
    _SKIP_BYTES,
    _CONSTANT,
    _END,
    _ELEMENT,
    _BRANCH,
    _JUMP,
    _BLOCK,
    _NEXT,
    _DONE,
    _FAIL,
) = (int(op) for op in Op)
_ENDS: Final = int(Fault.ENDS)
_BAD_VARINT: Final = int(Fault.VARINT)
_BAD_RANGE: Final = int(Fault.RANGE)
_BAD_BOOLEAN: Final = int(Fault.BOOLEAN)
_BAD_LENGTH: Final = int(Fault.LENGTH)
_BAD_BRANCH: Final = int(Fault.BRANCH)
_BAD_SYMBOL: Final = int(Fault.SYMBOL)
_TRAILING: Final = int(Fault.TRAILING)
_BAD_TEXT: Final = int(Fault.TEXT)
_BAD_DECIMAL: Final = int(Fault.DECIMAL)
_BAD_BLOCK: Final = int(Fault.BLOCK)
_OTHER: Final = int(Fault.FAIL)
_LAST_63: Final = 0x7FFFFFFFFFFFFFFF
_U = np.uint64


@inlined
def read_long(data: U8, at: int, end: int) -> tuple[int, int]:
    """A zig-zag varint: (value, position after it). The position is minus the fault if there is one."""
    raw = 0
    shift = 0
    while True:
        if at >= end:
            return 0, -_ENDS
        byte = byte_at(data, at)
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            return 0, -_BAD_VARINT
    if shift == 63 and byte > 1:
        return 0, -_BAD_VARINT
    return ((raw >> 1) & _LAST_63) ^ -(raw & 1), at


@inlined
def is_utf8(data: U8, at: int, end: int) -> bool:
    """Whether bytes are UTF-8 (RFC 3629: no surrogates, no overlong forms, at most U+10FFFF)."""
    while at < end:
        while at + 8 <= end and int64_le_at(data, at) & -0x7F7F7F7F7F7F7F80 == 0:
            at += 8
        if at >= end:
            return True
        lead = byte_at(data, at)
        if lead < 0x80:
            at += 1
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if at + more >= end:
            return False
        second = byte_at(data, at + 1)
        low = 0xA0 if lead == 0xE0 else 0x90 if lead == 0xF0 else 0x80
        high = 0x9F if lead == 0xED else 0x8F if lead == 0xF4 else 0xBF
        if second < low or second > high:
            return False
        for index in range(2, more + 1):
            if byte_at(data, at + index) & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


@inlined
def _decimal(data: U8, at: int, size: int, halves: I64, limits: I64, entry: int) -> bool:
    """A big-endian number in two's complement as its low and high half; false if it is not below the limit."""
    negative = size > 0 and byte_at(data, at) >= 0x80
    pad = 0xFF if negative else 0
    while size > 16:
        if byte_at(data, at) != pad:
            return False
        at += 1
        size -= 1
    high = _U(0xFFFFFFFFFFFFFFFF) if negative else _U(0)
    low = high
    for index in range(size):
        high = (high << _U(8)) | (low >> _U(56))
        low = (low << _U(8)) | _U(byte_at(data, at + index))
    if (high >> _U(63) != _U(0)) != negative:
        return False
    halves[0] = as_int(low)
    halves[1] = as_int(high)
    if negative:
        low = ~low + _U(1)
        high = ~high + (_U(1) if low == _U(0) else _U(0))
    limit_high = _U(limits[entry])
    return bool(high < limit_high or (high == limit_high and low < _U(limits[entry + 1])))


@inlined
def _read_size(data: U8, fixed: int, position: int, end: int) -> tuple[int, int]:
    """How many bytes follow, which is ``fixed`` or written if that is negative; and where they begin."""
    size = fixed
    if size < 0:
        size, position = read_long(data, position, end)
        if position >= 0 and (size < 0 or size > end - position):
            return 0, -_BAD_LENGTH
    elif size > end - position:
        return 0, -_ENDS
    return size, position


@inlined
def _read_block(data: U8, least: int, position: int, end: int) -> tuple[int, int]:
    """The number of elements in the next block, and where they begin; the position is minus the fault."""
    count, position = read_long(data, position, end)
    if count < 0 and position >= 0:
        size, position = read_long(data, position, end)
        if position >= 0 and (size < 0 or size > end - position):
            return 0, -_BAD_BLOCK
        count = -count
    if position >= 0 and (count < 0 or count > (end - position) // least):
        return 0, -_BAD_BLOCK
    return count, position


@kernel
def read_values(
    data: U8,
    spans: I64,
    code: I64,
    table: I64,
    null_code: int,
    depth: int,
    counts: I64,
    at: I64,
    cells: I64,
    faults: I64,
) -> None:
    """Run the program over the values whose ``spans`` are [2 (position, length or -1 for null), values].

    Without ``cells`` this sets ``faults`` and counts the elements of each space. With them, values that have a fault
    are null like those of length -1: the instructions from ``null_code`` on write one. ``at`` has the next cell of each
    column, ``depth`` is how deep arrays are nested.

    This is one long function on purpose: with a function for each instruction it takes three times as long, because
    numba counts references to every array that it hands over.
    """
    stack: I64 = np.zeros(depth + 1, np.int64)
    before: I64 = np.zeros(counts.shape[0], np.int64)
    halves: I64 = np.zeros(2, np.int64)
    bits32 = np.zeros(1, np.int32)
    float32 = bits32.view(np.float32)
    bits64: I64 = np.zeros(1, np.int64)
    float64 = bits64.view(np.float64)
    fill = cells.shape[0] > 0
    for row in range(spans.shape[1]):
        is_null = spans[1, row] < 0 or faults[row] != 0
        if not fill:
            if is_null:
                continue
            before[:] = counts
        position = spans[0, row]
        end = position + max(spans[1, row], 0)
        pc = null_code if is_null else 0
        top = -1
        while position >= 0:
            op = code[pc, 0]
            a = code[pc, 1]
            b = code[pc, 2]
            pc += 1
            if op <= _ENUM:
                value = 0
                if op == _BOOLEAN:
                    if position < end:
                        value = as_int(byte_at(data, position))  # of an unsigned number numba would make a float
                        position = position + 1 if value < 2 else -_BAD_BOOLEAN
                    else:
                        position = -_ENDS
                else:
                    value, position = read_long(data, position, end)
                    if op == _INTEGER:
                        if value < table[b + 1] or value > table[b + 2]:
                            position = -_BAD_RANGE  # read_long gives 0 with a fault
                        value *= table[b]
                    elif position >= 0:
                        value = table[code[pc - 1, 3] + value] if 0 <= value < b else -1
                        if value < 0:
                            position = -_BAD_SYMBOL
                if fill:
                    cells[at[a]] = value
                    at[a] += 1
            elif op == _CONSTANT:
                if fill:
                    cells[at[a]] = b
                    at[a] += 1
            elif op < _BYTES:
                value = 0
                if op <= _FLOAT_AS_DOUBLE:
                    if end - position < 4:
                        position = -_ENDS
                        continue
                    value = int32_le_at(data, position)
                    position += 4
                    if op == _FLOAT_AS_DOUBLE:
                        bits32[0] = value
                        float64[0] = float32[0]
                        value = bits64[0]
                elif op == _DOUBLE:
                    if end - position < 8:
                        position = -_ENDS
                        continue
                    value = int64_le_at(data, position)
                    position += 8
                else:
                    value, position = read_long(data, position, end)
                    if op == _INTEGER_AS_DOUBLE:
                        float64[0] = value
                        value = bits64[0]
                    else:
                        float32[0] = value
                        value = as_int(bits32[0])
                if fill:
                    cells[at[a]] = value
                    at[a] += 1
            elif op <= _FIXED:
                size, position = _read_size(data, b if op == _FIXED else -1, position, end)
                if position < 0:
                    continue
                if fill:
                    cells[at[a]] = position
                    at[a] += 1
                    cells[at[a + 1]] = size
                    at[a + 1] += 1
                elif op == _TEXT and not is_utf8(data, position, position + size):
                    position = -_BAD_TEXT
                    continue
                position += size
            elif op == _BRANCH:
                branch, position = read_long(data, position, end)
                if 0 <= branch < a:
                    pc = table[b + branch]
                else:
                    position = -_BAD_BRANCH
            elif op == _JUMP:
                pc = a
            elif op == _DONE:
                break
            elif op == _BLOCK:
                count, position = _read_block(data, b, position, end)
                if count == 0:
                    pc = a
                else:
                    top += 1
                    stack[top] = count
            elif op == _NEXT:
                space = code[pc - 1, 3]
                if space >= 0:
                    counts[space] += 1
                stack[top] -= 1
                if stack[top] > 0:
                    pc = a
                else:
                    top -= 1
                    pc = b
            elif op == _END:
                if fill:
                    cells[at[a]] = counts[b]
                    at[a] += 1
            elif op == _DECIMAL:
                size, position = _read_size(data, b, position, end)
                if position < 0:
                    continue
                if not _decimal(data, position, size, halves, table, code[pc - 1, 3]):
                    position = -_BAD_DECIMAL
                    continue
                if fill:
                    for part in range(2):
                        cells[at[a + part]] = halves[part]
                        at[a + part] += 1
                position += size
            elif op == _DURATION:
                if end - position < 12:
                    position = -_ENDS
                    continue
                if fill:
                    for part in range(3):
                        cells[at[a + part]] = int32_le_at(data, position + 4 * part) & 0xFFFFFFFF
                        at[a + part] += 1
                position += 12
            elif op == _ELEMENT:
                counts[a] += 1
            elif op == _SKIP_INTEGER:
                value, position = read_long(data, position, end)
            elif op <= _SKIP_BYTES:
                size, position = _read_size(data, a if op == _SKIP else -1, position, end)
                if position >= 0:
                    position += size
            else:
                position = -(_OTHER + a)
        if not fill and position != end:
            faults[row] = -position if position < 0 else _TRAILING
            counts[:] = before


REASONS: Final[dict[int, str]] = {
    Fault.ENDS: "the value ends too early",
    Fault.VARINT: "an integer has more than 64 bits",
    Fault.RANGE: "an integer is out of the range of its type",
    Fault.BOOLEAN: "a boolean is neither 0 nor 1",
    Fault.LENGTH: "a length is negative or goes beyond the value",
    Fault.BRANCH: "the union has no such branch",
    Fault.SYMBOL: "the enum has no such symbol",
    Fault.TRAILING: "bytes are left after the value",
    Fault.TEXT: "a string is not UTF-8",
    Fault.DECIMAL: "a decimal has more digits than its precision",
    Fault.BLOCK: "a block of an array or map has a wrong count or size",
}


def reason_of(fault: int, reasons: list[str]) -> str:
    """A fault in words; ``reasons`` are the program's."""
    return reasons[fault - Fault.FAIL] if fault >= Fault.FAIL else REASONS[fault]

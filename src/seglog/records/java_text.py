"""How Java writes what DumpLogSegments prints: optional numbers, booleans, and sums in 32 and 64 bits."""

from __future__ import annotations


def optional_long(value: int | None) -> str:
    """``OptionalLong.toString``.

    >>> optional_long(7), optional_long(None)
    ('OptionalLong[7]', 'OptionalLong.empty')
    """
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def boolean(value: object) -> str:
    return "true" if value else "false"


def int64(value: int) -> int:
    """A sum as a Java ``long`` has it: wrapped into 64 bits.

    >>> int64(2**63)
    -9223372036854775808
    """
    return value if -(1 << 63) <= value < 1 << 63 else (value + 2**63) % 2**64 - 2**63


def int32(value: int) -> int:
    """Wrapped into 32 bits, as a Java ``int``."""
    return (value + 2**31) % 2**32 - 2**31

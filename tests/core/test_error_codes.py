from __future__ import annotations

from kio.schema.errors import ErrorCode as Table

from seglog.core.error_codes import ErrorCode


def test_table_is_that_of_kafka() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {code.name.upper(): int(code) for code in Table}

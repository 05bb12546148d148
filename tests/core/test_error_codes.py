from __future__ import annotations

from kio.schema.errors import ErrorCode as Table

from seglog.core.error_codes import ErrorCode

NEWER = {
    "GROUP_DELETION_FAILED": 134,
    "STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED": 135,
    "CONTROLLER_ID_NOT_REGISTERED": 136,
}
"""Of Kafka 4.4; kio has those of 4.3."""


def test_table_is_that_of_kafka() -> None:
    assert {code.name: int(code) for code in ErrorCode} == {code.name.upper(): int(code) for code in Table} | NEWER

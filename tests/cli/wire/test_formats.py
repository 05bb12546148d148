"""Lines of JSON that are put together by hand are those of `json.dumps`."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from seglog.cli.wire.formats import ConsumedRecord, RecordFormats, json_line
from tests.cases import case

_BYTES = st.none() | st.binary(max_size=12) | st.text(max_size=12).map(str.encode)
_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_VALUES = (b"{}", b'{"a":[1,2.5,"\xc3\xa9"]}', b'"\\ud800"', b"null", b"12345678901234567890")
_JSON = st.none() | st.sampled_from(_VALUES)
_RECORDS = st.builds(
    ConsumedRecord,
    _NAMES,
    st.integers(0, 9),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**63 - 1),
    st.sampled_from([-1, 0, 1]),
    _BYTES,
    _JSON,
    st.lists(st.tuples(_NAMES, _BYTES), max_size=3),
    st.none() | st.integers(-1, 2**31 - 1),
)


def _text(data: bytes | None) -> Any:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(data or b"").decode()}


@given(_RECORDS)
def test_a_line_is_what_json_dumps_writes(record: ConsumedRecord) -> None:
    case()
    expected = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": record.timestamp_type,
        "key": _text(record.key),
        "value": None if record.value is None else json.loads(record.value),
        "headers": [[name, None if value is None else value.hex()] for name, value in record.headers],
        "isControl": False,
        "isTransactional": None,
        "producerId": None,
        "producerEpoch": None,
        "sequence": None,
        "leaderEpoch": record.leader_epoch,
    }
    text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
    line = json_line(RecordFormats("text", "json", "hex", b""))(record)
    assert line.encode() == text.encode(errors="backslashreplace") + b"\n"

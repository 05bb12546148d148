"""Avro values are shown and filtered as JSON, from the disk; one that is not Avro stays as it is."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fastavro
import pytest

from seglog.records.record import NewRecord
from seglog.storage.directory.log_dir import LogDir
from tests.cli.run import run_here
from tests.console.asking import start

pytestmark = pytest.mark.xdist_group("console")
_SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": ["null", "long"]}],
}


def _encoded(value: dict[str, object]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _SCHEMA, value)
    return out.getvalue()


def test_values_are_decoded_and_filtered(tmp_path: Path) -> None:
    schema = tmp_path / "flight.avsc"
    schema.write_text(json.dumps(_SCHEMA))
    path = tmp_path / "log"
    with LogDir.open(path) as directory:
        directory.create_topic("flights")
        log = directory.log("flights")
        values = [_encoded({"carrier": name, "delay": len(name)}) for name in ("UA", "DL", "AA")]
        log.append_records([NewRecord(value) for value in (*values, b"\xff\xff not Avro", None)])
    options = ("--value-format", "avro", "--format-option", f"valueSchema={schema}")
    with start(tmp_path, str(path), *options) as running:
        rows = running.asked.ask("records", topic="flights", partition=0, offset=0)["records"]
        found = running.asked.ask("records", topic="flights", partition=0, offset=0, path="carrier=DL")["records"]
    assert [json.loads(one["value"]) for one in rows[:3]] == [
        {"carrier": name, "delay": 2} for name in ("UA", "DL", "AA")
    ]
    assert rows[3]["value"] == {"base64": "//8gbm90IEF2cm8="}
    assert rows[4]["value"] is None
    assert [one["offset"] for one in found] == [1]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--value-format", "xml"), "--value-format must be avro or protobuf, not xml"),
        (("--registry", "http://localhost:1"), "--registry and --format-option need --value-format or --key-format"),
    ],
)
def test_wrong_formats_are_refused(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], arguments: tuple[str, ...], reason: str
) -> None:
    ran = run_here(capfdbinary)("console", tmp_path, *arguments)
    assert (ran.code, reason in ran.err) == (2, True), ran.err

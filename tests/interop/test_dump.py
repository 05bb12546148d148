"""`seglog dump` against the real DumpLogSegments 4.4.0 on random files, most of them damaged: the same stdout.

Where Kafka's tool ends with an exception, ours ends at the same character, with one line on stderr and exit code 1.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from seglog.records.record import NewRecord, encode_batch
from tests.cases import case
from tests.cli.made_logs import damage, some_log, write_partition
from tests.cli.made_messages import TOPICS
from tests.cli.run import Run, run_here
from tests.kafka.tools import run_java

_LOG = "00000000000000000000.log"
_LOG_OPTIONS = (
    ("--print-data-log",),
    ("--print-data-log",),
    ("--deep-iteration",),
    (),
    ("--print-data-log", "--skip-record-metadata"),
    ("--print-data-log", "--max-bytes", "150"),
)
_INDEX_OPTIONS = ((), (), (), ("--index-sanity-check",), ("--verify-index-only",), ("--max-message-size", "150"))


def _compare(root: Path, jobs: Sequence[Sequence[str]], run: Run, *, notes: bool = False) -> None:
    """Dump with both, once for each list of arguments, with ``root`` as directory; ``notes``: compare stderr, too."""
    outs = [root / f"{number}.out" for number in range(len(jobs))]
    ours = []
    for arguments in jobs:  # ours first: Kafka's tool trims the indexes that it reads
        ours.append(run("dump", *arguments))
        case()
    body = [{"out": str(out), "args": arguments} for out, arguments in zip(outs, jobs, strict=True)]
    (root / "jobs.json").write_text(json.dumps(body), encoding="utf-8")
    run_java("DumpEach", [str(root / "jobs.json")], with_ours=True, cwd=root)
    for out, arguments, ran in zip(outs, jobs, ours, strict=True):
        kafka_notes = (root / f"{out.name}.err").read_text(encoding="utf-8").splitlines()
        threw = any(line.startswith("threw ") for line in kafka_notes)
        our_notes = ran.err.splitlines()
        if any("OutOfMemoryError" in line for line in kafka_notes):
            continue  # Kafka believed a size that the bytes do not bear out; that says nothing about the text
        assert ran.out == out.read_bytes(), (arguments, kafka_notes, our_notes)
        assert any(line.startswith("seglog: ") for line in our_notes) == threw, (arguments, kafka_notes, our_notes)
        assert ran.code in ((1,) if threw else (0, 1)), (arguments, our_notes)
        if notes and not threw:
            assert our_notes == [line for line in kafka_notes if not line.startswith("SLF4J")], arguments


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes]) -> Run:
    return run_here(capfdbinary)


def _logs(random: Random, root: Path, count: int) -> Iterator[list[str]]:
    for number in range(count):
        batches = some_log(random)
        for _ in range(random.choice([1, 1, 2])):
            damage(random, batches)
        directory = root / str(number)
        directory.mkdir()
        (directory / _LOG).write_bytes(b"".join(batches))
        yield ["--files", f"{number}/{_LOG}", *random.choice(_LOG_OPTIONS)]


@pytest.mark.parametrize("seed", [11, 12])
def test_damaged_logs_of_all_formats(seed: int, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _compare(tmp_path, list(_logs(Random(seed), tmp_path, 400)), run)


def test_malformed_utf8(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sequence of up to three bytes of each kind, and many of four, as key and in the middle of a value."""
    monkeypatch.chdir(tmp_path)
    kinds = bytes.fromhex("41 80 8f 90 9f a0 bf c0 c2 df e0 e1 ed ef f0 f1 f4 f5 f8 ff")
    short = [bytes(parts) for size in (1, 2, 3) for parts in itertools.product(kinds, repeat=size)]
    random = Random(1)
    long = [bytes(random.choices(kinds, k=4)) for _ in range(20_000)]
    records = [NewRecord(b"<" + text + b">", key=text, timestamp=1) for text in short + long]
    (tmp_path / _LOG).write_bytes(encode_batch(records))
    _compare(tmp_path, [["--files", _LOG, "--print-data-log"]], run)
    case(len(records))


def test_damaged_indexes_and_snapshots(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = Random(13)
    jobs = []
    for number in range(150):
        directory = tmp_path / str(number)
        directory.mkdir()
        write_partition(random, directory)
        files = sorted(directory.glob("*[xt]"))
        jobs += [["--files", f"{number}/{file.name}", *random.choice(_INDEX_OPTIONS)] for file in files]
    indexes = [job for job in jobs if job[1].endswith("index")]
    _compare(tmp_path, indexes, run, notes=True)
    _compare(tmp_path, [job for job in jobs if job not in indexes], run)


@pytest.mark.parametrize("decoder", TOPICS)
def test_records_of_internal_topics(decoder: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = Random(14)
    records = [TOPICS[decoder](random) for _ in range(3000)]
    (tmp_path / _LOG).write_bytes(encode_batch(records))
    _compare(tmp_path, [["--files", _LOG, decoder]], run)
    case(len(records))


def test_decoder_classes_of_kafka(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    numbers = [NewRecord((2**40 - i).to_bytes(8), key=(i - 2).to_bytes(4, signed=True), timestamp=1) for i in range(5)]
    (tmp_path / _LOG).write_bytes(encode_batch([*numbers, NewRecord(None, timestamp=1)]))
    package = "org.apache.kafka.tools.api"
    _compare(
        tmp_path,
        [
            ["--files", _LOG, "--value-decoder-class", f"{package}.LongDecoder"],
            ["--files", _LOG, "--key-decoder-class", f"{package}.IntegerDecoder"],
            ["--files", _LOG, "--key-decoder-class", f"{package}.LongDecoder"],
        ],
        run,
    )

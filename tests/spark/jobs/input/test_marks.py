"""Which bytes of files an ingest job reads, by the marks of jobs before it: a model of lines that are written."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seglog.core.errors import InvalidConfigError
from seglog.core.fs import OsFs
from seglog.spark.jobs.input.marks import NewInput, select_new
from seglog.storage.adopt import InputMark, Ledger
from tests.cases import case


class Job:
    """Ingests into a list, and keeps marks in a ledger as a commit does."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.lines: list[bytes] = []

    def select(self, *paths: Path, whole: bool = False, again: bool = False) -> NewInput:
        return select_new(
            OsFs(), [str(path) for path in paths], self.ledger.inputs,
            topic="t", topic_id="1", whole=whole, again=again, take_unfinished=False,
        )  # fmt: skip

    def run(self, *paths: Path, again: bool = False) -> list[bytes]:
        selected = self.select(*paths, again=again)
        found: list[bytes] = []
        for new in selected.new:
            found += Path(new.path).read_bytes()[new.start : new.end].splitlines()
        for expected, mark in selected.intake.marks:
            assert self.ledger.input(*mark.key) == expected
        self.ledger.note_inputs("job:x", 0, [mark for _, mark in selected.intake.marks], selected.intake.digest)
        self.lines += found
        return found


@given(st.lists(st.sampled_from(["write", "part", "end", "rotate", "run", "new", "large"]), max_size=30), st.integers())
def test_reads_every_complete_line_once(tmp_path_factory: pytest.TempPathFactory, steps: list[str], seed: int) -> None:
    case()
    directory, rng, job = tmp_path_factory.mktemp("logs"), random.Random(seed), Job()
    log = directory / "web.log"
    expected: list[bytes] = []
    unfinished, rotated = b"", 0
    for number, step in enumerate([*steps, "end", "run", "run"]):
        text = b"%d %d" % (number, rng.getrandbits(64))
        if step == "rotate" and log.exists() and not unfinished:
            rotated += 1
            log.rename(directory / f"web.log.{rotated}")
        elif step == "part":
            unfinished += text
            with log.open("ab") as file:
                file.write(text)
        elif step in ("write", "large") or (step == "end" and unfinished):
            text += b"x" * rng.randrange(40_000, 200_000) if step == "large" else b""
            with log.open("ab") as file:
                file.write(text + b"\n")
            expected.append(unfinished + text)
            unfinished = b""
        elif step == "new":
            (directory / f"other-{number}.log").write_bytes(text + b"\n")
            expected.append(text)
        elif step == "run":
            job.run(*sorted(directory.iterdir()))
    assert sorted(job.lines) == sorted(expected)


def test_a_file_with_another_beginning_is_another_file(tmp_path: Path) -> None:
    log, job = tmp_path / "day.csv", Job()
    log.write_bytes(b"id\n1\n2\n")
    assert job.run(log) == [b"id", b"1", b"2"]
    log.write_bytes(b"id\n3\n4\n5\n")  # in place
    assert job.run(log) == [b"id", b"3", b"4", b"5"]
    log.unlink()
    log.write_bytes(b"id\n6\n")
    assert job.run(log) == [b"id", b"6"]
    assert job.run(log) == []


def test_a_copy_in_the_place_of_a_file_is_the_same_file(tmp_path: Path) -> None:
    log, job = tmp_path / "day.csv", Job()
    log.write_bytes(b"1\n2\n")
    job.run(log)
    copy = tmp_path / "copy"
    copy.write_bytes(b"1\n2\n3\n")
    copy.rename(log)
    assert job.run(log) == [b"3"]


@pytest.mark.parametrize("change", ["edited", "shortened"])
def test_a_file_that_was_edited_is_refused(tmp_path: Path, change: str) -> None:
    log, job = tmp_path / "day.csv", Job()
    lines = [b"%08d\n" % number for number in range(30_000)]
    log.write_bytes(b"".join(lines))
    job.run(log)
    log.write_bytes(b"".join([*lines[:-2], b"x" * 8 + b"\n", lines[-1]] if change == "edited" else lines[:20_000]))
    with pytest.raises(InvalidConfigError, match=r"day\.csv: 270000 bytes of it were ingested.* was changed.*--again"):
        job.run(log)
    assert len(job.run(log, again=True)) == (30_000 if change == "edited" else 20_000)
    assert job.run(log) == []


def test_refuses_a_grown_file_that_must_be_read_as_a_whole(tmp_path: Path) -> None:
    log, job = tmp_path / "x.csv", Job()
    log.write_bytes(b'1,"a\n')
    selected = job.select(log, whole=True)
    assert [(new.start, new.end) for new in selected.new] == [(0, 5)]
    job.ledger.note_inputs("job:x", 0, [mark for _, mark in selected.intake.marks], "")
    assert job.select(log, whole=True).new == ()
    log.write_bytes(b'1,"a\nb"\n')
    with pytest.raises(InvalidConfigError, match="has grown, and can be read only as a whole"):
        job.select(log, whole=True)


def test_a_file_that_reuses_an_inode_is_new(tmp_path: Path) -> None:
    one, job = tmp_path / "a", Job()
    one.write_bytes(b"1\n")
    job.run(one)
    two = tmp_path / "b"
    one.rename(two)
    os.utime(two, (1, 1))
    assert job.run(two) == [b"1"]


def test_a_recreated_topic_has_no_marks(tmp_path: Path) -> None:
    one = tmp_path / "a"
    one.write_bytes(b"1\n")
    job = Job()
    job.run(one)
    (mark,) = job.ledger.inputs
    assert isinstance(mark, InputMark)
    job.ledger = Ledger(inputs=[mark._replace(topic_id="2")])
    assert job.run(one) == [b"1"]

"""The compiled path of `seglog dump` gives the same text as the plain one, whole or damaged, in chunks of any size."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from seglog.cli.dump import command as dump_command
from seglog.cli.dump import fast_text as dump_fast
from seglog.cli.dump import log_text as dump_log
from seglog.cli.dump.fast_text import render_fast
from seglog.cli.dump.log_text import ChunkText, render_plain
from seglog.cli.dump.options import DumpOptions
from seglog.core.errors import CorruptError
from seglog.core.fs import File, OsFs
from seglog.records.encoding import NewRecord, encode_batch
from seglog.storage.offline import inspect
from seglog.storage.offline.inspect import Chunk
from tests.cases import case
from tests.cli.logs import write_log
from tests.cli.made_logs import damage, some_log
from tests.cli.run import Run

_OPTIONS = [
    DumpOptions(deep, contents, skip_metadata)
    for deep, contents, skip_metadata in (
        (False, False, False), (True, False, False), (True, True, False), (True, True, True), (True, False, True),
    )
]  # fmt: skip


def _facts(rendered: Iterator[tuple[Chunk, ChunkText]]) -> tuple[object, ...]:
    """All values on which the lines around the chunks depend."""
    text, gaps, invalid, last, error = b"", list[tuple[int, int]](), 0, None, None
    try:
        for _, chunk in rendered:
            text += b"".join(bytes(part) for part in chunk.parts)
            if chunk.first is not None:
                if last is not None and chunk.first != last + 1:
                    gaps.append((last, chunk.first))
                gaps += chunk.gaps
                last = chunk.last
            invalid += chunk.invalid
            if chunk.error is not None:
                error = str(chunk.error)
                break
    except CorruptError as problem:
        error = str(problem)
    return text, gaps, invalid, last, error


def _compare(log: Path, options: DumpOptions) -> None:
    file = OsFs().open(str(log), write=False)
    plain = _facts(render_plain(file, file.size(), options))
    assert _facts(render_fast(file, file.size(), options)) == plain


def test_random_and_damaged_logs(tmp_path: Path) -> None:
    random = Random(1)
    for _ in range(300):
        batches = some_log(random)
        for _ in range(random.randrange(3)):
            damage(random, batches)
        _compare(write_log(tmp_path, batches), random.choice(_OPTIONS))
        case()


@pytest.mark.parametrize("options", _OPTIONS)
def test_chunks_of_a_few_batches(options: DumpOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With gaps within and between chunks."""
    chunks = inspect.read_chunks
    monkeypatch.setattr(dump_fast, "read_chunks", lambda file, start, end: chunks(file, start, end, size=1000))
    random = Random(2)
    log = write_log(tmp_path, [batch for _ in range(40) for batch in some_log(random)])
    assert log.stat().st_size > 10_000
    _compare(log, options)


def test_renders_text_larger_than_its_buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small buffers for text and gaps: full ones are saved, and a batch that never fits takes the plain path."""
    monkeypatch.setattr(dump_fast, "_ROOM_BYTES", 4000)
    monkeypatch.setattr(dump_fast, "_GAPS", 6)
    random = Random(3)
    batches = [batch for _ in range(20) for batch in some_log(random)]
    batches.append(encode_batch([NewRecord(b"\xff" * 3000)], codec=4))
    batches.append(encode_batch([NewRecord(b"x" * 100)] * 50, codec=1))
    for options in _OPTIONS:
        _compare(write_log(tmp_path, batches), options)


def test_numbers_of_every_length(tmp_path: Path) -> None:
    """Decimal digits are written by hand in the compiled path."""
    numbers = sorted({0, 2**63 - 1, *(10**n + d for n in range(19) for d in (-1, 0, 1))})
    batches = [encode_batch([NewRecord(None, timestamp=number)], base_offset=number) for number in numbers]
    _compare(write_log(tmp_path, batches), DumpOptions(deep=True))
    case(len(numbers))


def test_uses_the_compiled_path_only_for_large_logs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write_log(tmp_path, [encode_batch([NewRecord(b"v", timestamp=1)] * 20)])
    used: list[int] = []

    def noting(file: File, size: int, options: DumpOptions) -> Iterator[tuple[Chunk, ChunkText]]:
        used.append(size)
        return render_plain(file, size, options)

    monkeypatch.setattr(dump_fast, "render_fast", noting)
    expected = run("dump", "--print-data-log", log).text
    assert not used
    monkeypatch.setattr(dump_command, "_MANY_LINES", 20)
    assert run("dump", "--print-data-log", log).text == expected
    assert used
    assert run("dump", log).code == 0
    assert len(used) == 1, "one line is not many"


def test_falls_back_to_the_plain_path_without_numba(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write_log(tmp_path, [encode_batch([NewRecord(b"v", timestamp=1)] * 20)])
    monkeypatch.setattr(dump_command, "_MANY_LINES", 0)
    expected = run("dump", "--print-data-log", log)
    monkeypatch.setitem(sys.modules, "numba", None)
    ran = run("dump", "--print-data-log", log)
    assert (ran.code, ran.out) == (0, expected.out)
    assert ran.err == "seglog: dumping large logs fast needs numba: pip install 'seglog[fast]'\n"


def test_plain_and_fast_path_have_the_same_signature() -> None:
    assert dump_log.render_plain.__annotations__ == render_fast.__annotations__

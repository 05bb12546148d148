"""Which files are rewritten together: few levels, few files on each, and none that is large."""

from __future__ import annotations

from typing import NamedTuple

from seglog.table.small_files import ENOUGH, FAN_IN, SMALLEST, choose, level_of


class _File(NamedTuple):
    file_size_in_bytes: int


def test_waits_until_a_level_is_full() -> None:
    small = [_File(1000)] * (FAN_IN - 1)
    assert choose(small) == []
    assert choose([*small, _File(SMALLEST + 1)]) == []
    assert choose([*small, _File(1000)]) == [[_File(1000)] * FAN_IN]


def test_large_files_stay_as_they_are() -> None:
    assert choose([_File(ENOUGH)] * 100) == []


def test_a_group_is_not_too_large_for_memory() -> None:
    groups = choose([_File(ENOUGH - 1)] * 16)
    assert [len(group) for group in groups] == [2] * 8


def test_a_record_is_rewritten_a_few_times_however_many_commits_there_are() -> None:
    files: list[_File] = []
    written = 0
    for commit in range(20_000):
        files.append(_File(2000))
        for group in choose(files):
            for one in group:
                files.remove(one)
            files.append(_File(sum(one.file_size_in_bytes for one in group)))
            written += files[-1].file_size_in_bytes
        assert len(files) < 5 * FAN_IN, commit
    assert written < 4 * 20_000 * 2000
    assert max(level_of(one.file_size_in_bytes) for one in files) <= 4

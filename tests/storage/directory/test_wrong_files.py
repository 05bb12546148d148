"""A partition with something else than a file in a file's place is refused by name; the others are served."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from seglog.core.fs import NotRegularFileError, OsFs
from seglog.core.types import TopicPartition
from seglog.storage.directory.log_dir import LogDir
from seglog.storage.offline.fsck.check import Place, check
from seglog.storage.offline.verify.verifier import verify
from tests.storage.disk import fill

_KINDS: Final[Mapping[str, Callable[[Path], None]]] = {
    "directory": lambda path: path.mkdir(),
    "fifo": os.mkfifo,
    "symbolic link": lambda path: path.symlink_to("nothing"),
}
_FILES: Final = (
    f"{0:020d}.log",
    f"{3:020d}.log",
    f"{3:020d}.index",
    "leader-epoch-checkpoint",
    "partition.metadata",
)


@pytest.mark.parametrize("kind", ["directory", "fifo"])  # links inside of a log directory are refused elsewhere
@pytest.mark.parametrize("name", _FILES)
def test_partition_without_a_regular_file_is_refused_alone(tmp_path: Path, kind: str, name: str) -> None:
    logs = str(tmp_path / "logs")
    with LogDir.open(logs) as opened:
        for topic in ("damaged", "intact"):
            opened.create_topic(topic)
            fill(opened.log(topic), 3)
            opened.log(topic).roll()
            fill(opened.log(topic), 3)
    file = tmp_path / "logs" / "damaged-0" / name
    file.unlink()
    _KINDS[kind](file)
    with LogDir.open(logs) as opened:
        assert opened.log("intact").log_end_offset == 6
        error = opened.refused[TopicPartition("damaged", 0)]
        assert str(file) in str(error)
    found = verify([logs], fast=False)
    assert str(file) in [finding.file for finding in found.findings]
    ((_, report),) = check([Place(logs)], workers=1).places
    assert str(file) in [finding.file for finding in report.verified.findings]


@pytest.mark.parametrize("kind", _KINDS)
def test_error_of_a_wrong_file_names_it(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "file"
    _KINDS[kind](file)
    fs = OsFs()
    for act in (fs.read, fs.open, fs.map, lambda path: fs.write(path, b"")):
        with pytest.raises(NotRegularFileError) as raised:
            act(str(file))
        assert raised.value.filename == str(file)

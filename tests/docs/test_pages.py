"""Every page of the documentation does what it says: its Python, its commands and their output, its SQL."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

import seglog
from seglog.cli.main import COMMANDS, GROUPS, main
from seglog.testing import Broker
from tests.docs.blocks import RUN, SHOWN, Reader, blocks, mentioned, without_blocks
from tests.kit.ports import free_port

_ROOT: Final = Path(__file__).parents[2]
_PAGES: Final = {
    str(path.relative_to(_ROOT)): path.read_text()
    for path in (_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted((_ROOT / "docs").glob("*.md")))
}
_DECISIONS: Final = {f"docs/decisions/{path.name}": path.read_text() for path in _ROOT.glob("docs/decisions/*.md")}
_CODE: Final = {name: [block for block in blocks(text) if block.language in RUN] for name, text in _PAGES.items()}
_WITH_CODE: Final = [name for name, code in _CODE.items() if code]
_SECURED_PORTS: Final = (9094, 9095, 9096, 9194, 9195, 9196)
_USES_SPARK: Final = re.compile(r"^(from seglog\.spark|\$ seglog spark|.*\bspark\.)", re.MULTILINE)
_WITH_SPARK: Final = [
    name
    for name, code in _CODE.items()
    if any(block.language == "sql" or _USES_SPARK.search(block.text) for block in code)
]
_ACCESS_LOG: Final = (
    '127.0.0.1 - frank [10/Oct/2000:13:55:36 -0700] "GET /apache_pb.gif HTTP/1.0" 200 2326 "-" "Mozilla/4.08"\n'
    '10.0.0.7 - - [10/Oct/2000:13:55:37 -0700] "GET / HTTP/1.0" 304 0 "-" "curl"\n'
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def reader(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Reader]:
    """In a directory with what pages take for granted: a log directory, a web server's log, a broker."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "access.log").write_text(_ACCESS_LOG)
    (tmp_path / "access.json").write_text('{"time": "2026-02-01T00:00:00Z", "client": "10.0.0.7", "status": 200}\n')
    served = f"127.0.0.1:{free_port()}"
    monkeypatch.setenv("SEGLOG_BOOTSTRAP", served)
    reader = Reader(
        tmp_path,
        {
            "127.0.0.1:9092": served,
            "127.0.0.1:9093": f"127.0.0.1:{free_port()}",
            **{f"127.0.0.1:{port}": f"127.0.0.1:{free_port()}" for port in _SECURED_PORTS},
            "kafka:9092": broker.bootstrap,
            "other:9092": broker.bootstrap,
            "/var/kafka/data": str(tmp_path / "data"),
            "/var/log/nginx": str(tmp_path),
            "/var/lib/web-logs": str(tmp_path),
            "/mnt/broker": str(tmp_path / "broker"),
            "/data/log": str(tmp_path / "log"),
            '"path", "data"': f'"path", "{tmp_path}/data"',  # Spark's workers are where the JVM was started
            '"path", "lake"': f'"path", "{tmp_path}/lake"',
            'spark, "warehouse/flights"': f'spark, "{tmp_path}/warehouse/flights"',
            'spark, "latest/flights"': f'spark, "{tmp_path}/latest/flights"',
            'tail="data"': f'tail="{tmp_path}/data"',
            '"checkpoint"': f'"{tmp_path}/checkpoint"',
            '"copy"': f'"{tmp_path}/copy"',
        },
        capsys,
    )
    broker.reset()
    with contextlib.closing(reader):
        yield reader


def _make_flights(directory: Path) -> None:
    """A log directory with a topic, and three replicas of it."""
    with seglog.open(directory) as opened:
        opened.create_topic("flights", partitions=2)
        for number in range(2):
            opened.log("flights", number).append_records(
                [seglog.NewRecord(b"EWR-IAH", key=b"N14228", timestamp=1357034400000)] * 2
            )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xdist_group("spark-jobs")] if name in _WITH_SPARK else [])
        for name in _WITH_CODE
    ],
)
def test_page_does_what_it_says(
    name: str, reader: Reader, broker: Broker, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name in _NEEDS_FLIGHTS:
        _make_flights(tmp_path / "data")
        for replica in ("replica", "broker1/data", "broker2/data", "broker3/data"):
            shutil.copytree(tmp_path / "data", tmp_path / replica)
    (tmp_path / "flights").mkdir()
    (tmp_path / "flights" / "one.csv").write_text("tailnum,origin\nN14228,EWR\n")
    reader.names["seglog_broker"] = broker
    if name in _WITH_SPARK:
        reader.names["spark"] = request.getfixturevalue("spark")
    reader.read(_PAGES[name], name)


_NEEDS_FLIGHTS: Final = {"docs/inspect.md", "docs/rescue.md", "docs/spark.md", "docs/table.md"}


def test_every_block_names_its_language() -> None:
    unknown = [
        f"{name}:{block.line}: {block.language!r}"
        for name, text in _PAGES.items()
        for block in blocks(text)
        if block.language not in RUN | SHOWN
    ]
    assert unknown == []


def test_text_is_wrapped_at_120_columns() -> None:
    """But for tables, links and pictures, which cannot be, and output and drawings, which are as wide as they are."""
    long = [
        f"{name}:{number}"
        for name, text in {**_PAGES, **_DECISIONS}.items()
        for number, line in enumerate(without_blocks(text).splitlines(), 1)
        if len(line) > 120 and not line.startswith(("|", "![")) and "](" not in line
    ]
    assert long == []


def test_every_file_that_a_page_names_exists() -> None:
    named = {
        f"{name}: {path}"
        for name, text in _PAGES.items()
        for path in re.findall(r"\b((?:src|tests|docs|deploy|examples|bench|demo)/[\w./*-]*\w)(?![\w<])", text)
        if not list(_ROOT.glob(path))
    }
    assert sorted(named) == []


def test_every_module_that_a_page_names_exists() -> None:
    source = _ROOT / "src" / "seglog"
    packages = "|".join(path.name for path in source.iterdir() if path.is_dir())
    named = {
        f"{name}: {path}"
        for name, text in {**_PAGES, **_DECISIONS, "ARCHITECTURE.md": (_ROOT / "ARCHITECTURE.md").read_text()}.items()
        for path in re.findall(rf"`((?:{packages})/[\w/]+\.py)", text)
        if not (source / path).exists()
    }
    assert sorted(named) == []


@cache
def _help(*words: str) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main([*words, "--help"])
    return printed.getvalue()


@pytest.mark.parametrize("name", _PAGES)
def test_every_command_of_the_page_exists_with_its_options(name: str) -> None:
    for words in mentioned(_PAGES[name]):
        group = GROUPS.get(words[0])
        assert group is not None or words[0] in COMMANDS, words
        if group is None or len(words) == 1:
            path = words[:1]
        else:
            assert words[1] in group.commands, words
            path = words[:2]
        for option in (word.partition("=")[0] for word in words if re.match(r"--?[a-zA-Z]", word)):
            assert re.search(rf"(^|[\s,/]){re.escape(option)}\b", _help(*path)), f"{' '.join(words)}: no {option}"

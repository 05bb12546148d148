"""An error that names its cause reaches the user of Spark as its sentence, without frames, from every entry."""

from __future__ import annotations

import importlib
import inspect
import io
import logging
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    Filter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.util import handle_worker_exception

import seglog.spark
from seglog.core.errors import InvalidConfigError
from seglog.spark.runtime.error_sentences import ENTRIES, ErrorSentences

pytestmark = pytest.mark.xdist_group("spark")

SENTENCE: Final = "option cup is 'tin': it must be china"


def fail_at(options: Mapping[str, str], *names: str) -> None:
    """Fail as deep code does: in a call, and while another error is handled."""
    if options["at"] not in names:
        return
    try:
        Path("/no such file").read_bytes()
    except OSError as error:
        raise {"seglog": InvalidConfigError, "bug": ZeroDivisionError}[options["kind"]](SENTENCE) from error


class Failing(ErrorSentences, DataSource):
    """Fails at the entry that the option ``at`` names."""

    @classmethod
    def name(cls) -> str:
        return "failing"

    def schema(self) -> str:
        fail_at(self.options, "schema")
        return "value string"

    def reader(self, *_: object, **__: object) -> DataSourceReader:
        fail_at(self.options, "reader")
        return PushingReader(self.options) if self.options["at"] == "pushFilters" else Reader(self.options)

    def writer(self, *_: object, **__: object) -> DataSourceArrowWriter:
        fail_at(self.options, "writer")
        return Writer(self.options)

    def streamReader(self, *_: object, **__: object) -> DataSourceStreamReader:
        fail_at(self.options, "streamReader")
        return StreamReader(self.options)

    def streamWriter(self, *_: object, **__: object) -> DataSourceStreamArrowWriter:
        fail_at(self.options, "streamWriter")
        return StreamWriter(self.options)


class Part:
    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)

    def _at(self, name: str) -> None:
        fail_at(self.options, f"{type(self).__name__}.{name}")


class Reader(ErrorSentences, Part, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        self._at("partitions")
        return [InputPartition(1)]

    def read(self, *_: object) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_arrays([pa.array(["1"])], names=["value"])
        self._at("read")


class PushingReader(Reader):
    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        fail_at(self.options, "pushFilters")
        yield from filters


class Writer(ErrorSentences, Part, DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        list(iterator)
        self._at("write")
        return WriterCommitMessage()

    def commit(self, *_: object) -> None:
        self._at("commit")

    def abort(self, *_: object) -> None:
        self._at("abort")


class StreamReader(ErrorSentences, Part, DataSourceStreamReader, SupportsTriggerAvailableNow):
    at = 0

    def initialOffset(self) -> dict[str, int]:
        self._at("initialOffset")
        return {"at": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        self._at("prepareForTriggerAvailableNow")

    def getDefaultReadLimit(self) -> ReadLimit:
        self._at("getDefaultReadLimit")
        return ReadMaxRows(1)

    def latestOffset(self, start: dict[str, int], *_: object) -> dict[str, int]:
        self._at("latestOffset")
        return {"at": min(start["at"] + 1, 2)}

    def reportLatestOffset(self) -> dict[str, int]:
        self._at("reportLatestOffset")
        return {"at": 2}

    def partitions(self, *_: object) -> list[InputPartition]:
        self._at("partitions")
        return [InputPartition(1)]

    def read(self, *_: object) -> Iterator[pa.RecordBatch]:
        self._at("read")
        yield pa.RecordBatch.from_arrays([pa.array(["1"])], names=["value"])

    def commit(self, *_: object) -> None:
        self._at("commit")


class StreamWriter(ErrorSentences, Part, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        list(iterator)
        self._at("write")
        return WriterCommitMessage()

    def commit(self, *_: object) -> None:
        self._at("commit")

    def abort(self, *_: object) -> None:
        self._at("abort")


def read(spark: SparkSession, _: Path, **options: str) -> None:
    spark.read.format("failing").options(**options).load().where("value = '1'").collect()


def write(spark: SparkSession, _: Path, **options: str) -> None:
    spark.range(1).write.format("failing").options(**options).mode("append").save()


def stream(spark: SparkSession, path: Path, **options: str) -> None:
    frame = spark.readStream.format("failing").options(**options).load()
    writer = frame.writeStream.format("failing").options(**options).option("checkpointLocation", str(path))
    writer.trigger(availableNow=True).start().awaitTermination()


Run = Callable[..., None]
RUNS: Final[dict[str, Run]] = {
    "schema": read,
    "pushFilters": read,
    "Reader.read": read,
    "Writer.write": write,
    "Writer.commit": write,
    "streamReader": stream,
    "StreamReader.partitions": stream,
    "StreamWriter.commit": stream,
}
"""An entry of each program that Spark runs in a worker."""
PARTS: Final[dict[str, Callable[[dict[str, str]], Any]]] = {
    "": Failing,
    **{one.__name__: one for one in (Reader, PushingReader, Writer, StreamReader, StreamWriter)},
}
ENTRY_POINTS: Final = [
    f"{part}.{name}".removeprefix(".")
    for part, made in PARTS.items()
    for name in sorted(vars(made))
    if name in ENTRIES and name != "name" and f"{part}.{name}" != "PushingReader.read"
]


def test_every_entry_of_sparks_interface_is_tried() -> None:
    tried = {at.rpartition(".")[2] for at in ENTRY_POINTS}
    assert tried == ENTRIES - {"name", "stop", "simpleStreamReader"}


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes itself for one of Spark's workers."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.worker", None))
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def report(at: str, kind: str) -> str:
    """What a worker tells Spark about the exception of an entry."""
    part, _, name = at.rpartition(".")
    method = getattr(PARTS[part]({"at": name if part == "PushingReader" else at, "kind": kind}), name)
    reported = io.BytesIO()
    try:
        made = method(*[()] * len(inspect.signature(method).parameters))
        if name == "streamReader":
            made.initialOffset()
        list(made)
    except (InvalidConfigError, ZeroDivisionError) as error:
        handle_worker_exception(error, reported)
    return reported.getvalue()[8:].decode()


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("at", ENTRY_POINTS)
def test_a_worker_reports_a_sentence(at: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "seglog.spark")
    assert report(at, "seglog") == f"seglog.core.errors.InvalidConfigError: {SENTENCE}\n"
    assert "/no such file" in caplog.text
    assert "in fail_at" in caplog.text


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("at", ENTRY_POINTS)
def test_a_worker_reports_the_frames_of_a_fault_of_the_code(at: str) -> None:
    assert "in fail_at" in report(at, "bug")


@pytest.fixture(scope="module")
def failing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.dataSource.register(Failing)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


@pytest.mark.parametrize("at", RUNS)
def test_spark_shows_the_sentence(failing: SparkSession, tmp_path: Path, at: str) -> None:
    with pytest.raises(PySparkException) as caught:
        RUNS[at](failing, tmp_path, at=at, kind="seglog")
    first, second, *_ = [*str(caught.value).splitlines(), ""]
    assert f"InvalidConfigError: {SENTENCE}" in first + second
    assert "Traceback" not in str(caught.value)
    assert "line " not in str(caught.value)


def test_outside_of_a_worker_an_error_keeps_its_frames() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        Failing({"at": "schema", "kind": "seglog"}).schema()
    assert isinstance(caught.value.__cause__, OSError)
    assert [frame.name for frame in caught.traceback][-1] == "fail_at"


def _ours() -> Iterator[type[Any]]:
    for module in pkgutil.walk_packages(seglog.spark.__path__, "seglog.spark."):
        for _, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if found.__module__ == module.name and ENTRIES & vars(found).keys():
                yield found


def test_all_classes_that_spark_calls_are_covered() -> None:
    interfaces = (DataSource, DataSourceReader, DataSourceArrowWriter, DataSourceStreamReader)
    covered = [one for one in _ours() if issubclass(one, (*interfaces, DataSourceStreamArrowWriter))]
    assert len(covered) >= 12
    assert [one.__name__ for one in covered if not issubclass(one, ErrorSentences)] == []

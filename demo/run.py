"""The steps of the demo, top to bottom."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from os.path import relpath
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final

import seglog
from demo import flights, ingest, questions, windows
from demo.picture import draw
from demo.questions import Answers
from demo.show import Show
from seglog.spark import get_spark
from seglog.spark.jobs.compact import compact
from seglog.spark.jobs.export import export

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARK: Final = ".seglog-demo"
"""A file beside the log directory: what the demo has made, it may delete when it is run again."""
SHOWN: Final = 5


def run(directory: Path, limit: int | None = None) -> int:
    """Everything, into ``directory``, with the first ``limit`` flights (None: all). 0, or 1 if an answer is wrong."""
    start = time.perf_counter()
    show = Show()
    log_dir = prepare(directory)
    show.title(
        "seglog",
        "A year of real flights through Spark into Kafka's own files, and back:\n"
        "loaded exactly once, streamed, compacted, exported, checked.",
    )
    with show.step("Unpack the flights", "unpack") as step:
        table = first_rows(flights.read_csv(), limit)
        (directory / "flights.csv").write_bytes(table)
        step.fact(f"{len(table):,} bytes of CSV: who left New York in 2013, when, and how late")
    with show.step("Start Spark", "start Spark") as step:
        jvm_log = directory / "spark.log"
        spark = get_spark("seglog demo", master=CORES, config=SPARK, jvm_log=str(jvm_log))
        step.fact(f"PySpark {spark.version}, {CORES}; what the JVM has to say is in {relpath(jvm_log)}")
    try:
        wrong = pipeline(show, spark, directory, log_dir, table)
        look_at_files(show, log_dir)
        answers = ask(show, spark, log_dir)
    finally:
        spark.stop()
    with show.step("Answer again from the source table, without log and Spark", "check") as step:
        expected = questions.ask_source(table)
        wrong += questions.differences(answers, expected)
        step.fact(f"{questions.count(expected):,} numbers compared, and the windows, the aircraft, the export")
    if not are_equal(show, wrong):
        return 1
    picture = directory / "flights.html"
    picture.write_text(draw(answers, flights.airlines(), describe_size(log_dir)), encoding="utf-8")
    farewell(show, log_dir, picture, time.perf_counter() - start)
    return 0


def first_rows(table: bytes, limit: int | None) -> bytes:
    """The table with its first ``limit`` flights."""
    return table if limit is None else b"".join(table.splitlines(keepends=True)[: limit + 1])


def pipeline(show: Show, spark: SparkSession, directory: Path, log_dir: Path, table: bytes) -> list[str]:
    """Write, stream, compact, export; what came out otherwise than the source table says, in words."""
    path = str(log_dir)
    frame = ingest.read_flights(spark, directory / "flights.csv")
    checkpoint = directory / "checkpoint"
    middle = ingest.middle_of(table)
    with show.step(f"Load the flights before {middle}, in one transaction", "ingest") as step:
        ingest.ingest(frame, path, middle, 1)
        step.fact(f"{describe_size(log_dir)} {ingest.PARTITIONS} partitions by murmur2 of the tail number")
    with show.step("Stream them: each carrier's delays in windows of 15 minutes", "stream") as step:
        first = windows.run_stream(spark, path, checkpoint)
        step.fact(f"{first.rows:,} flights in {first.batches} micro-batches, {len(first.windows):,} windows; stopped")
    with show.step("Load the others, and try the same job once more", "ingest") as step:
        ingest.ingest(frame, path, middle, 2)
        before = count_records(path)
        ingest.ingest(frame, path, middle, 2)
        step.fact(f"{before:,} records; after the second try {count_records(path):,}: it was adopted once")
    with show.step("The stream goes on from its checkpoint", "stream") as step:
        second = windows.run_stream(spark, path, checkpoint)
        step.fact(f"{second.rows:,} flights that it had not seen, {len(second.windows):,} windows now")
    wrong = compare("windows", second.windows, windows.count_source(table))
    if first.rows + second.rows != before:
        wrong.append(f"the stream read {first.rows} and {second.rows} flights of {before}")
    return wrong + compact_aircraft(show, spark, frame, path, table) + export_all(show, spark, directory, path, before)


def compact_aircraft(show: Show, spark: SparkSession, frame: DataFrame, path: str, table: bytes) -> list[str]:
    """A compacted topic with the latest flight of every aircraft."""
    with show.step("Keep of every aircraft the latest flight: a topic compacted by Spark", "compact") as step:
        ingest.ingest_aircraft(frame, path)
        done = compact(spark, path, topics=[ingest.AIRCRAFT], roll=True)
        rows = seglog.scan(path, topics=[ingest.AIRCRAFT], columns=["key", "timestamp"]).read_all()
        step.fact(f"{sum(one.records_read for one in done.partitions):,} records became {rows.num_rows:,}")
    pairs = zip(rows.column("key").to_pylist(), rows.column("timestamp").to_pylist(), strict=True)
    found = {key.decode(): int(departure.timestamp()) // 60 for key, departure in pairs}
    return compare("aircraft", found, questions.latest_departures(table))


def export_all(show: Show, spark: SparkSession, directory: Path, path: str, records: int) -> list[str]:
    """Parquet by topic and date, and again: there is nothing new."""
    with show.step("Export the flights to Parquet by date", "export") as step:
        output, options = directory / "parquet", {"subscribe": ingest.TOPIC}
        first = export(spark, path, output, options=options, value="json")
        again = export(spark, path, output, options=options, value="json")
        step.fact(f"{first.records:,} records in {first.files} files, {first.bytes:,} bytes")
        step.fact(f"a second run exports what is new: {again.records} records")
    return [] if (first.records, again.records) == (records, 0) else [f"export: {first.records} and {again.records}"]


def count_records(path: str) -> int:
    return seglog.scan(path, topics=[ingest.TOPIC], columns=["offset"]).read_all().num_rows


def describe_size(log_dir: Path) -> str:
    segments = list(log_dir.glob(f"{ingest.TOPIC}-*/*.log"))
    return f"{len(segments)} segments, {sum(segment.stat().st_size for segment in segments):,} bytes."


def compare(name: str, got: Mapping[Any, Any], expected: Mapping[Any, Any]) -> list[str]:
    """What differs, in words."""
    return [
        f"{name}: {key}: the log says {got.get(key)}, the source table {expected.get(key)}"
        for key in sorted(got.keys() | expected.keys(), key=str)
        if got.get(key) != expected.get(key)
    ]


def prepare(directory: Path) -> Path:
    """An empty place for the log directory. What an earlier run left is deleted, what is not ours is not."""
    log_dir = directory / "log"
    for made in (log_dir, directory / "checkpoint", directory / "parquet"):
        if made.exists():
            if not (directory / MARK).exists():
                raise SystemExit(f"{made} was not made by this demo: give another --dir")
            shutil.rmtree(made)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()
    return log_dir


def look_at_files(show: Show, log_dir: Path) -> None:
    """The tools, as anybody would call them."""
    path = relpath(log_dir)
    show.command(["ls", path])
    partition = f"{path}/{ingest.TOPIC}-1"
    there = seglog.scan(partition, columns=["offset", "timestamp"]).read_all().to_pylist()
    middle = there[len(there) // 2]
    show.command(["find", partition, "--offset", str(middle["offset"]), "--explain"])
    show.command(["find", partition, "--timestamp", f"{middle['timestamp']:%FT%TZ}", "--explain"])
    show.command(["verify", path])


def ask(show: Show, spark: SparkSession, log_dir: Path) -> Answers:
    """Spark's answers, shown."""
    with show.step("Ask three questions with Spark SQL", "query") as step:
        answers = questions.ask_spark(spark, str(log_dir))
        step.fact(f'spark.read.format("seglog").option("path", "{relpath(log_dir)}").load()')
    names = flights.airlines()
    for query, title, columns, rows in (
        (
            questions.CARRIERS,
            "Which carrier is late?",
            ("carrier", "flights", "mean delay, minutes"),
            [
                (names.get(carrier, carrier), f"{delays.flights:,}", f"{delays.mean:.2f}")
                for carrier, delays in sorted(answers.carriers.items(), key=lambda item: -item[1].mean)
            ],
        ),
        (
            questions.HOURS,
            "Which hour was the busiest?",
            ("hour, UTC", "in New York", "flights"),
            [
                (f"{hour.utc}:00", f"{hour.new_york[-2:]}:00", str(count))
                for hour, count in sorted(answers.hours.items(), key=lambda item: (-item[1], item[0]))[:SHOWN]
            ],
        ),
        (
            questions.DAYS,
            "Which day was the worst?",
            ("day", "flights", "left", "mean delay, minutes"),
            [
                (day, f"{delays.flights:,}", f"{delays.departed:,}", f"{delays.mean:.2f}")
                for day, delays in sorted(answers.days.items(), key=lambda item: -item[1].mean)[:SHOWN]
            ],
        ),
    ):
        show.line()
        show.sql(indent(query, "  "))
        show.table(title, columns, rows)
    return answers


CORES: Final = "local[*]"
SPARK: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # For a job of seconds the JVM's second compiler costs more than it brings: half of the CPU time of this one.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def are_equal(show: Show, wrong: Sequence[str]) -> bool:
    """Whether all answers are those of the source table; says which are not."""
    if not wrong:
        show.line("  all are equal: each carrier, each hour, each day, each window, each aircraft")
        return True
    show.line(f"  {len(wrong):,} answers are not those of the source table:", "bold red")
    for line in wrong[:SHOWN]:
        show.line(f"  {line}", "red")
    return False


def farewell(show: Show, log_dir: Path, picture: Path, took: float) -> None:
    """What was done, in what time, and what to do next."""
    show.line()
    spent = ", ".join(f"{name} {seconds:.1f}" for name, seconds in show.times.items())
    show.line(f"Done in {took:.1f} s ({spent}).", "bold")
    show.line(f"The answers as a picture: {picture.resolve().as_uri()}")
    path = shlex.quote(relpath(log_dir))
    show.line()
    show.line("Try next:", "bold")
    if sys.prefix != sys.base_prefix:
        show.line(f"  . {shlex.quote(relpath(sys.prefix))}/bin/activate", "cyan")
    count = f"get_spark().read.format('seglog').load('{path}').groupBy('partition').count().show()"
    for command in (
        f"seglog dump {path}/{ingest.TOPIC}-0/00000000000000000000.log | head",
        f"seglog dump --records --json {path}/{ingest.TOPIC}-0 | head -3",
        f"seglog find {path}/{ingest.TOPIC}-2 --timestamp 2013-07-04T12:00:00Z --explain",
        f"python -c \"import seglog; print(seglog.scan('{path}', columns=['key', 'offset']).read_all())\"",
        f'python -c "from seglog.spark import get_spark; {count}"',
    ):
        show.line(f"  {command}", "cyan")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    from argparse import ArgumentParser

    from seglog.core.errors import SeglogError

    parser = ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("demo-out"), help="where everything goes (default: demo-out)")
    parser.add_argument("--flights", type=int, default=None, metavar="N", help="only the first N flights")
    options = parser.parse_args(arguments)
    if options.flights is not None and options.flights < 1:
        parser.error("--flights: at least 1")
    try:
        return run(options.dir, options.flights)
    except SeglogError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2

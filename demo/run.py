"""The steps of the demo, top to bottom."""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from os.path import relpath
from pathlib import Path
from textwrap import indent
from typing import Final

from demo import flights, questions
from demo.load import PARTITIONS, TOPIC, Written, load
from demo.picture import draw
from demo.questions import Answers
from demo.show import Show
from seglog.records.record import NewRecord
from seglog.spark import get_spark

MARK: Final = ".seglog-demo"
"""A file beside the log directory: what the demo has made, it may delete when it is run again."""
SHOWN: Final = 5


def run(directory: Path, limit: int | None = None) -> int:
    """Everything, into ``directory``, with the first ``limit`` flights (None: all). 0, or 1 if an answer is wrong."""
    start = time.perf_counter()
    show = Show()
    log_dir = prepare(directory)
    show.title(
        "seglog", "A year of real flights in Kafka's own files, found again,\nand analysed by Spark from those files."
    )
    with show.step("Read the flights", "read") as step:
        table = flights.read_csv()
        records = flights.to_records(table, limit)
        step.fact(f"{len(records):,} flights that left New York in 2013, by scheduled departure; the first one:")
        step.fact(describe(records[0]))
    with show.step("Append them to Kafka's log files", "append") as step:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            step.progress(done, len(records))

        written = load(str(log_dir), records, advance)
        step.fact(
            f"{written.records:,} records in {written.batches:,} batches, compressed by zstd to {written.size:,} bytes"
        )
        step.fact(f"{PARTITIONS} partitions by murmur2 of the tail number, {written.segments} segments of 1 MiB")
    middle = records[len(records) // 2]
    look_at_files(show, log_dir, written, middle)
    answers = ask(show, directory, log_dir)
    with show.step("Answer them again from the source table, without log and Spark", "check"):
        expected = questions.ask_source(table, limit)
    if not are_equal(show, answers, expected):
        return 1
    picture = directory / "flights.html"
    facts = f"{written.segments} segments, {written.size:,} bytes."
    picture.write_text(draw(answers, flights.airlines(), facts), encoding="utf-8")
    farewell(show, log_dir, picture, time.perf_counter() - start)
    return 0


def prepare(directory: Path) -> Path:
    """An empty place for the log directory. What an earlier run left is deleted, what is not ours is not."""
    log_dir = directory / "log"
    if log_dir.exists():
        if not (directory / MARK).exists():
            raise SystemExit(f"{log_dir} was not made by this demo: give another --dir")
        shutil.rmtree(log_dir)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()
    return log_dir


def describe(record: NewRecord) -> str:
    """A record in one line, as console consumers print them."""
    time_ = datetime.fromtimestamp(record.timestamp / 1000, UTC)
    key = bytes(record.key or b"null").decode()
    headers = ",".join(f"{name}:{bytes(value or b'').decode()}" for name, value in record.headers)
    return f"{time_:%F %T}Z  {key}  {headers}  {bytes(record.value or b'').decode()[:60]}…"


def look_at_files(show: Show, log_dir: Path, written: Written, middle: NewRecord) -> None:
    """The tools, as anybody would call them."""
    path = relpath(log_dir)
    show.command(["ls", path])
    partition = f"{path}/{TOPIC}-1"
    show.command(["find", partition, "--offset", str(written.records // PARTITIONS // 2), "--explain"])
    show.command(["find", partition, "--timestamp", str(middle.timestamp), "--explain"])
    show.command(["verify", path])


def ask(show: Show, directory: Path, log_dir: Path) -> Answers:
    """Spark's answers, shown."""
    jvm_log = directory / "spark.log"
    with show.step("Start Spark", "start Spark") as step:
        cores = "local[*]"
        spark = get_spark("seglog demo", master=cores, config=SPARK, jvm_log=str(jvm_log))
        step.fact(f"PySpark {spark.version}, {cores}; what the JVM has to say is in {relpath(jvm_log)}")
    try:
        with show.step("Ask three questions with Spark SQL", "query") as step:
            answers = questions.ask_spark(spark, str(log_dir))
            step.fact(f'spark.read.format("seglog").option("path", "{relpath(log_dir)}").load()')
    finally:
        spark.stop()
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


SPARK: Final = {
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "1g",
    # For a job of seconds the JVM's second compiler costs more than it brings: half of the CPU time of this one.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def are_equal(show: Show, answers: Answers, expected: Answers) -> bool:
    """Whether Spark's answers are those of the source table; says how many are, and which are not."""
    wrong = questions.differences(answers, expected)
    count = len(expected.carriers) + len(expected.hours) + len(expected.days)
    if not wrong:
        show.line(f"  all {count:,} numbers are equal: each carrier, each hour, each day")
        return True
    show.line(f"  {len(wrong):,} answers of Spark are not those of the source table ({count:,}):", "bold red")
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
        f"seglog dump {path}/{TOPIC}-0/00000000000000000000.log | head",
        f"seglog dump --records --json {path}/{TOPIC}-0 | head -3",
        f"seglog find {path}/{TOPIC}-2 --timestamp 2013-07-04T12:00:00Z --explain",
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

"""The steps of the demo, top to bottom."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import invalidate_caches
from os.path import relpath
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Final

import seglog
from demo import flights, questions, tables, windows
from demo.cluster import NODES, Cluster, Flown, differences, fly, leader_of_first, read_committed
from demo.group import GROUP, Group, balanced, describe
from demo.picture import draw
from demo.produce import CONFIG, PARTITIONS, TOPIC, Flight, produce
from demo.produce import flights as read_flights
from demo.questions import Answers
from demo.server import Server
from demo.show import Show
from seglog.spark import get_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK: Final = ".seglog-demo"
"""A file beside the log directory: it marks a directory whose content the demo may delete."""
SHOWN: Final = 5
TOLD: Final = frozenset({"group", "produce", "broker", "three brokers", "stream"})
"""Steps that the picture shows: the group, the broker, the failover and the windows."""


def run(directory: Path, limit: int | None = None, install: str | None = None) -> int:
    """Run all steps in ``directory`` with the first ``limit`` flights (None: all). 1 if an answer is wrong, else 0.

    ``install`` is a command that installs Spark. It runs while the broker works.
    """
    start = time.perf_counter()
    show = Show()
    log_dir = prepare(directory)
    show.title(
        "seglog",
        "A year of real flights through a broker that is Kafka to its clients:\n"
        "produced, consumed by a group that loses a member, and asked by Spark over\n"
        "the network. Then three brokers: Spark streams from them while one is\n"
        "killed, and writes its windows back, each exactly once.",
    )
    with ThreadPoolExecutor(1) as background:
        starting = background.submit(start_spark, directory, install)
        try:
            with Server(log_dir, directory / "broker.log") as server:
                say_ready(show, server)
                table = first_rows(flights.read_csv(), limit)
                wrong, answers = serve(show, server, directory, log_dir, table, starting)
                with show.step("Stop the broker", "broker") as step:
                    step.fact(f"flushed and gone {server.stop():.2f} s after SIGTERM")
            look_at_files(show, log_dir)
            wrong += three_brokers(show, starting.result(), directory, table)
        finally:
            starting.result().stop()
    with show.step("Answer again from the source table, without broker, log and Spark", "check") as step:
        expected = questions.ask_source(table)
        wrong += questions.differences(answers, expected)
        step.fact(f"{questions.count(expected):,} numbers compared, and the group's, the windows, the table's")
    if not are_equal(show, wrong):
        return 1
    picture = directory / "flights.html"
    story = [(title, facts) for name, title, facts in show.story if name in TOLD]
    picture.write_text(draw(answers, flights.airlines(), describe_size(log_dir), story), encoding="utf-8")
    farewell(show, log_dir, picture, time.perf_counter() - start)
    return 0


def start_spark(directory: Path, install: str | None) -> SparkSession:
    """Start a session; before that, run the command ``install``. Raises SystemExit with its output if it fails."""
    if install is not None:
        done = subprocess.run(shlex.split(install), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{install} ended with {done.returncode}: {done.stdout}{done.stderr}")
        invalidate_caches()  # what it has installed can be imported
    return get_spark("seglog demo", master=CORES, config=SPARK, jvm_log=str(directory / "spark.log"))


def first_rows(table: bytes, limit: int | None) -> bytes:
    """The table with its first ``limit`` flights."""
    return table if limit is None else b"".join(table.splitlines(keepends=True)[: limit + 1])


def say_ready(show: Show, server: Server) -> None:
    show.line()
    show.line(
        f"$ seglog {shlex.join([relpath(part) if part.startswith('/') else part for part in server.command])}",
        "bold cyan",
    )
    memory = f", {server.memory / 1e6:.0f} MB" if server.memory else ""
    show.line(f"  ready after {server.ready['seconds']:.2f} s on {server.bootstrap}{memory}")
    config = [part for item in CONFIG.items() for part in ("--config", "=".join(item))]
    show.command(["topics", "create", TOPIC, "--partitions", str(PARTITIONS), *config, "-b", server.bootstrap])


def serve(
    show: Show, server: Server, directory: Path, log_dir: Path, table: bytes, starting: Future[SparkSession]
) -> tuple[list[str], Answers]:
    """The steps that need the broker. Returns differences from the source table as text, and Spark's answers."""
    with Group(server.bootstrap, directory / "group.log") as group:
        records = consume(show, server, group, table)
        with show.step("Wait for Spark, which was installed and started meanwhile", "start Spark") as step:
            spark = starting.result()
            # Spark finds a sink by the session that is active in the calling thread, and this makes it active here.
            spark.createDataFrame([], "flight string")
            step.fact(f"PySpark {spark.version}, {CORES}; the JVM's log is {relpath(directory / 'spark.log')}")
        wrong = account(show, server, group, records, table)
    answers = ask(show, spark, server.bootstrap)
    return wrong + keep_as_table(show, spark, directory, str(log_dir), answers), answers


def consume(show: Show, server: Server, group: Group, table: bytes) -> list[Flight]:
    """Produce the first half of the flights for two consumers, and kill one. Returns all flights in order."""
    with show.step("Two consumers of a group wait for flights", "group") as step:
        group.wait(balanced, "its balance")
        records = read_flights(table)
        for member, partitions in sorted(group.books.assigned.items()):
            step.fact(f"member {member} has partitions {', '.join(map(str, partitions))} of {TOPIC}")
    half = records[: len(records) // 2]
    title = "A stock client produces the flights until summer; one of the two is killed"
    with show.step(title, "produce") as step, ThreadPoolExecutor(1) as client:
        produced = client.submit(produce, server.bootstrap, half)
        group.wait(lambda books: books.committed["one"] > 1 or books.flights == len(half), "its first commits")
        group.kill("one")
        killed, read = time.perf_counter(), group.books.flights
        took = produced.result()
        step.fact(f"confluent-kafka: {len(half):,} flights acknowledged in {took:.1f} s, zstd, idempotent")
        group.wait(lambda books: len(books.assigned["two"]) == PARTITIONS, "its new balance")
        alone = time.perf_counter() - killed
        step.fact(f"member one: kill -9 when {read:,} were read; member two has all partitions {alone:.1f} s later")
    return records


def account(show: Show, server: Server, group: Group, records: Sequence[Flight], table: bytes) -> list[str]:
    """Produce the other half of the flights, and check the group's reads by its books."""
    with show.step("The other flights arrive, for the member that is left", "group") as step:
        produce(server.bootstrap, records[len(records) // 2 :])
        group.wait(lambda books: books.flights == len(records) and "two" not in books.uncommitted, "the last flight")
        books = group.books
        step.fact(f"member two went on where member one had committed: partition {describe(books.taken_over)}")
        step.fact(f"{books.flights:,} flights: none lost; {books.twice:,} were read, not committed, and read again")
    show.command(["groups", "describe", GROUP, "-b", server.bootstrap])
    group.leave()
    found = questions.ask_source(table).carriers
    return books.wrong + compare("the group", books.carriers, {name: one.flights for name, one in found.items()})


def keep_as_table(show: Show, spark: SparkSession, directory: Path, path: str, answers: Answers) -> list[str]:
    """Keep the flights as a table while the broker runs, and have three engines count it. Returns wrong counts."""
    where = directory / "warehouse" / TOPIC
    with show.step("Keep the flights as a table: Parquet, and Iceberg over it", "table") as step:
        done = tables.keep(path, where)
        step.fact(f"$ seglog table {relpath(path)} {relpath(where.parent)} --topic {TOPIC} --value-format json …")
        files = f"{done.added_files} file{'s' * (done.added_files != 1)}"
        step.fact(f"{done.added_records:,} records, each once, in {files}, {done.added_bytes:,} bytes")
    wrong = []
    with show.step("Three engines ask the table: Spark's own reader, DuckDB and Polars", "table") as step:
        for engine, count in tables.ENGINES.items():
            began = time.perf_counter()
            found = count(spark, where)
            step.fact(f"{engine}: the delays of {len(found)} carriers in {time.perf_counter() - began:.1f} s")
            wrong += compare(engine, found, answers.carriers)
    return wrong


def three_brokers(show: Show, spark: SparkSession, directory: Path, table: bytes) -> list[str]:
    """Send the same flights through three brokers, and kill one in the middle, while Spark streams them."""
    records = read_flights(table)
    with Cluster(directory / "cluster", directory / "cluster.log") as cluster:
        show.line()
        show.line(f"$ seglog {shlex.join(cluster.command)}", "bold cyan")
        show.line(f"  {NODES} brokers are ready after {cluster.ready['seconds']:.2f} s on {cluster.bootstrap}")
        config = [part for item in CONFIG.items() for part in ("--config", "=".join(item))]
        topic = ["--partitions", str(PARTITIONS), *config, "-b", cluster.bootstrap]
        show.command(["topics", "create", TOPIC, *topic])
        show.command(["topics", "create", windows.WINDOWS, "--partitions", "2", "-b", cluster.bootstrap])
        wrong = stream(show, spark, cluster, directory / "checkpoint", records)
        show.command(["topics", "describe", TOPIC, windows.WINDOWS, "-b", cluster.bootstrap])
        with show.step("The topics on the remaining two brokers, read_committed", "three brokers") as step:
            lost = differences(read_committed(cluster.bootstrap, TOPIC), [*records, windows.CLOSING])
            step.fact(f"{len(records):,} flights: nothing is missing, nothing is there twice" if not lost else lost[0])
            found, twice = windows.read_windows(read_committed(cluster.bootstrap, windows.WINDOWS))
            bad = twice + compare("windows", found, windows.count_source(table))
            step.fact(f"{len(found):,} windows: each is there exactly once, and right" if not bad else bad[0])
    return wrong + lost + bad


def stream(show: Show, spark: SparkSession, cluster: Cluster, checkpoint: Path, records: Sequence[Flight]) -> list[str]:
    """Stream the flights through the brokers while they are produced and one broker is killed, and then the windows.

    Returns what is wrong with the number of rows that the stream has read.
    """
    victim = leader_of_first(cluster.bootstrap)
    title = f"All flights again, with acks=all, and Spark streams them; broker {victim} is killed meanwhile"
    with show.step(title, "three brokers") as step:
        flown: list[Flown] = []
        first = windows.run_stream(
            spark, cluster.bootstrap, checkpoint, lambda: flown.append(fly(cluster, records, victim))
        )
        (one,) = flown
        step.fact(f"kill -9 when {one.killed_at:,} flights were acknowledged; the client noticed a pause of")
        step.fact(f"{one.pause:.1f} s; {one.acknowledged:,} flights acknowledged in {one.seconds:.1f} s")
        step.fact(f"the stream read {first.rows:,} flights in {first.batches} micro-batches, and was stopped")
    with show.step("The stream continues from its checkpoint and writes its windows, exactly once", "stream") as step:
        second = windows.run_stream(
            spark, cluster.bootstrap, checkpoint, lambda: produce(cluster.bootstrap, [windows.CLOSING])
        )
        step.fact(f'writeStream.format("seglog").option("topic", "{windows.WINDOWS}"): delays by carrier, in windows')
        step.fact(f"of {windows.MINUTES} minutes; in transactions, through the two brokers that are left")
    if (first.rows, second.rows) != (len(records), 1):
        return [f"the stream read {first.rows} and {second.rows} of {len(records)} flights and 1 closing record"]
    return []


def describe_size(log_dir: Path) -> str:
    segments = list(log_dir.glob(f"{TOPIC}-*/*.log"))
    return f"{len(segments)} segments, {sum(segment.stat().st_size for segment in segments):,} bytes."


def compare(name: str, got: Mapping[Any, Any], expected: Mapping[Any, Any]) -> list[str]:
    """The differences as text."""
    return [
        f"{name}: {key}: the log says {got.get(key)}, the source table {expected.get(key)}"
        for key in sorted(got.keys() | expected.keys(), key=str)
        if got.get(key) != expected.get(key)
    ]


def prepare(directory: Path) -> Path:
    """A path for the log directory. Deletes the files of an earlier run; refuses a directory that is not the demo's."""
    log_dir = directory / "log"
    for made in (log_dir, directory / "checkpoint", directory / "warehouse", directory / "cluster"):
        if made.exists():
            if not (directory / MARK).exists():
                raise SystemExit(f"{made} was not made by this demo: give another --dir")
            shutil.rmtree(made)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / MARK).touch()
    return log_dir


def look_at_files(show: Show, log_dir: Path) -> None:
    """Run commands of seglog on the files."""
    path = relpath(log_dir)
    partition = f"{path}/{TOPIC}-1"
    there = seglog.scan(partition, columns=["offset", "timestamp"]).read_all().to_pylist()
    middle = there[len(there) // 2]
    show.command(["find", partition, "--timestamp", f"{middle['timestamp']:%FT%TZ}", "--explain"])
    show.command(["verify", path])


def ask(show: Show, spark: SparkSession, bootstrap: str) -> Answers:
    """Ask Spark, and show its answers."""
    with show.step("Ask the live broker three questions with Spark SQL", "query") as step:
        answers = questions.ask_spark(spark, bootstrap)
        step.fact(f'spark.read.format("seglog").option("kafka.bootstrap.servers", "{bootstrap}").load()')
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
    """Whether all answers equal those of the source table; prints those that do not."""
    if not wrong:
        show.line("  all are equal: each carrier, each hour, each day, each window; and the group has lost nothing")
        return True
    show.line(f"  {len(wrong):,} answers are not those of the source table:", "bold red")
    for line in wrong[:SHOWN]:
        show.line(f"  {line}", "red")
    return False


def farewell(show: Show, log_dir: Path, picture: Path, took: float) -> None:
    """Print the times, and commands to try next."""
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
        f"seglog console {path}",
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
    parser.add_argument("--install", metavar="COMMAND", help="a command that installs Spark while the broker works")
    parser.add_argument("--flights", type=int, default=None, metavar="N", help="only the first N flights")
    options = parser.parse_args(arguments)
    if options.flights is not None and options.flights < 1:
        parser.error("--flights: at least 1")
    try:
        return run(options.dir, options.flights, options.install)
    except SeglogError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2

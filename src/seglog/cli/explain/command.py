"""`seglog explain`: why data is still there, when it goes, and why a reader sees what it sees."""

from __future__ import annotations

import os.path
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from seglog.cli.explain.partitions import Directory, ExplainedPartition, Question
from seglog.cli.explain.sentences import Forecast, SegmentVerdict, shown_config
from seglog.cli.explain.words import Statement
from seglog.cli.offline.files import expand_partitions, partition_of
from seglog.cli.options import JsonDocument, OptionError, parse_time, read_properties
from seglog.cli.output import DAMAGE, FINE, Out, count, fail, format_size, format_time
from seglog.cli.wire.configs import parse_configs
from seglog.core.clock import SystemClock
from seglog.core.fs import Fs, OsFs
from seglog.storage.formats.checkpoints import encode_id
from seglog.storage.formats.paths import is_partition
from seglog.storage.offline.topic_configs import ConfigLayer, split_properties

if TYPE_CHECKING:
    from seglog.cli.wire.clients import Cluster

_START_KEYS = ("cluster.id", "node.id", "broker.id")


def explain(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Log directories or partitions; with -b also topics.", show_default=False
        ),
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC", help="Only these topics of a log directory.", show_default="all"
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Foretell what will be gone by TIME: ms, ISO 8601, or +3d.", show_default="now"
        ),
    ] = None,
    now: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="The present, to count from; for a copy or a backup.", show_default="now"),
    ] = None,
    offset: Annotated[int | None, typer.Option(metavar="N", min=0, help="Explain the look-up of this offset.")] = None,
    time: Annotated[str | None, typer.Option(metavar="TIME", help="Explain the look-up of this time.")] = None,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Explain the lag of this group.", show_default=False)
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Explain whether a broker starts on the directories, and what it changes.")
    ] = False,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="Configuration of the topics.", show_default=False),
    ] = None,
    config_file: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Properties of topics or of a broker.", show_default=False),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="Ask brokers, too.", show_default=False),
    ] = None,
    command_config: Annotated[
        str | None,
        typer.Option("--command-config", "-F", metavar="FILE", help="Settings of the client.", show_default=False),
    ] = None,
    json: JsonDocument = False,
) -> int:
    """Explain why each segment is still there and when it goes, why a partition is not compacted, why a lag stays, why
    a look-up found what it found, and why a start is refused. It changes nothing.

    Configuration comes from Kafka's defaults, then __cluster_metadata and seglog.topics in the directory, brokers,
    files, and --config; the later wins. The exit code is 1 with --start if the start is refused.
    """
    clock = SystemClock()
    now_ms = clock.now_ms() if now is None else read_time("--now", now, clock.now_ms())
    forecast = Forecast(now_ms, None if at is None else read_time("--at", at, now_ms))
    timestamp = None if time is None else read_time("--time", time, now_ms)
    if offset is not None and timestamp is not None:
        return fail("--offset and --time exclude each other")
    layers, properties = _layers(config, config_file)
    cluster = _cluster(bootstrap, command_config)
    fs = OsFs()
    asked = [path for path in paths if not os.path.isdir(path)]
    for path in asked:
        if not path or cluster is None or os.path.sep in path:
            return fail(f"{path or 'the path'} is not a directory; to ask brokers about a topic, add -b HOST:PORT")
    directories = [os.path.realpath(path) for path in paths if os.path.isdir(path)]
    question = Question(forecast, offset, timestamp, group)
    if start:
        return _explain_start(fs, directories, properties, json=json)
    explained = [one for path in directories for one in _explain(fs, path, topics, layers, cluster, question)]
    if not explained and not asked:
        return fail(f"no partition {'of the topics ' if topics else ''}is in {', '.join(paths)}")
    told: list[tuple[str, list[Statement]]] = []
    if asked and cluster is not None:
        from seglog.cli.explain.brokers import explain_topic

        told = [(str(place), found) for topic in asked for place, found in explain_topic(cluster, topic, question)]
    with Out() as out:
        if json:
            out.json(_document(forecast, explained, told))
        else:
            for number, one in enumerate(explained):
                _show(out, one, forecast, is_first=number == 0)
            for place, statements in told:
                out.line(place)
                _show_statements(out, statements)
    return FINE


def read_time(option: str, text: str, now_ms: int) -> int:
    """A time, also one to come, such as +3d. `OptionError` names the option."""
    try:
        if text[:1] == "+":
            return 2 * now_ms - parse_time(f"-{text[1:]}", _Fixed(now_ms))
        return parse_time(text, _Fixed(now_ms))
    except ValueError:
        raise OptionError(
            f"{option} must be milliseconds since 1970, a time like 2013-01-01T05:00:00Z, -1h or +3d, not {text}"
        ) from None


class _Fixed(SystemClock):
    """A clock that stands at the present of the explanation."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms


def _layers(config: list[str] | None, files: list[str] | None) -> tuple[list[ConfigLayer], Mapping[str, str]]:
    layers, properties = [], dict[str, str]()
    for path in files or ():
        given = read_properties(path)
        properties.update(given)
        layers.append(split_properties(path, given))
    if config:
        layers.append(ConfigLayer("--config", parse_configs(config, "--config"), {}))
    return layers, properties


def _cluster(bootstrap: str | None, command_config: str | None) -> Cluster | None:
    if bootstrap is None:
        return None
    from seglog.cli.wire.clients import Brokers

    return Brokers(bootstrap=bootstrap, command_config=command_config).cluster()


def _explain(
    fs: Fs,
    path: str,
    topics: Sequence[str] | None,
    layers: Sequence[ConfigLayer],
    cluster: Cluster | None,
    question: Question,
) -> list[ExplainedPartition]:
    directory = directory_of(fs, os.path.dirname(path) if is_partition(fs, path) else path, layers, cluster)
    found = []
    for partition in expand_partitions(fs, path):
        known = partition_of(partition)
        if topics is None or (known is not None and known.topic_partition.topic in topics):
            found.append(directory.explain(partition, question))
    return found


def directory_of(fs: Fs, path: str, layers: Sequence[ConfigLayer], cluster: Cluster | None) -> Directory:
    """A log directory, of which brokers tell configurations and groups if there is a ``cluster``."""
    asked = positions = None
    if cluster is not None:
        from seglog.cli.explain.brokers import asked_config, asked_positions

        asked, positions = asked_config(cluster), asked_positions(cluster)
    return Directory(fs, path, layers, asked, positions)


def _explain_start(fs: Fs, paths: Sequence[str], properties: Mapping[str, str], *, json: bool) -> int:
    from seglog.cli.explain.start import start_statements

    if not paths:
        return fail("--start needs the log directories of a broker")
    for path in paths:
        if is_partition(fs, path):
            return fail(f"{path} is a partition's directory: --start needs the log directory {os.path.dirname(path)}")
    node = properties.get("node.id", properties.get("broker.id"))
    if node is not None and not node.strip().isdecimal():
        raise OptionError(f"node.id {node!r} is not a number")
    node_id = None if node is None else int(node)
    found = start_statements(fs, SystemClock(), paths, cluster_id=properties.get("cluster.id"), node_id=node_id)
    with Out() as out:
        if json:
            out.json({"statements": [one.document() for one in found]})
        else:
            for one in found:
                out.line(one.text)
    return DAMAGE if any(one.facts.get("isRefused") for one in found) else FINE


# Output


def _show(out: Out, one: ExplainedPartition, forecast: Forecast, *, is_first: bool) -> None:
    state = one.state
    name = str(state.topic_partition or os.path.basename(state.path))
    if not is_first:
        out.line("")
    out.line(f"{name}: {count(len(state.segments), 'segment')}, {format_size(state.size)}")
    for verdict in one.verdicts:
        is_gone = verdict.fate.is_due(forecast.until_ms) and forecast.at_ms is not None
        mark = f"gone by {format_time(forecast.at_ms)}; " if is_gone else ""
        kind = "active segment" if verdict.segment.is_active else "segment"
        out.line(
            f"  {kind} {verdict.segment.base_offset} ({format_size(verdict.segment.size)}): {mark}{verdict.text} "
            f"[{verdict.rule}]"
        )
    _show_statements(out, one.statements)


def _show_statements(out: Out, statements: Sequence[Statement]) -> None:
    for one in statements:
        out.line(f"  {one.about}: {one.text} [{one.rule}]")


def _document(
    forecast: Forecast, explained: Sequence[ExplainedPartition], told: Sequence[tuple[str, Sequence[Statement]]]
) -> dict[str, object]:
    return {
        "now": forecast.now_ms,
        "at": forecast.at_ms,
        "partitions": [partition_document(one, forecast) for one in explained],
        "brokers": [
            {"partition": place, "statements": [one.document() for one in statements]} for place, statements in told
        ],
    }


def partition_document(one: ExplainedPartition, forecast: Forecast) -> dict[str, object]:
    state = one.state
    return {
        "topic": state.topic_partition.topic if state.topic_partition else None,
        "partition": state.topic_partition.partition if state.topic_partition else None,
        "topicId": encode_id(state.topic_id) if state.topic_id else None,
        "path": state.path,
        "size": state.size,
        "logStartOffset": state.log_start_offset,
        "lastStableOffset": state.last_stable_offset,
        "highWatermark": state.high_watermark,
        "logEndOffset": state.log_end_offset,
        "config": {
            key: {"value": value, "origin": origin} for key, (value, origin) in shown_config(one.config).items()
        },
        "segments": [_segment_document(verdict, forecast) for verdict in one.verdicts],
        "statements": [statement.document() for statement in one.statements],
    }


def _segment_document(verdict: SegmentVerdict, forecast: Forecast) -> dict[str, object]:
    segment, fate = verdict.segment, verdict.fate
    return {
        "baseOffset": segment.base_offset,
        "nextOffset": segment.next_base_offset,
        "size": segment.size,
        "firstTimestamp": segment.first_timestamp,
        "maxTimestamp": segment.max_timestamp,
        "isActive": segment.is_active,
        "rule": verdict.rule,
        "goesMs": verdict.goes_ms,
        "isGone": fate.is_due(forecast.until_ms),
        "waitsFor": fate.waits_for,
        "text": verdict.text,
    }

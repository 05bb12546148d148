"""`seglog dump`: the contents of files, line for line as Kafka 4.4's DumpLogSegments prints them, or as JSON."""

from __future__ import annotations

import os.path
from typing import Annotated

import typer

from seglog.cli.dump.index_text import IndexFindings, dump_offset_index, dump_snapshot, dump_time_index, dump_txn_index
from seglog.cli.dump.lax_records import Decoder
from seglog.cli.dump.log_text import DumpOptions, dump_log, log_title
from seglog.cli.offline.files import CHECKPOINT, expand_files, java_path, open_file
from seglog.cli.options import ISOLATION_LEVELS, check_choice
from seglog.cli.output import DAMAGE, FINE, Out, fail, warn
from seglog.core.errors import CorruptError, CorruptSnapshotError
from seglog.core.fs import Fs, OsFs
from seglog.core.types import MAX_INT32
from seglog.storage.formats.paths import INDEX, LOG, SNAPSHOT, TIME_INDEX, TXN_INDEX


def dump(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Files, partitions or log directories.", show_default=False),
    ] = None,
    files: Annotated[str | None, typer.Option(metavar="A,B", help="Files, separated by commas.")] = None,
    print_data_log: Annotated[bool, typer.Option("--print-data-log", help="Print keys and values too.")] = False,
    deep_iteration: Annotated[bool, typer.Option("--deep-iteration", help="Print a line for each record.")] = False,
    index_sanity_check: Annotated[
        bool, typer.Option("--index-sanity-check", help="Check indexes only as a broker does at its start.")
    ] = False,
    verify_index_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Compare indexes with the log and print no entries.")
    ] = False,
    max_bytes: Annotated[
        int, typer.Option(metavar="BYTES", min=0, max=MAX_INT32, help="Read at most this much of each log.")
    ] = (MAX_INT32),
    max_message_size: Annotated[
        int, typer.Option(metavar="BYTES", min=0, max=MAX_INT32, help="Largest batch that an index entry may point to.")
    ] = 5 << 20,
    offsets_decoder: Annotated[bool, typer.Option("--offsets-decoder", help="Decode __consumer_offsets.")] = False,
    transaction_log_decoder: Annotated[
        bool, typer.Option("--transaction-log-decoder", help="Decode __transaction_state.")
    ] = False,
    share_group_state_decoder: Annotated[
        bool, typer.Option("--share-group-state-decoder", help="Decode __share_group_state.")
    ] = False,
    cluster_metadata_decoder: Annotated[
        bool, typer.Option("--cluster-metadata-decoder", help="Decode __cluster_metadata.")
    ] = False,
    remote_log_metadata_decoder: Annotated[
        bool, typer.Option("--remote-log-metadata-decoder", help="Not supported.", hidden=True)
    ] = False,
    key_decoder_class: Annotated[
        str | None, typer.Option(metavar="CLASS", help="Kafka's StringDecoder, IntegerDecoder or LongDecoder.")
    ] = None,
    value_decoder_class: Annotated[str | None, typer.Option(metavar="CLASS", help="The same, for values.")] = None,
    skip_record_metadata: Annotated[
        bool, typer.Option("--skip-record-metadata", help="Print only keys and values.")
    ] = False,
    records: Annotated[bool, typer.Option("--records", help="Print one JSON object per record (with --json).")] = False,
    isolation_level: Annotated[
        str, typer.Option(metavar="|".join(ISOLATION_LEVELS), help="With --records: which records.")
    ] = ISOLATION_LEVELS[0],
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")] = False,
) -> int:
    """Print the contents of log files, as Kafka's DumpLogSegments does."""
    named = [*(files.rstrip(",").split(",") if files else []), *(paths or [])]
    if remote_log_metadata_decoder:
        return fail(
            "--remote-log-metadata-decoder is not supported: Kafka prints those records as Java objects, in no stable "
            "form"
        )
    if not named:
        return fail("dump needs files: --files A,B or paths (see seglog dump --help)")
    check_choice("--isolation-level", isolation_level, ISOLATION_LEVELS)
    topics = (offsets_decoder, transaction_log_decoder, cluster_metadata_decoder, share_group_state_decoder)
    try:
        decoder = _decoder(*topics, classes=(key_decoder_class, value_decoder_class))
    except ValueError as error:
        return fail(error)
    with Out() as out:
        if records or json:
            from seglog.cli.dump.json_lines import dump_json, dump_records

            if records:
                return dump_records(OsFs(), named, out, read_committed=isolation_level == ISOLATION_LEVELS[1])
            return dump_json(OsFs(), named, out, max_bytes=max_bytes)
        contents = print_data_log or decoder is not None
        options = DumpOptions(
            deep=deep_iteration or contents,
            contents=contents,
            skip_metadata=skip_record_metadata,
            decoder=decoder,
            sanity_only=index_sanity_check,
            quiet=verify_index_only,
            max_message_bytes=max_message_size,
            max_bytes=max_bytes,
        )
        return dump_text(OsFs(), named, options, out)


def _decoder(
    offsets: bool, transactions: bool, cluster: bool, share: bool, *, classes: tuple[str | None, str | None]
) -> Decoder | None:
    """The one that Kafka's tool would take of several; ValueError for a class that is not built in."""
    if not (offsets or transactions or cluster or share or any(classes)):
        return None
    from seglog.cli.dump import decoders

    if offsets:
        return decoders.decode_offsets
    if transactions:
        return decoders.decode_transactions
    if cluster:
        return decoders.decode_cluster_metadata
    if share:
        return decoders.decode_share_state
    return decoders.plain_decoder(*classes)


def dump_text(fs: Fs, named: list[str], options: DumpOptions, out: Out) -> int:
    """Print files as Kafka's tool does. Like it, stop at the first file that cannot be read to its end."""
    run = _TextDump(fs, options, out)
    try:
        for path in expand_files(fs, named):
            run.file(path)
    except ValueError as error:
        return fail(error)
    except CorruptError as error:
        out.flush()
        warn(f"seglog: {error}")
        run.found_damage()
    run.show_notes()
    return DAMAGE if run.damage else FINE


class _TextDump:
    """Prints one file after the other; counts the damage and keeps the notes that follow on stderr."""

    def __init__(self, fs: Fs, options: DumpOptions, out: Out) -> None:
        self._fs = fs
        self._options = options
        self._out = out
        self._index_notes: list[str] = []
        self._gap_notes: list[str] = []
        self.damage = 0

    def file(self, path: str) -> None:
        shown = java_path(path)
        self._out.line(f"Dumping {shown}")
        name = os.path.basename(shown)
        suffix = name[name.rfind(".") :] if "." in name else ""
        if suffix in (LOG, CHECKPOINT):
            self._log(path, shown, name)
        elif suffix == INDEX:
            self._note(dump_offset_index(self._fs, path, shown, self._options, self._out))
        elif suffix == TIME_INDEX:
            self._note(dump_time_index(self._fs, path, shown, self._options, self._out))
        elif suffix == SNAPSHOT:
            self._snapshot(path)
        elif suffix == TXN_INDEX:
            dump_txn_index(self._fs, path, self._out)
        else:
            warn(f"Ignoring unknown file {shown}")

    def show_notes(self) -> None:
        self._out.flush()
        for line in [*self._index_notes, *self._gap_notes]:
            warn(line)

    def _note(self, findings: IndexFindings) -> None:
        self._index_notes += findings.lines
        self.damage += findings.damage

    def _log(self, path: str, shown: str, name: str) -> None:
        self._out.line(log_title(name))  # before the file is opened, as in Kafka's tool
        findings = dump_log(open_file(self._fs, path), name, self._options, self._out)
        self.damage += findings.damage
        if findings.gaps:
            self._gap_notes.append(f"Non-consecutive offsets in {os.path.abspath(shown)}")
            self._gap_notes += [f"  {before} is followed by {after}" for before, after in findings.gaps]

    def _snapshot(self, path: str) -> None:
        try:
            dump_snapshot(self._fs, path, self._out)
        except CorruptSnapshotError as error:  # like Kafka's tool, go on with the next file
            self._out.flush()
            warn(str(error))
            self.found_damage()

    def found_damage(self, count: int = 1) -> None:
        self.damage += count

"""`seglog dump`: what is in a partition's files, line for line as Kafka 4.3's DumpLogSegments prints it, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from seglog.cli.output import Out, fail
from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT32

if TYPE_CHECKING:
    from seglog.cli.dump_log import Decoder

_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_UNSUPPORTED = "--remote-log-metadata-decoder is refused: Kafka prints those records as Java objects, in no stable form"


def dump(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH]...", help="Files, partitions or log directories.", show_default=False),
    ] = None,
    files: Annotated[str | None, typer.Option(metavar="A,B", help="Files, separated by commas.")] = None,
    print_data_log: Annotated[bool, typer.Option("--print-data-log", help="Print keys and values too.")] = False,
    deep_iteration: Annotated[bool, typer.Option("--deep-iteration", help="Print a line for each record.")] = False,
    index_sanity_check: Annotated[
        bool, typer.Option("--index-sanity-check", help="Of indexes, check only what a broker does at its start.")
    ] = False,
    verify_index_only: Annotated[
        bool, typer.Option("--verify-index-only", help="Compare indexes with the log, print no entries.")
    ] = False,
    max_bytes: Annotated[int, typer.Option(min=0, max=MAX_INT32, help="Read at most so much of each log.")] = MAX_INT32,
    max_message_size: Annotated[
        int, typer.Option(min=0, max=MAX_INT32, help="Largest batch that an index entry may point at.")
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
        bool, typer.Option("--skip-record-metadata", help="Print keys and values alone.")
    ] = False,
    records: Annotated[bool, typer.Option("--records", help="Print one JSON object a record (with --json).")] = False,
    isolation_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="With --records: read_uncommitted or read_committed.")
    ] = "read_uncommitted",
    json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
) -> int:
    """What is in the files of a partition, as Kafka's DumpLogSegments prints it."""
    from seglog.cli.dump_index import IndexOptions
    from seglog.cli.dump_log import LogOptions

    if remote_log_metadata_decoder:
        return fail(_UNSUPPORTED)
    named = [*(files.rstrip(",").split(",") if files else []), *(paths or [])]
    if not named:
        return fail("dump needs files: --files A,B or paths (see seglog dump --help)")
    if isolation_level not in _ISOLATION_LEVELS:
        return fail(f"--isolation-level is {' or '.join(_ISOLATION_LEVELS)}, not {isolation_level}")
    try:
        decoder = _decoder(
            offsets=offsets_decoder,
            transactions=transaction_log_decoder,
            cluster=cluster_metadata_decoder,
            share=share_group_state_decoder,
            classes=(key_decoder_class, value_decoder_class),
        )
    except ValueError as error:
        return fail(error)
    contents = print_data_log or decoder is not None
    log = LogOptions(deep_iteration or contents, contents, skip_record_metadata, decoder)
    index = IndexOptions(index_sanity_check, verify_index_only, max_message_size)
    out = Out()
    try:
        if records:
            from seglog.cli.dump_records import dump_records

            return dump_records(OsFs(), named, out, read_committed=isolation_level == _ISOLATION_LEVELS[1])
        if json:
            from seglog.cli.dump_json import dump_json

            return dump_json(OsFs(), named, out, max_bytes=max_bytes)
        from seglog.cli.dump_run import DumpOptions, dump_text

        return dump_text(OsFs(), named, DumpOptions(log, index, max_bytes), out)
    finally:
        out.flush()


def _decoder(
    *, offsets: bool, transactions: bool, cluster: bool, share: bool, classes: tuple[str | None, str | None]
) -> Decoder | None:
    """The one that Kafka's tool would take of several; ValueError for a class that is not built in."""
    if not (offsets or transactions or cluster or share or any(classes)):
        return None
    from seglog.cli import decoders

    if offsets:
        return decoders.decode_offsets
    if transactions:
        return decoders.decode_transactions
    if cluster:
        return decoders.decode_cluster_metadata
    if share:
        return decoders.decode_share_state
    return decoders.plain_decoder(*classes)

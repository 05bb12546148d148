"""`seglog dump`: what is in a partition's files, line for line as Kafka 4.3's DumpLogSegments prints it, or as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from seglog.cli.output import Out, fail
from seglog.core.fs import OsFs
from seglog.core.types import MAX_INT32

if TYPE_CHECKING:
    from seglog.cli.dump.log_text import Decoder

_ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
_UNSUPPORTED: Final = (
    "--remote-log-metadata-decoder is refused: Kafka prints those records as Java objects, in no stable form"
)

_Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATH]...", help="Files, partitions or log directories.", show_default=False),
]
_Files = Annotated[str | None, typer.Option(metavar="A,B", help="Files, separated by commas.")]
_PrintDataLog = Annotated[bool, typer.Option("--print-data-log", help="Print keys and values too.")]
_DeepIteration = Annotated[bool, typer.Option("--deep-iteration", help="Print a line for each record.")]
_IndexSanityCheck = Annotated[
    bool, typer.Option("--index-sanity-check", help="Of indexes, check only what a broker does at its start.")
]
_VerifyIndexOnly = Annotated[
    bool, typer.Option("--verify-index-only", help="Compare indexes with the log, print no entries.")
]
_MaxBytes = Annotated[int, typer.Option(min=0, max=MAX_INT32, help="Read at most so much of each log.")]
_MaxMessageSize = Annotated[
    int, typer.Option(min=0, max=MAX_INT32, help="Largest batch that an index entry may point at.")
]
_OffsetsDecoder = Annotated[bool, typer.Option("--offsets-decoder", help="Decode __consumer_offsets.")]
_TransactionLogDecoder = Annotated[bool, typer.Option("--transaction-log-decoder", help="Decode __transaction_state.")]
_ShareGroupStateDecoder = Annotated[
    bool, typer.Option("--share-group-state-decoder", help="Decode __share_group_state.")
]
_ClusterMetadataDecoder = Annotated[bool, typer.Option("--cluster-metadata-decoder", help="Decode __cluster_metadata.")]
_RemoteLogMetadataDecoder = Annotated[
    bool, typer.Option("--remote-log-metadata-decoder", help="Not supported.", hidden=True)
]
_KeyDecoderClass = Annotated[
    str | None, typer.Option(metavar="CLASS", help="Kafka's StringDecoder, IntegerDecoder or LongDecoder.")
]
_ValueDecoderClass = Annotated[str | None, typer.Option(metavar="CLASS", help="The same, for values.")]
_SkipRecordMetadata = Annotated[bool, typer.Option("--skip-record-metadata", help="Print keys and values alone.")]
_Records = Annotated[bool, typer.Option("--records", help="Print one JSON object a record (with --json).")]
_IsolationLevel = Annotated[
    str, typer.Option(metavar="LEVEL", help="With --records: read_uncommitted or read_committed.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


def dump(
    paths: _Paths = None,
    files: _Files = None,
    print_data_log: _PrintDataLog = False,
    deep_iteration: _DeepIteration = False,
    index_sanity_check: _IndexSanityCheck = False,
    verify_index_only: _VerifyIndexOnly = False,
    max_bytes: _MaxBytes = MAX_INT32,
    max_message_size: _MaxMessageSize = 5 << 20,
    offsets_decoder: _OffsetsDecoder = False,
    transaction_log_decoder: _TransactionLogDecoder = False,
    share_group_state_decoder: _ShareGroupStateDecoder = False,
    cluster_metadata_decoder: _ClusterMetadataDecoder = False,
    remote_log_metadata_decoder: _RemoteLogMetadataDecoder = False,
    key_decoder_class: _KeyDecoderClass = None,
    value_decoder_class: _ValueDecoderClass = None,
    skip_record_metadata: _SkipRecordMetadata = False,
    records: _Records = False,
    isolation_level: _IsolationLevel = "read_uncommitted",
    json: _Json = False,
) -> int:
    """What is in the files of a partition, as Kafka's DumpLogSegments prints it."""
    named = [*(files.rstrip(",").split(",") if files else []), *(paths or [])]
    if remote_log_metadata_decoder:
        return fail(_UNSUPPORTED)
    if not named:
        return fail("dump needs files: --files A,B or paths (see seglog dump --help)")
    if isolation_level not in _ISOLATION_LEVELS:
        return fail(f"--isolation-level is {' or '.join(_ISOLATION_LEVELS)}, not {isolation_level}")
    topics = (offsets_decoder, transaction_log_decoder, cluster_metadata_decoder, share_group_state_decoder)
    try:
        decoder = _decoder(*topics, classes=(key_decoder_class, value_decoder_class))
    except ValueError as error:
        return fail(error)
    out = Out()
    try:
        if records:
            from seglog.cli.dump.json_records import dump_records

            return dump_records(OsFs(), named, out, read_committed=isolation_level == _ISOLATION_LEVELS[1])
        if json:
            from seglog.cli.dump.json_lines import dump_json

            return dump_json(OsFs(), named, out, max_bytes=max_bytes)
        from seglog.cli.dump.index_text import IndexOptions
        from seglog.cli.dump.log_text import LogOptions
        from seglog.cli.dump.run import DumpOptions, dump_text

        contents = print_data_log or decoder is not None
        log = LogOptions(deep_iteration or contents, contents, skip_record_metadata, decoder)
        index = IndexOptions(index_sanity_check, verify_index_only, max_message_size)
        return dump_text(OsFs(), named, DumpOptions(log, index, max_bytes), out)
    finally:
        out.flush()


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

"""`seglog`: one table of commands. A command's module is imported when it is asked for, so that each starts fast.

To add a command: a line in `COMMANDS`, and a function of that name in the named module, with typer's parameters; it
returns an exit code of `seglog.cli.output`. Commands under one word, such as `seglog spark`, are in `GROUPS`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Final, NamedTuple

import typer

from seglog.cli.output import DAMAGE, FAILED, FINE, describe_os_error, fail, leave_quietly_on_broken_pipe
from seglog.core.errors import CorruptError, SeglogError

_INTERRUPTED: Final = 130
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""The root of typer's complaints about a command line (of click's, in a typer that still stands on it)."""


class Command(NamedTuple):
    """The module of a command, below `seglog.cli`, and its line in `seglog --help`."""

    module: str
    help: str
    function: str = ""
    """Its name, if it is not the command's."""


class Group(NamedTuple):
    """Commands under one word."""

    help: str
    commands: Mapping[str, Command]


COMMANDS: Final[Mapping[str, Command]] = {
    "ls": Command("offline.ls", "What is in a log directory: topics, partitions, segments."),
    "dump": Command("dump.command", "What is in the files of a partition, as Kafka's DumpLogSegments prints it."),
    "find": Command("offline.find", "Look up an offset or a timestamp, step by step."),
    "verify": Command("offline.verify", "Check every byte of log directories, partitions and files."),
    "repair": Command("offline.repair", "Make a damaged partition or log directory whole again."),
    "serve": Command("serve", "Serve Kafka's protocol from a log directory."),
    "produce": Command("wire.produce", "Lines of standard input or of files into a topic."),
    "consume": Command("wire.consume", "Records of topics, as lines or JSON."),
    "offsets": Command("wire.offsets", "Where partitions begin and end, or an offset by time."),
}

TOPICS_COMMANDS: Final[Mapping[str, Command]] = {
    "list": Command("wire.topics", "The names of all topics.", "list_topics"),
    "describe": Command("wire.topics", "Partitions, leaders, replicas, configuration.", "describe_topics"),
    "create": Command("wire.topics", "Make topics.", "create_topics"),
    "delete": Command("wire.topics", "Delete topics with all that is in them.", "delete_topics"),
    "alter": Command("wire.topics", "Give topics more partitions.", "alter_topics"),
}

CONFIGS_COMMANDS: Final[Mapping[str, Command]] = {
    "describe": Command("wire.configs", "What is set, or with --all every key.", "describe_configs"),
    "alter": Command("wire.configs", "Set keys and remove others.", "alter_configs"),
}

GROUPS_COMMANDS: Final[Mapping[str, Command]] = {
    "list": Command("wire.groups", "All groups and their states.", "list_groups"),
    "describe": Command("wire.groups", "Offsets and lag, members or states of groups.", "describe_groups"),
    "delete": Command("wire.groups", "Delete groups that have no members.", "delete_groups"),
    "delete-offsets": Command("wire.groups", "Forget a group's offsets for topics.", "delete_offsets"),
    "reset-offsets": Command("wire.groups_reset", "Let a group go on from somewhere else.", "reset_offsets"),
}

CLUSTER_COMMANDS: Final[Mapping[str, Command]] = {
    "up": Command("cluster.up", "Run a cluster of several brokers on this machine."),
    "status": Command("cluster.status", "How a cluster is, and what to do about what is wrong."),
    "choose-leader": Command(
        "cluster.choose_leader", "Let a replica lead that may have lost something.", "choose_leader"
    ),
    "add-broker": Command("cluster.moves", "Give new brokers their share of the partitions.", "add_broker"),
    "remove-broker": Command("cluster.moves", "Move everything off a broker.", "remove_broker"),
    "upgrade": Command("cluster.upgrade", "Let brokers write the metadata of a later release."),
    "replace-disk": Command("cluster.moves", "Wait until a broker has its replicas again.", "replace_disk"),
    "backup": Command("cluster.backup", "Copy the metadata store into a file."),
    "restore": Command("cluster.backup", "Write a backup into a new metadata store."),
    "accept-store": Command("cluster.backup", "Go on with a metadata store that went back in time.", "accept_store"),
    "rebuild": Command("cluster.backup", "Make a new metadata store from the log directories.", "rebuild_store"),
    "strays": Command("cluster.log_dirs", "Replicas that the cluster does not name any more, and are kept."),
    "leave": Command("cluster.log_dirs", "Take log directories out of their cluster, to serve them alone."),
}

RECORDS_COMMANDS: Final[Mapping[str, Command]] = {
    "delete": Command("wire.records", "Delete the records of partitions before an offset or a time."),
}

LEADERS_COMMANDS: Final[Mapping[str, Command]] = {
    "elect": Command("cluster.leaders", "Let the preferred replicas lead, or any where nobody leads."),
}

PARTITIONS_COMMANDS: Final[Mapping[str, Command]] = {
    "reassign": Command("cluster.partitions", "Move replicas to other brokers, wait for it, or put them back."),
}

PERF_COMMANDS: Final[Mapping[str, Command]] = {
    "append": Command("offline.perf", "How fast the engine appends here."),
    "read": Command("offline.perf", "How fast the engine reads here."),
    "verify": Command("offline.perf", "How fast the engine verifies here."),
    "produce": Command("wire.perf", "How fast brokers take records."),
    "consume": Command("wire.perf", "How fast brokers give records."),
    "e2e": Command("wire.perf", "How long a record takes from producer to consumer."),
}

SPARK_COMMANDS: Final[Mapping[str, Command]] = {
    "verify": Command("spark.verify", "Check every byte of log directories, on all cores of a cluster."),
    "dump": Command("spark.dump", "Records, batches or offsets of groups as a table, JSON or Parquet."),
    "ingest": Command("spark.ingest", "Files into a topic, exactly once: CSV, JSON lines, Parquet, text."),
    "compact": Command("spark.compact", "Keep the last record of each key, one partition on all cores."),
    "diff": Command("spark.diff", "Compare two replicas, or a source and its copy, record by record."),
    "export": Command("spark.export", "Write topics as Parquet, each time what is new, exactly once."),
}

GROUPS: Final[Mapping[str, Group]] = {
    "topics": Group("Topics of a cluster (this and what follows needs seglog[client]).", TOPICS_COMMANDS),
    "configs": Group("Configurations of topics and brokers.", CONFIGS_COMMANDS),
    "groups": Group("Consumer groups: offsets, lag, members.", GROUPS_COMMANDS),
    "records": Group("Records of topics.", RECORDS_COMMANDS),
    "leaders": Group("Who leads partitions.", LEADERS_COMMANDS),
    "partitions": Group("Where the replicas of partitions are.", PARTITIONS_COMMANDS),
    "cluster": Group("Several brokers that replicate: run, look at, grow and shrink a cluster.", CLUSTER_COMMANDS),
    "perf": Group("How fast the engine is on this machine, and brokers over the wire.", PERF_COMMANDS),
    "spark": Group("Jobs on Spark, on this machine or a cluster (needs seglog[spark]).", SPARK_COMMANDS),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 fine, 1 damage found, 2 usage or I/O error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) == 1 and given[0] in GROUPS:
        given.append("--help")
    if sys.stdout is None:  # after `>&-`
        return fail("stdout is closed")
    try:
        code = _app(_words(given))(given or ["--help"], prog_name="seglog", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        return fail(f"{_message(error)} {_hint(error)}")
    except CorruptError as error:
        fail(error)
        return DAMAGE
    except SeglogError as error:
        return fail(error)
    except OSError as error:
        return fail(describe_os_error(error))
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    return code if isinstance(code, int) else FINE


def _words(arguments: Sequence[str]) -> list[str]:
    return [argument for argument in arguments if not argument.startswith("-")]


def _app(words: Sequence[str]) -> typer.Typer:
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(help="Kafka's log in Python: read, check and repair the directories that Kafka writes.")(_options)
    _add(app, COMMANDS, words[0] if words else None)
    for name, group in GROUPS.items():
        inner = typer.Typer(rich_markup_mode=None)
        inner.callback(help=group.help)(_no_options)
        _add(inner, group.commands, words[1] if len(words) > 1 and words[0] == name else None)
        app.add_typer(inner, name=name)
    return app


def _add(app: typer.Typer, commands: Mapping[str, Command], wanted: str | None) -> None:
    for name, command in commands.items():
        app.command(name, help=command.help)(_load(command, name) if name == wanted else _not_loaded)


def _load(command: Command, name: str) -> Callable[..., int]:
    module = importlib.import_module(f"seglog.cli.{command.module}")
    function: Callable[..., int] = getattr(module, command.function or name)

    @wraps(function)
    def run(*arguments: object, **options: object) -> int:
        try:
            return function(*arguments, **options)
        except BrokenPipeError:  # caught here, for typer would make it an exit code of 1
            leave_quietly_on_broken_pipe()
            return FINE

    return run


def _not_loaded() -> int:
    """Stands in `--help` for a command that was not asked for."""
    return FAILED


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"seglog {version('seglog')}")
        except PackageNotFoundError:
            print("seglog (not installed)")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Takes the options that stand before a command."""


def _no_options() -> None:
    """A group has none of its own."""


def _hint(error: Exception) -> str:
    """Where to read more; for an option that is not there, the options that are."""
    context = getattr(error, "ctx", None)
    if context is None:
        return "(see seglog --help)"
    path = context.command_path
    if not hasattr(error, "option_name") or not error.option_name:
        return f"(see {path} --help)"
    names = [max(one.opts, key=len) for one in context.command.params if one.param_type_name == "option"]
    return f"({path} has {', '.join(sorted(names))}; see {path} --help)" if names else f"(see {path} --help)"


def _message(error: Exception) -> str:
    format_message = getattr(error, "format_message", None)
    return str(format_message()) if format_message is not None else str(error)

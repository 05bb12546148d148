"""`seglog`: one table of commands. A command's module is imported only if the command runs, so that each starts fast.

To add a command, add a line to `COMMANDS` and a function of that name, with typer's parameters, to the module. It
returns an exit code of `seglog.cli.output`. `GROUPS` has the commands under one word, such as `seglog spark`.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Final, NamedTuple

import typer

from seglog.cli.output import DAMAGE, FAILED, FINE, describe_os_error, fail, leave_quietly_on_broken_pipe
from seglog.core.errors import CorruptError, SeglogError
from seglog.core.suggestions import did_you_mean

_INTERRUPTED: Final = 130
_NEAR: Final = 0.65
_UNKNOWN_COMMAND: Final = re.compile(r"No such command '(.*?)'")
_UsageError: type[Exception] = typer.BadParameter.__mro__[2]
"""The base class of typer's errors about a command line (of click's, in a typer that uses click)."""


class Command(NamedTuple):
    """The module of a command, below `seglog.cli` or by its whole name, and its line in `seglog --help`."""

    module: str
    help: str
    function: str = ""
    """The name of the function, if it differs from the command's."""


class CommandGroup(NamedTuple):
    """Commands under one word."""

    help: str
    commands: Mapping[str, Command]


COMMANDS: Final[Mapping[str, Command]] = {
    "ls": Command("offline.ls", "List the topics, partitions and segments of a log directory."),
    "dump": Command("dump.command", "Print the contents of log files, as Kafka's DumpLogSegments does."),
    "find": Command("offline.find", "Look up an offset or a timestamp, step by step."),
    "explain": Command("explain.command", "Explain why data is still there, when it goes, and why a lag stays."),
    "du": Command("offline.du", "Show where space goes, by topic, age, codec, producer and key."),
    "verify": Command("offline.verify", "Check every byte of log directories, partitions and files."),
    "repair": Command("offline.repair", "Repair a damaged partition or log directory."),
    "fsck": Command("offline.fsck", "Verify and compare replicas; repair them from each other."),
    "undelete": Command("offline.undelete", "Bring deleted topics and strays back before they are gone."),
    "sql": Command("sql", "Query topics, directories and tables in SQL (needs seglog[sql])."),
    "serve": Command("serve", "Serve Kafka's protocol from a log directory."),
    "console": Command("seglog.console.command", "Show a log and a cluster in the browser."),
    "mcp": Command("seglog.mcp.command", "Answer agents over the Model Context Protocol (needs seglog[mcp])."),
    "produce": Command("wire.produce", "Send lines of stdin or of files to a topic."),
    "consume": Command("wire.consume", "Print the records of topics, as lines or JSON."),
    "offsets": Command("wire.offsets", "Show the first and last offsets of partitions, or offsets by time."),
    "completion": Command("completion", "Print the completion script of a shell."),
    "table": Command("table", "Keep topics as Iceberg tables of Parquet files (needs seglog[table])."),
}

TOPICS_COMMANDS: Final[Mapping[str, Command]] = {
    "list": Command("wire.topics", "List the names of all topics.", "list_topics"),
    "describe": Command("wire.topics", "Show partitions, leaders, replicas and configuration.", "describe_topics"),
    "create": Command("wire.topics", "Create topics.", "create_topics"),
    "delete": Command("wire.topics", "Delete topics with all their records.", "delete_topics"),
    "alter": Command("wire.topics", "Add partitions to topics.", "alter_topics"),
}

CONFIGS_COMMANDS: Final[Mapping[str, Command]] = {
    "describe": Command("wire.configs", "Show the keys that are set, or with --all every key.", "describe_configs"),
    "alter": Command("wire.configs", "Set or remove keys.", "alter_configs"),
}

GROUPS_COMMANDS: Final[Mapping[str, Command]] = {
    "list": Command("wire.groups", "List all groups and their states.", "list_groups"),
    "describe": Command("wire.groups", "Show offsets and lag, members or states of groups.", "describe_groups"),
    "delete": Command("wire.groups", "Delete groups without members.", "delete_groups"),
    "delete-offsets": Command("wire.groups", "Delete a group's offsets for topics.", "delete_offsets"),
    "reset-offsets": Command("wire.groups_reset", "Change where a group continues.", "reset_offsets"),
}

CLUSTER_COMMANDS: Final[Mapping[str, Command]] = {
    "up": Command("cluster.up", "Run a cluster of several brokers on this machine."),
    "status": Command("cluster.status", "Show the state of a cluster and advice for each problem."),
    "choose-leader": Command("cluster.choose_leader", "Elect a replica that may lack records.", "choose_leader"),
    "add-broker": Command("cluster.moves", "Move a share of the partitions to new brokers.", "add_broker"),
    "set-replicas": Command("cluster.moves", "Change the number of replicas of topics.", "set_replicas"),
    "remove-broker": Command("cluster.moves", "Move everything off a broker.", "remove_broker"),
    "upgrade": Command("cluster.store", "Raise the metadata format after an upgrade."),
    "replace-disk": Command("cluster.moves", "Wait until a broker with a new disk has its replicas.", "replace_disk"),
    "backup": Command("cluster.store", "Copy the metadata store to a file."),
    "restore": Command("cluster.store", "Write a backup to a new metadata store."),
    "accept-store": Command("cluster.store", "Accept a metadata store that went back in time.", "accept_store"),
    "rebuild": Command("cluster.store", "Make a new metadata store from the log directories.", "rebuild_store"),
    "strays": Command("cluster.log_dirs", "List or remove replicas that are no longer assigned."),
    "leave": Command("cluster.log_dirs", "Remove log directories from their cluster."),
}

QUOTAS_COMMANDS: Final[Mapping[str, Command]] = {
    "describe": Command("wire.quotas", "Show the quotas of an entity, or of all.", "describe_quotas"),
    "alter": Command("wire.quotas", "Set or remove quotas of an entity.", "alter_quotas"),
}

USERS_COMMANDS: Final[Mapping[str, Command]] = {
    "add": Command("cluster.users", "Add a user, or change its password.", "add_user"),
    "delete": Command("cluster.users", "Delete a user.", "delete_user"),
    "list": Command("cluster.users", "List users.", "list_users"),
}

ACLS_COMMANDS: Final[Mapping[str, Command]] = {
    "add": Command("wire.acls", "Allow or deny operations on resources.", "add_acls"),
    "list": Command("wire.acls", "List who may do what.", "list_acls"),
    "remove": Command("wire.acls", "Remove permissions and denials.", "remove_acls"),
}

RECORDS_COMMANDS: Final[Mapping[str, Command]] = {
    "delete": Command("wire.records", "Delete the records of partitions before an offset or a time."),
}

LEADERS_COMMANDS: Final[Mapping[str, Command]] = {
    "elect": Command("cluster.leaders", "Elect the preferred replicas, or any replica without a leader."),
}

PARTITIONS_COMMANDS: Final[Mapping[str, Command]] = {
    "reassign": Command("cluster.partitions", "Move replicas to other brokers, show or cancel moves."),
}

PERF_COMMANDS: Final[Mapping[str, Command]] = {
    "append": Command("perf.engine", "Measure how fast the engine appends."),
    "read": Command("perf.engine", "Measure how fast the engine reads."),
    "verify": Command("perf.engine", "Measure how fast the engine verifies."),
    "produce": Command("perf.brokers", "Measure how fast brokers accept records."),
    "consume": Command("perf.brokers", "Measure how fast brokers deliver records."),
    "e2e": Command("perf.brokers", "Measure the latency from producer to consumer."),
}

SPARK_COMMANDS: Final[Mapping[str, Command]] = {
    "verify": Command("spark.verify", "Check every byte of log directories, on all cores of a cluster."),
    "fsck": Command("spark.fsck", "Verify and compare replicas on the hosts that have them."),
    "dump": Command("spark.dump", "Show records, batches or group offsets as a table, JSON or Parquet."),
    "ingest": Command("spark.ingest", "Append files to a topic, exactly once: CSV, JSON lines, Parquet, text."),
    "compact": Command("spark.compact", "Keep the last record of each key, one partition on all cores."),
    "diff": Command("spark.diff", "Compare two replicas, or a source and its copy, record by record."),
    "table": Command("spark.table", "Keep topics as Iceberg tables, written on all cores of a cluster."),
    "package": Command("spark.package", "Pack seglog for executors without installed packages."),
}

TRANSACTIONS_COMMANDS: Final[Mapping[str, Command]] = {
    "list": Command("cluster.transactions", "List transactional ids and their states.", "list_transactions"),
    "describe": Command("cluster.transactions", "Show a transaction and its partitions.", "describe_transaction"),
    "describe-producers": Command("cluster.transactions", "Show the producers of a partition.", "describe_producers"),
    "find-hanging": Command("cluster.transactions", "Find transactions that nothing will end.", "find_hanging"),
    "abort": Command("cluster.transactions", "End a hanging transaction in a partition.", "abort_transaction"),
    "force-terminate": Command("cluster.transactions", "Abort a transaction everywhere.", "force_terminate"),
}

GROUPS: Final[Mapping[str, CommandGroup]] = {
    "topics": CommandGroup("Topics of a cluster (needs seglog[client]).", TOPICS_COMMANDS),
    "configs": CommandGroup("Configurations of topics and brokers.", CONFIGS_COMMANDS),
    "groups": CommandGroup("Consumer groups: offsets, lag, members.", GROUPS_COMMANDS),
    "quotas": CommandGroup("Quotas of users, client ids and addresses.", QUOTAS_COMMANDS),
    "users": CommandGroup("Users that authenticate with SCRAM.", USERS_COMMANDS),
    "acls": CommandGroup("Access control lists: who may do what.", ACLS_COMMANDS),
    "records": CommandGroup("Delete records of topics.", RECORDS_COMMANDS),
    "transactions": CommandGroup("Transactions: states, partitions, hanging ones.", TRANSACTIONS_COMMANDS),
    "leaders": CommandGroup("Elect leaders of partitions.", LEADERS_COMMANDS),
    "partitions": CommandGroup("Reassign the replicas of partitions.", PARTITIONS_COMMANDS),
    "cluster": CommandGroup("Run, check, grow and shrink a cluster of brokers.", CLUSTER_COMMANDS),
    "perf": CommandGroup("Measure the speed of the engine and of brokers.", PERF_COMMANDS),
    "spark": CommandGroup("Jobs on Spark, on this machine or a cluster (needs seglog[spark]).", SPARK_COMMANDS),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 success, 1 damage found, 2 usage or I/O error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) == 1 and given[0] in GROUPS:
        given.append("--help")
    if sys.stdout is None:  # after `>&-`
        return fail("stdout is closed")
    try:
        if given[:1] == ["__complete"]:
            return _complete(given[1:])
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


def _complete(arguments: Sequence[str]) -> int:
    from seglog.cli.completion import print_candidates, words_of

    words = words_of(arguments)
    return print_candidates(arguments, _app(_words(words)), words)


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
        app.add_typer(inner, name=name, short_help=group.help)
    return app


def _add(app: typer.Typer, commands: Mapping[str, Command], wanted: str | None) -> None:
    for name, command in commands.items():
        app.command(name, help=command.help, short_help=command.help)(
            _load(command, name) if name == wanted else _not_loaded
        )


def _load(command: Command, name: str) -> Callable[..., int]:
    module = importlib.import_module(command.module if "seglog." in command.module else f"seglog.cli.{command.module}")
    function: Callable[..., int] = getattr(module, command.function or name)

    @wraps(function)
    def run(*arguments: object, **options: object) -> int:
        try:
            return function(*arguments, **options)
        except BrokenPipeError:  # typer would turn it into exit code 1
            leave_quietly_on_broken_pipe()
            return FINE

    return run


def _not_loaded() -> int:
    """Stands for the commands of `--help` whose modules are not loaded."""
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
    """The options before a command."""


def _no_options() -> None:
    """A group has no options."""


def _hint(error: Exception) -> str:
    """Where to read more. The message itself names the nearest command or option."""
    context = getattr(error, "ctx", None)
    return f"(see {'seglog' if context is None else context.command_path} --help)"


def _message(error: Exception) -> str:
    context, option = getattr(error, "ctx", None), getattr(error, "option_name", None)
    text = str(getattr(error, "message", ""))
    if context is not None and text.startswith("No such option"):
        names = [name for one in context.command.params for name in (*one.opts, *one.secondary_opts)]
        long = [name for name in (*names, "--help") if name.startswith("--")]
        is_long = str(option).startswith("--")
        return f"no such option: {option}{did_you_mean(str(option), long, cutoff=_NEAR) if is_long else ''}"
    if context is not None and (word := _UNKNOWN_COMMAND.match(text)):
        return f"no such command: {word[1]}{did_you_mean(word[1], context.command.commands, cutoff=_NEAR)}"
    format_message = getattr(error, "format_message", None)
    return str(format_message()) if format_message is not None else str(error)

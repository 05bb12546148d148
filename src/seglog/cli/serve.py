"""`seglog serve`: a broker in the foreground, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer

from seglog.cli.options import OptionError, check_choice, key_values, read_properties, with_options
from seglog.cli.output import FINE, Out, fail, warn
from seglog.cli.signals import act_on_signals, leave_on_signals
from seglog.core.clock import SystemClock
from seglog.core.quick_imports import hide_hypothesis

if TYPE_CHECKING:
    from seglog.broker.app import Node
    from seglog.broker.ground import BrokerGround
    from seglog.cli.secure_demo import SecureDemo
    from seglog.faults.controlled_broker import ControlAddress, ControlledBroker

T = TypeVar("T")
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class BrokerOptions(NamedTuple):
    """The options that set keys of the broker."""

    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir",
            "-d",
            metavar="DIR",
            help="Log directories, separated by commas; by default one below your home.",
            show_default=False,
        ),
    ] = None
    listen: Annotated[
        list[str] | None,
        typer.Option(
            "--listen",
            "-l",
            metavar="HOST:PORT",
            help="Listener (127.0.0.1:9092), or NAME://HOST:PORT; repeat the option for more.",
            show_default=False,
        ),
    ] = None
    config: Annotated[
        str | None,
        typer.Option("--config", "-c", metavar="FILE", help="A server.properties file.", show_default=False),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of server.properties.", show_default=False),
    ] = None
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="STORE",
            help="Join a cluster by its store: sqlite:FILE on this machine, or zookeeper://HOST:PORT,.../NAME.",
            show_default=False,
        ),
    ] = None
    node_id: Annotated[
        int | None,
        typer.Option("--node-id", metavar="N", help="This broker's id.", show_default=False),
    ] = None
    metrics: Annotated[
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Serve /metrics for Prometheus, /health and /ready here.",
            show_default=False,
        ),
    ] = None
    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            help="Create a user with SCRAM if there is none of this name.",
            show_default=False,
        ),
    ] = None
    password_file: Annotated[
        str | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            help="Read the password of --user from the first line of a file. Default: ask for it.",
            show_default=False,
        ),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Let other machines connect without authentication, or send passwords without TLS.",
        ),
    ] = False
    environment: Annotated[
        bool, typer.Option("--environment", help="Read keys from variables KAFKA_..., as Kafka's image does.")
    ] = False

    def mapping(self) -> dict[str, str]:
        """The broker's keys. The environment overrides the file, and the command line overrides both."""
        from seglog.core.addresses import parse_host_port
        from seglog.core.broker_config import keys_of_environment

        mapping = {} if self.config is None else read_properties(self.config)
        if self.environment:
            mapping.update(keys_of_environment(os.environ))
        mapping.update({key: value.strip() for key, value in key_values("--set", self.settings).items()})
        if self.listen:
            try:
                mapping["listeners"] = ",".join(str(parse_host_port(text)) for text in self.listen)
            except ValueError as error:
                raise OptionError(f"--listen: {error}") from error
        if self.data_dir is not None:
            mapping["log.dirs"] = self.data_dir
        elif not mapping.get("log.dirs") and not mapping.get("log.dir"):
            mapping["log.dirs"] = default_data_dir(os.environ)
        if self.user is not None:
            from seglog.cli.passwords import read_password

            if any(mark in self.user for mark in ",="):
                raise OptionError("--user: a name with , or = cannot be given here: seglog users add")
            password = read_password(self.user, self.password_file).replace(",", "\\,")
            others = mapping.get("seglog.scram.users")
            mapping["seglog.scram.users"] = ",".join([*([others] if others else []), f"{self.user}={password}"])
        elif self.password_file is not None:
            raise OptionError("--password-file needs --user")
        if self.insecure:
            mapping["seglog.insecure.listeners"] = "true"
        own = {"metrics.listener": self.metrics, "cluster.store": self.cluster, "node.id": self.node_id}
        return mapping | {key: str(value) for key, value in own.items() if value is not None}


_NONE: Final = BrokerOptions()


@with_options
def serve(
    keys: BrokerOptions = _NONE,
    json: Annotated[bool, typer.Option("--json", help="Print the ready message as a JSON document.")] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="|".join(LEVELS), help="The least level to log.")
    ] = "warning",
    control: Annotated[
        str | None,
        typer.Option(
            "--control",
            metavar="HOST:PORT",
            help="For tests: let programs on this machine inject faults, move the clock, and stop it over HTTP.",
            show_default=False,
        ),
    ] = None,
    control_token: Annotated[
        str | None,
        typer.Option(
            "--control-token",
            metavar="FILE",
            help="Read the token of --control from a file of mode 0600 instead of printing a new one.",
            show_default=False,
        ),
    ] = None,
    secure_demo: Annotated[
        str | None,
        typer.Option(
            "--secure-demo",
            metavar="DIR",
            help="Make certificates and users in a directory, listen with TLS and SASL, and show clients' settings.",
            show_default=False,
        ),
    ] = None,
    console: Annotated[
        bool, typer.Option("--console", help="Show the log in the browser too, from a process of its own.")
    ] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> int:
    """Serve Kafka's protocol from a log directory."""
    check_choice("--log-level", log_level, LEVELS)
    leave_on_signals()
    gc.disable()  # modules are not garbage: collecting while they load takes a third of the time
    log_to_stderr(LEVELS[log_level])
    mapping = keys.mapping()
    controlled: ControlledBroker | None = None
    if control is not None:
        hide_hypothesis()
        from seglog.faults.broker_defaults import TEST_SETTINGS
        from seglog.faults.controlled_broker import ControlledBroker

        controlled = ControlledBroker(control, control_token)
        mapping = {**TEST_SETTINGS, **mapping}
    elif control_token is not None:
        raise OptionError("--control-token needs --control")
    demo: SecureDemo | None = None
    if secure_demo is not None:
        from seglog.cli.secure_demo import SecureDemo

        demo = SecureDemo(secure_demo)
        if keys.data_dir is None and mapping["log.dirs"] == default_data_dir(os.environ):
            mapping["log.dirs"] = os.path.join(demo.folder, "log")
        mapping |= demo.keys(mapping, keys.listen or [])

    consoles: list[subprocess.Popen[bytes]] = []

    def say_ready(node: Node, seconds: float) -> None:
        told = None if demo is None else demo.write_clients(node.bootstrap)
        _say_ready(node, seconds, None if controlled is None else controlled.address, told, as_json=json)
        if console:
            consoles.append(_start_console(node, as_json=json))

    try:
        return serve_keys(mapping, say_ready, until_eof=until_eof, controlled=controlled)
    finally:
        for one in consoles:
            one.communicate()  # closes its stdin, at which it ends


def _start_console(node: Node, *, as_json: bool) -> subprocess.Popen[bytes]:
    """`seglog console` of the broker's directories; and of the broker, if its first listener is plaintext and the
    client library is installed. It ends with this process, for any reason; Ctrl-C reaches it only through this one."""
    is_plain = node.config.protocol(node.addresses[0].name) == "PLAINTEXT"
    bootstrap = ["-b", node.bootstrap] if is_plain and find_spec("confluent_kafka") is not None else []
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "seglog", "console", *node.paths, *bootstrap, "--until-eof"),
            *(("--json",) if as_json else ()),
        ],
        stdin=subprocess.PIPE,
        process_group=0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )


def serve_keys(
    mapping: Mapping[str, str],
    say_ready: Callable[[Node, float], None],
    *,
    cluster_id: str | None = None,
    until_eof: bool = False,
    controlled: ControlledBroker | None = None,
) -> int:
    """Serve with these keys until SIGTERM or SIGINT. ``say_ready`` gets the seconds that the start took.

    A new directory joins the cluster ``cluster_id``; a directory of another cluster is refused. ``until_eof``: stop
    also when stdin closes, which the parent process holds open. ``controlled``: let programs control the broker.
    """
    clock = SystemClock()
    started = clock.monotonic()
    hide_hypothesis()
    from seglog.broker.app import Node
    from seglog.cluster.store import StoreFailedError
    from seglog.core.broker_config import BrokerConfig

    broker_config = BrokerConfig.from_mapping(mapping)
    for note in broker_config.notes:
        warn(f"seglog: {note}")

    def ready(node: Node) -> None:
        say_ready(node, clock.monotonic() - started)
        gc.freeze()
        gc.enable()

    async def run() -> BaseException | None:
        node = Node(broker_config, cluster_id=cluster_id)
        with ended_by(node.over.set, until_eof=until_eof):
            try:
                async with node:
                    ready(node)
                    await node.over.wait()
            except StoreFailedError:
                if not node.over.is_set():  # else the broker was stopped while it waited for its metadata store
                    raise
        return node.failure

    def make(ground: BrokerGround, keys: Mapping[str, str]) -> Node:
        return Node(BrokerConfig.from_mapping({**mapping, **keys}), cluster_id=cluster_id, ground=ground)

    async def run_controlled(broker: ControlledBroker) -> BaseException | None:
        with ended_by(broker.end, until_eof=until_eof):
            return await broker.serve(make, ready)

    failure = _run(run()) if controlled is None else controlled.run(run_controlled(controlled))
    return FINE if failure is None else fail(str(failure))


@contextlib.contextmanager
def ended_by(end: Callable[[], None], *, until_eof: bool) -> Iterator[None]:
    """Call ``end`` at a signal, and at the end of stdin if that is asked for."""
    loop = asyncio.get_running_loop()
    if until_eof:
        loop.add_reader(sys.stdin.fileno(), lambda: _at_eof(loop, end))
    with act_on_signals(end):
        yield


def _at_eof(loop: asyncio.AbstractEventLoop, end: Callable[[], None]) -> None:
    """Stdin has data or is closed."""
    if not os.read(sys.stdin.fileno(), 4096):
        loop.remove_reader(sys.stdin.fileno())
        end()


def _say_ready(node: Node, seconds: float, control: ControlAddress | None, demo: str | None, *, as_json: bool) -> None:
    """``demo``: what to tell about the clients of a secured demonstration."""
    listeners = [str(address) for address in node.addresses]
    partitions = sum(len(topic.partitions) for topic in node.topics)
    identity, path, metrics = node.identity, ", ".join(node.paths), node.metrics_address
    out = Out()
    if as_json:
        out.json(
            {
                "bootstrap": node.bootstrap,
                "listeners": listeners,
                "node": identity.node_id,
                "cluster": identity.cluster_id,
                "directory": path,
                "partitions": partitions,
                "seconds": round(seconds, 3),
                "metrics": None if metrics is None else f"{metrics.host}:{metrics.port}",
                **({} if control is None else {"control": control.url, "token": control.token}),
            }
        )
    else:
        out.line(
            f"seglog is ready: {', '.join(listeners)} (node {identity.node_id}, cluster {identity.cluster_id}, "
            f"{partitions} partitions in {path}, {seconds:.2f} s)"
        )
        if control is not None:
            out.line(f"control: {control.url}" + ("" if control.token is None else f" token {control.token}"))
        if demo is not None:
            out.write(demo)
    out.flush()


def _run(main: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def default_data_dir(environment: Mapping[str, str]) -> str:
    """The directory of the user, by the rules of XDG.

    >>> default_data_dir({"HOME": "/home/ann"}), default_data_dir({"XDG_DATA_HOME": "/data"})
    ('/home/ann/.local/share/seglog', '/data/seglog')
    """
    home = environment.get("XDG_DATA_HOME", "")
    if not os.path.isabs(home):
        home = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".local", "share")
    return os.path.join(home, "seglog")


class _Lines(logging.Formatter):
    """Formats a record as one line of key=value."""

    def format(self, record: logging.LogRecord) -> str:
        at = self.formatTime(record, "%Y-%m-%dT%H:%M:%S")
        text = record.getMessage().replace("\n", "\\n").replace('"', "'")
        line = f'time={at}.{record.msecs:03.0f} level={record.levelname.lower()} logger={record.name} msg="{text}"'
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def log_to_stderr(level: int) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level, handlers=[handler])

"""`seglog cluster up`: run several brokers of one cluster on this machine, in the foreground."""

from __future__ import annotations

import asyncio
import json as json_module
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, NamedTuple

import typer

from seglog.cli.cluster.children import ChildBroker, start_all, stop_all, watch
from seglog.cli.cluster.requests import ClusterRequests
from seglog.cli.output import FAILED, FINE, Out, fail, name_all, warn
from seglog.cli.serve import LEVELS, default_data_dir
from seglog.cli.signals import act_on_signals
from seglog.client.bootstrap import parse_bootstrap
from seglog.cluster.store_address import parse_store
from seglog.core.addresses import parse_host_port
from seglog.core.clock import SystemClock
from seglog.core.errors import SeglogError
from seglog.core.fs import OsFs

_LAYOUT: Final = "cluster.json"
"""The file in the cluster's directory with its brokers, their listeners and their store."""
_FORM: Final = 1
_OWN_KEYS: Final = frozenset(
    {"advertised.listeners", "broker.id", "cluster.store", "listeners", "log.dir", "log.dirs", "node.id"}
)
"""Keys that cannot be the same for all brokers."""
_FIRST: Final = "127.0.0.1:9092"
_NODES: Final = 3
_ANSWER_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_QUIET_SECONDS: Final = 3.0
"""After that, a start that takes long says what it waits for."""


class LayoutError(SeglogError):
    """The directory belongs to another cluster than the one requested, or its layout file is invalid."""


class ClusterLayout(NamedTuple):
    """``nodes``: the listener of each broker by its id (port 0: not chosen yet)."""

    store: str
    nodes: Mapping[int, str]

    def encode(self) -> bytes:
        nodes = {str(node): address for node, address in self.nodes.items()}
        return json_module.dumps({"form": _FORM, "store": self.store, "nodes": nodes}, indent=1).encode()


def up(
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", metavar="N", min=1, max=100, help="Brokers.", show_default="3")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="ADDRESS",
            help="Shared metadata: sqlite:FILE, or zookeeper://HOST:PORT/NAME.",
            show_default="a SQLite file in DIR",
        ),
    ] = None,
    data_dir: Annotated[
        str | None,
        typer.Option(
            "--data-dir", "-d", metavar="DIR", help="Directory of the cluster; by default yours.", show_default=False
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            "-l",
            metavar="HOST:PORT",
            help="Listener of the first broker; the others use the next ports. Port 0: any free ports.",
            show_default=_FIRST,
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of server.properties.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print events as JSON, one object per line.")] = False,
    log_level: Annotated[
        str, typer.Option("--log-level", metavar="|".join(LEVELS), help="The least level to log.")
    ] = "warning",
) -> int:
    """Run a cluster on this machine until SIGTERM or Ctrl-C. Started again with the same DIR, it continues."""
    given = list(settings or ())
    _check_settings(given)
    directory = os.path.abspath(data_dir or f"{default_data_dir(os.environ)}-cluster")
    layout = _layout(directory, nodes, store, listen)
    _make(directory)
    commands = [(node, _arguments(directory, layout, node, given, log_level)) for node in layout.nodes]

    async def run() -> int:
        stop = asyncio.Event()
        with act_on_signals(stop.set):
            return await _run(directory, layout, commands, stop, as_json=json)

    return asyncio.run(run())


def _check_settings(given: Sequence[str]) -> None:
    for text in given:
        key, equals, _ = text.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set {text!r} is not KEY=VALUE")
        if key.strip() in _OWN_KEYS:
            raise typer.BadParameter(
                f"--set {key.strip()}: each broker has its own value; start the brokers yourself to set it: "
                "seglog serve --cluster STORE --node-id N"
            )


async def _run(
    directory: str,
    layout: ClusterLayout,
    commands: Sequence[tuple[int, Sequence[str]]],
    stop: asyncio.Event,
    *,
    as_json: bool,
) -> int:
    clock = SystemClock()
    started = clock.monotonic()
    listening = [(node, [*arguments, "--listen", layout.nodes[node]]) for node, arguments in commands]
    if not as_json:
        brokers = name_all("broker", [str(node) for node, _ in listening])
        warn(f"starting {brokers} on {layout.store}; waiting until each sees all others")
    children = await _start(listening, stop)
    if children is None:
        return fail("stopped before the cluster was ready")
    lost: list[int] = []
    try:
        _write(directory, layout._replace(nodes={child.node_id: child.ready["bootstrap"] for child in children}))
        _say_ready(children, layout.store, clock.monotonic() - started, as_json=as_json)
        again = {
            child.node_id: shlex.join(["seglog", "serve", *arguments, "--listen", child.ready["bootstrap"]])
            for child, (_, arguments) in zip(children, commands, strict=True)
        }
        await watch(
            children, stop, lambda child, why: _say_died(child, why, again[child.node_id], lost, as_json=as_json)
        )
        hard = asyncio.ensure_future(_kill_on_second(stop, children))
        unclean = [node for node in await stop_all(children) if node not in lost]
        hard.cancel()
    finally:
        for child in children:
            child.kill()
    if unclean:
        return fail(f"these brokers did not stop cleanly: {', '.join(map(str, unclean))}")
    if len(lost) == len(children):
        return fail("all brokers have ended")
    return FAILED if lost else FINE


async def _start(commands: Sequence[tuple[int, Sequence[str]]], stop: asyncio.Event) -> list[ChildBroker] | None:
    """Start all brokers. None: a signal arrived before all were ready, and they were stopped."""
    starting = asyncio.ensure_future(_start_together(commands))
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait({starting})
    return None


async def _start_together(commands: Sequence[tuple[int, Sequence[str]]]) -> list[ChildBroker]:
    """Start all brokers and wait until each sees all others, so that topics on all brokers can be created."""
    children = await start_all(commands)
    expected, now = {child.node_id for child in children}, SystemClock().monotonic
    try:
        for child in children:
            requests = ClusterRequests(parse_bootstrap(child.ready["bootstrap"]), _ANSWER_SECONDS)
            quiet_until = now() + _QUIET_SECONDS
            while missing := expected - set(await asyncio.to_thread(requests.once, lambda admin: admin.racks())):
                if now() > quiet_until:
                    quiet_until = now() + _QUIET_SECONDS
                    warn(f"broker {child.node_id} does not see {name_all('broker', sorted(map(str, missing)))} yet")
                await asyncio.sleep(_LOOK_SECONDS)
    except BaseException:
        await stop_all(children)
        raise
    return children


async def _kill_on_second(stop: asyncio.Event, children: Sequence[ChildBroker]) -> None:
    """Kill the brokers at a second signal."""
    stop.clear()
    await stop.wait()
    for child in children:
        child.kill()


def _layout(directory: str, nodes: int | None, store: str | None, listen: str | None) -> ClusterLayout:
    """The layout found in the directory, extended as requested."""
    found = _read(directory)
    count = nodes or (len(found.nodes) if found else _NODES)
    address = _store(store or (found.store if found else f"sqlite:{os.path.join(directory, 'metadata.sqlite')}"))
    if found and found.store != address:
        raise LayoutError(
            f"{directory} belongs to the cluster in {found.store}, not in {address}: choose another --data-dir"
        )
    if found and count < len(found.nodes):
        raise LayoutError(
            f"{directory} has {len(found.nodes)} brokers, not {count}: move replicas off with "
            f"seglog cluster remove-broker, then remove the brokers from {os.path.join(directory, _LAYOUT)}"
        )
    ids = sorted(found.nodes) if found else []
    while len(ids) < count:
        ids.append(ids[-1] + 1 if ids else 1)
    addresses = _addresses(listen or _FIRST, count)
    known = found.nodes if found and listen is None else {}
    return ClusterLayout(address, {node: known.get(node, addresses[at]) for at, node in enumerate(ids)})


def _store(address: str) -> str:
    """The address with an absolute path, for all processes. Raises `InvalidConfigError`."""
    parse_store(address)
    kind, _, path = address.partition(":")
    return f"{kind}:{os.path.abspath(path)}" if kind == "sqlite" and path else address


def _addresses(first: str, count: int) -> list[str]:
    """
    >>> _addresses("[::1]:9092", 2), _addresses("localhost:0", 2)
    (['[::1]:9092', '[::1]:9093'], ['localhost:0', 'localhost:0'])
    """
    try:
        address = parse_host_port(first)
    except ValueError as error:
        raise typer.BadParameter(f"--listen: {error}") from error
    if address.port and address.port + count > 65536:
        raise typer.BadParameter(f"--listen: there are not {count} ports from {address.port} on")
    ports = range(address.port, address.port + count) if address.port else [0] * count
    return [str(address._replace(port=port)).partition("://")[2] for port in ports]


def _arguments(directory: str, layout: ClusterLayout, node: int, given: Sequence[str], log_level: str) -> list[str]:
    count = len(layout.nodes)
    defaults = {
        "default.replication.factor": min(3, count),
        "min.insync.replicas": min(2, count),
        "offsets.topic.replication.factor": min(3, count),
    }
    settings = [f"{key}={value}" for key, value in defaults.items()] + list(given)
    return [
        *("--cluster", layout.store, "--node-id", str(node)),
        *("--data-dir", os.path.join(directory, f"broker-{node}")),
        *("--log-level", log_level),
        *(part for text in settings for part in ("--set", text)),
    ]


def _read(directory: str) -> ClusterLayout | None:
    path = os.path.join(directory, _LAYOUT)
    if not OsFs().exists(path):
        return None
    try:
        told = json_module.loads(OsFs().read(path))
        if told["form"] != _FORM:
            raise LayoutError(f"{path} has form {told['form']}: a later release of seglog wrote it")
        return ClusterLayout(str(told["store"]), {int(node): str(address) for node, address in told["nodes"].items()})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f"{path} cannot be read: {error!r}") from error


def _make(directory: str) -> None:
    fs = OsFs()
    if not fs.exists(directory):
        _make(os.path.dirname(directory))
        fs.mkdir(directory)
    elif fs.stat(directory).is_file:
        raise LayoutError(f"{directory} is not a directory: choose another --data-dir")


def _write(directory: str, layout: ClusterLayout) -> None:
    fs, path = OsFs(), os.path.join(directory, _LAYOUT)
    fs.write(f"{path}.new", layout.encode())
    fs.rename(f"{path}.new", path)


def _say_ready(children: Sequence[ChildBroker], store: str, seconds: float, *, as_json: bool) -> None:
    bootstrap = ",".join(child.ready["bootstrap"] for child in children)
    out = Out()
    if as_json:
        brokers = [
            {
                "node": child.node_id,
                "bootstrap": child.ready["bootstrap"],
                "directory": child.ready["directory"],
                "pid": child.process.pid,
            }
            for child in children
        ]
        cluster = children[0].ready["cluster"]
        out.json(
            {
                "bootstrap": bootstrap,
                "cluster": cluster,
                "store": store,
                "brokers": brokers,
                "seconds": round(seconds, 3),
            }
        )
    else:
        out.line(f"seglog is ready: {bootstrap} ({len(children)} brokers, store {store}, {seconds:.2f} s)")
    out.flush()


def _say_died(child: ChildBroker, why: str, again: str, lost: list[int], *, as_json: bool) -> None:
    """``again``: the command that restarts the broker."""
    lost.append(child.node_id)
    if as_json:
        out = Out()
        out.json({"died": child.node_id, "why": why, "start": again})
        out.flush()
    else:
        warn(f"seglog: {why}; the other brokers keep running. To restart it: {again}")

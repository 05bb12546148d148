"""`seglog console`: the log and the cluster in the browser, until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from contextlib import AsyncExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from seglog.cli.options import OptionError, check_choice, with_options
from seglog.cli.output import FINE, Out
from seglog.cli.serve import ended_by
from seglog.cli.signals import leave_on_signals
from seglog.cli.wire.typed_records import TYPED_FORMATS
from seglog.core.addresses import Address, parse_host_port
from seglog.core.clock import SystemClock
from seglog.core.fs import OsFs

if TYPE_CHECKING:
    from seglog.console.api import Console

_LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
_LEAST_TOKEN: Final = 16
_SECRET_BYTES: Final = 24
_SECONDS: Final = 10.0


class Decoding(NamedTuple):
    """How keys and values are read, as by `seglog consume`."""

    key_format: Annotated[
        str | None, typer.Option(metavar="avro|protobuf", help="Show keys decoded.", show_default=False)
    ] = None
    value_format: Annotated[
        str | None, typer.Option(metavar="avro|protobuf", help="Show values decoded.", show_default=False)
    ] = None
    registry: Annotated[str | None, typer.Option(metavar="URL", help="The schema registry.", show_default=False)] = None
    format_options: Annotated[
        list[str] | None,
        typer.Option(
            "--format-option",
            metavar="KEY=VALUE",
            help="How they are read, as in valueSchema=flight.avsc; see docs/values.md.",
            show_default=False,
        ),
    ] = None

    def check(self) -> None:
        """Raise `OptionError` for an unknown format, or for options that need one."""
        for option, given in (("--key-format", self.key_format), ("--value-format", self.value_format)):
            if given is not None:
                check_choice(option, given, TYPED_FORMATS)
        if self.key_format is None and self.value_format is None and (self.registry or self.format_options):
            raise OptionError("--registry and --format-option need --value-format or --key-format")


_AS_BYTES: Final = Decoding()


class Target(NamedTuple):
    """What is shown: directories, brokers, or both."""

    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Log directories, of one broker or of several, or a partition.",
            show_default=False,
        ),
    ] = None
    bootstrap: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server", "-b", metavar="HOST:PORT", help="Brokers to contact first.", show_default=False
        ),
    ] = None
    properties: Annotated[
        list[str] | None,
        typer.Option("--property", "-X", metavar="KEY=VALUE", help="A setting of librdkafka.", show_default=False),
    ] = None
    command_config: Annotated[
        str | None,
        typer.Option("--command-config", "-F", metavar="FILE", help="A file of such settings.", show_default=False),
    ] = None
    timeout: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for a response.")] = 10.0

    def check(self, command: str) -> None:
        """Raise `OptionError` if nothing is named, or if settings have no brokers."""
        if not self.paths and self.bootstrap is None:
            raise OptionError(f"{command} needs a directory, brokers (-b HOST:PORT), or both")
        if self.bootstrap is None and (self.properties or self.command_config is not None):
            raise OptionError("--property and --command-config need -b HOST:PORT")

    def open(self, decoding: Decoding, *, command: str, writes: bool = False) -> Console:
        """`InvalidLogDirError`, `OptionError`."""
        from seglog.cli.cluster.requests import ClusterOptions
        from seglog.cli.wire.clients import Cluster
        from seglog.cli.wire.consume import PrintOptions
        from seglog.console.api import Console
        from seglog.console.disk import Disk
        from seglog.console.live import Live
        from seglog.console.typed_values import TypedValues

        clock = SystemClock()
        disk = Disk(OsFs(), clock, self.paths) if self.paths else None
        cluster = live = None
        if self.bootstrap is not None:
            where = (self.bootstrap, self.properties, self.command_config, self.timeout)
            cluster = Cluster(*where)
            live = Live(cluster, ClusterOptions(*where), clock)
        typed = TypedValues(PrintOptions(**decoding._asdict()).typed, is_wanted=decoding != _AS_BYTES)
        return Console(
            clock,
            disk=disk,
            cluster=cluster,
            live=live,
            typed=typed,
            bootstrap=self.bootstrap,
            writes=writes,
            command=command,
        )


_NOTHING: Final = Target()


@with_options
def console(
    target: Target = _NOTHING,
    listen: Annotated[
        str, typer.Option("--listen", "-l", metavar="HOST:PORT", help="Where to serve the page; port 0: a free one.")
    ] = "127.0.0.1:0",
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="A name in the page's address, beside --listen's.", show_default=False
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Let other machines connect, without TLS.")] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Allow to produce a record and to reset a group's offsets.")
    ] = False,
    decoding: Decoding = _AS_BYTES,
    token_file: Annotated[
        str | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="A token for programs that use the API, in a file of mode 0600.",
            show_default=False,
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the address as a JSON document.")] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
) -> int:
    """Show a log directory, a cluster, or both in the browser: open the address that it prints. The address opens the
    console once; then another one is printed."""
    target.check("console")
    if target.bootstrap is None and write:
        raise OptionError("--write needs -b HOST:PORT")
    decoding.check()
    address = _address(listen, insecure=insecure)
    bearer = None if token_file is None else _read_token(token_file)
    leave_on_signals()
    from seglog.console.access import Access
    from seglog.console.server import MAX_BODY, ConsolePages
    from seglog.net.http import HttpListener

    shown = target.open(decoding, command="console", writes=write)
    access = Access(lambda: secrets.token_urlsafe(_SECRET_BYTES), bearer=bearer)

    async def run() -> None:
        over = asyncio.Event()

        def say() -> None:
            name = f"[{address.host}]" if ":" in address.host else address.host
            url = f"http://{name}:{listener.port}/?token={access.token}"
            with Out() as out:
                if json:
                    out.json({"url": url})
                else:
                    out.line(f"console: {url}")

        pages = ConsolePages(shown, access, say)
        listener = HttpListener(address.host, address.port, pages, max_body=MAX_BODY, seconds=_SECONDS)
        async with AsyncExitStack() as stack:
            stack.callback(pages.close)
            await listener.start()
            stack.push_async_callback(listener.stop)
            names = [address.host if ":" not in address.host else f"[{address.host}]", *(host or ())]
            pages.listens_on(listener.port, [*_LOOPBACK, *(name.lower() for name in names)])
            if shown.has_brokers:
                shown.live.start()
                stack.callback(shown.live.stop)
            with ended_by(over.set, until_eof=until_eof):
                say()
                await over.wait()

    asyncio.run(run())
    return FINE


def _address(text: str, *, insecure: bool) -> Address:
    try:
        address = parse_host_port(text)
    except ValueError as error:
        raise OptionError(f"--listen: {error}") from error
    is_loopback = address.host == "localhost"
    if not is_loopback:
        try:
            is_loopback = ip_address(address.host).is_loopback
        except ValueError:
            is_loopback = False
    if not is_loopback and not insecure:
        raise OptionError(
            f"--listen {text}: other machines could read the log, over plain HTTP; use 127.0.0.1 (and ssh -L), or add "
            "--insecure"
        )
    return address


def _read_token(path: str) -> str:
    if os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise OptionError(f"{path} can be read or written by other users: chmod 600 {path}")
    token = OsFs().read(path).decode("ascii", "replace").strip()
    if len(token) < _LEAST_TOKEN or not token.isprintable() or " " in token:
        raise OptionError(f"{path} needs one line with a token of at least {_LEAST_TOKEN} characters")
    return token

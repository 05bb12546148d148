"""`seglog users`: users with SCRAM in the metadata store of a cluster, also while no broker runs."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final
from urllib.parse import unquote

import typer

from seglog.cli.cluster.store_session import Store, StoreConfig, with_store
from seglog.cli.options import JsonLines, ShowOnly, Yes, confirm
from seglog.cli.output import FINE, Out, fail
from seglog.cli.passwords import read_password

Password = Annotated[
    str | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="Read the password from the first line of a file. Default: ask for it.",
        show_default=False,
    ),
]
_NAME: Final = typer.Argument(metavar="NAME", help="The user.", show_default=False)


def add_user(
    name: Annotated[str, _NAME], store: Store, password_file: Password = None, store_config: StoreConfig = None
) -> int:
    """Add a user with all mechanisms of SCRAM, or give it another password. Brokers know it at once."""
    from seglog.broker.security.users import change_credentials, credentials_of

    credentials = credentials_of(read_password(name, password_file))
    asyncio.run(with_store(store, store_config, lambda opened: change_credentials(opened, name, credentials)))
    out = Out()
    out.line(f"user {name}: {', '.join(credentials)}")
    out.flush()
    return FINE


def delete_user(
    name: Annotated[str, _NAME],
    store: Store,
    store_config: StoreConfig = None,
    yes: Yes = False,
    dry_run: ShowOnly = False,
) -> int:
    """Delete a user. Its connections stay until their sessions end."""
    from seglog.broker.security.scram import SCRAM_DIGESTS
    from seglog.broker.security.users import FOLDER, change_credentials, decode_credentials, encoded_name
    from seglog.cluster.store import MetadataStore

    if dry_run:
        known = asyncio.run(with_store(store, store_config, lambda opened: opened.load(FOLDER)))
        if f"{FOLDER}/{encoded_name(name)}" not in known:
            return fail(f"user {name} does not exist")
        with Out() as out:
            out.line(f"would delete {name}")
        return FINE
    confirm(f"Delete user {name}?", yes=yes)

    async def act(opened: MetadataStore) -> None:
        found = await opened.get(f"{FOLDER}/{encoded_name(name)}")
        known = {} if found is None else decode_credentials(name, found.value)
        await change_credentials(opened, name, dict.fromkeys(known or SCRAM_DIGESTS))

    asyncio.run(with_store(store, store_config, act))
    return FINE


def list_users(store: Store, store_config: StoreConfig = None, json: JsonLines = False) -> int:
    """List users and their mechanisms."""
    from seglog.broker.security.users import FOLDER, decode_credentials

    values = asyncio.run(with_store(store, store_config, lambda opened: opened.load(FOLDER)))
    out = Out()
    for key in sorted(values):
        name = unquote(key.rpartition("/")[2])
        mechanisms = sorted(decode_credentials(name, values[key].value))
        if json:
            out.json({"user": name, "mechanisms": mechanisms})
        else:
            out.line(f"{name}: {', '.join(mechanisms)}")
    out.flush()
    return FINE

"""`seglog quotas describe|alter`: quotas of users, client ids and addresses, with the options of kafka-configs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import typer

from seglog.cli.options import JsonLines, OptionError, key_values, with_deletions, with_options
from seglog.cli.output import FINE, Out, fail, show_table
from seglog.cli.wire.clients import DEFAULT_BROKERS, Brokers, DryRun

_NAMES: Final = {"user": "user", "client-id": "client id", "ip": "address"}


class EntityOptions(NamedTuple):
    """The options that name an entity: one of a user and a client id or both, or an address."""

    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="This user.", show_default=False)] = None
    user_defaults: Annotated[bool, typer.Option("--user-defaults", help="Users without a quota of their own.")] = False
    client_id: Annotated[
        str | None, typer.Option("--client-id", metavar="ID", help="This client id.", show_default=False)
    ] = None
    client_defaults: Annotated[
        bool, typer.Option("--client-defaults", help="Client ids without a quota of their own.")
    ] = False
    ip: Annotated[str | None, typer.Option("--ip", metavar="HOST", help="This address.", show_default=False)] = None
    ip_defaults: Annotated[bool, typer.Option("--ip-defaults", help="Addresses without a quota of their own.")] = False

    def entity(self) -> dict[str, str | None]:
        """Names by type; None is a type's default."""
        found: dict[str, str | None] = {}
        for kind, name, is_default in (
            ("user", self.user, self.user_defaults),
            ("client-id", self.client_id, self.client_defaults),
            ("ip", self.ip, self.ip_defaults),
        ):
            if name is not None and is_default:
                option = "client" if kind == "client-id" else kind
                raise OptionError(f"--{kind} and --{option}-defaults exclude each other")
            if name is not None or is_default:
                found[kind] = name
        return found


_NO_ENTITY: Final = EntityOptions()


@with_options
def describe_quotas(
    options: EntityOptions = _NO_ENTITY,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Show the quotas of an entity, or of all."""
    entity = options.entity()
    with brokers.cluster().own_admin() as admin, Out() as out:
        found = admin.describe_client_quotas(entity)
        if json:
            for one in found:
                out.json({"entity": one.entity, "quotas": one.quotas})
        elif found:
            rows = [(_shown(one.entity), name, f"{value:.15g}") for one in found for name, value in one.quotas.items()]
            show_table(out, ("entity", "quota", "value"), rows, right=("value",))
    return FINE


@with_options
def alter_quotas(
    options: EntityOptions = _NO_ENTITY,
    add_config: Annotated[
        list[str] | None,
        typer.Option(
            "--add-config", "--set", "-s", metavar="QUOTA=NUMBER", help="Set quotas: a=1,b=2.", show_default=False
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", "--delete", "-d", metavar="QUOTA", help="Remove a quota.", show_default=False),
    ] = None,
    dry_run: DryRun = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Set or remove quotas of one entity: producer_byte_rate, consumer_byte_rate, request_percentage and
    controller_mutation_rate of users and client ids, connection_creation_rate of addresses."""
    entity = options.entity()
    if not entity:
        return fail("quotas alter needs --user, --client-id or --ip, or the defaults of one of them")
    added: dict[str, float] = {}
    parts = [part for text in add_config or () for part in text.split(",")]
    for name, text in key_values("--add-config", parts).items():
        try:
            added[name] = float(text)
        except ValueError:
            raise OptionError(f"--add-config: {name}={text!r} is not a number") from None
    changes = with_deletions("quotas alter", added, delete_config)
    with brokers.cluster().own_admin() as admin:
        admin.alter_client_quotas(entity, changes, validate_only=dry_run)
    with Out() as out:
        if json:
            out.json({"entity": entity, "changes": changes, "done": not dry_run})
        else:
            out.line(f"{'would alter' if dry_run else 'altered'} {_shown(entity)}")
    return FINE


def _shown(entity: Mapping[str, str | None]) -> str:
    """
    >>> _shown({"user": "ann", "client-id": None})
    'user ann, default client id'
    """
    return ", ".join(
        f"default {_NAMES.get(kind, kind)}" if name is None else f"{_NAMES.get(kind, kind)} {name}"
        for kind, name in entity.items()
    )

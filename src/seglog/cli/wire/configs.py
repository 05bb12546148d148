"""`seglog configs describe|alter`: configurations of topics and brokers, as kafka-configs shows and changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import with_options
from seglog.cli.output import FINE, Out, fail, show_table
from seglog.cli.wire import clients as wire
from seglog.cli.wire.clients import Cluster
from seglog.client.configs import ConfigValue

_SOURCES: Final = {
    0: "unknown",
    1: "topic",
    2: "broker",
    3: "broker-defaults",
    4: "static",
    5: "default",
    6: "logger",
    8: "group",
}
_INHERITED: Final = (4, 5)


class Entity(NamedTuple):
    """What has a configuration; a broker without a name stands for all of them."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else "broker defaults"


class Meant(NamedTuple):
    """Whose configuration is meant: topics by their names, or what the options say, in our words and in Kafka's."""

    names: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics.", show_default=False)] = None
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Of this topic.", show_default=False)
    ] = None
    brokers: Annotated[
        list[str] | None, typer.Option("--broker", metavar="ID", help="Of this broker.", show_default=False)
    ] = None
    broker_defaults: Annotated[bool, typer.Option("--broker-defaults", help="What holds for all brokers.")] = False
    entity_type: Annotated[
        str | None, typer.Option(metavar="topics|brokers", help="Kafka's way to say --topic.", show_default=False)
    ] = None
    entity_names: Annotated[
        list[str] | None, typer.Option("--entity-name", metavar="NAME", help="With --entity-type.", show_default=False)
    ] = None
    entity_default: Annotated[
        bool, typer.Option("--entity-default", help="With --entity-type brokers: all of them.")
    ] = False

    def entities(self) -> list[Entity]:
        found = [Entity("topic", name) for name in dict.fromkeys([*(self.names or ()), *(self.topics or ())])]
        found += [Entity("broker", name) for name in self.brokers or ()]
        wants_defaults = self.broker_defaults
        if self.entity_type is not None:
            kind = self.entity_type.removesuffix("s")
            if kind not in ("topic", "broker"):
                raise typer.BadParameter(f"--entity-type is topics or brokers, not {self.entity_type}")
            found += [Entity(kind, name) for name in self.entity_names or ()]
            wants_defaults = wants_defaults or (self.entity_default and kind == "broker")
        elif self.entity_names:
            raise typer.BadParameter("--entity-name needs --entity-type")
        for entity in found:
            if entity.kind == "broker" and not entity.name.isdecimal():
                raise typer.BadParameter(f"{entity.name!r} is no broker's id")
        return [*found, Entity("broker", "")] if wants_defaults else found


_NOBODY: Final = Meant()


@with_options
def describe_configs(
    meant: Meant = _NOBODY,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also what is not set: defaults, and the broker's file.")
    ] = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """What is set; with --all every key, its value, and where it comes from."""
    entities = meant.entities()
    if not entities:
        return fail("configs describe needs a topic, --broker or --broker-defaults")
    cluster = brokers.cluster()
    out = Out()
    for entity, values in _read(cluster, entities).items():
        shown = [value for value in values if everything or value.source not in _INHERITED]
        if json:
            configs = [
                {
                    "name": value.name,
                    "value": value.value,
                    "source": _source(value),
                    "isReadOnly": value.is_read_only,
                    "isSensitive": value.is_sensitive,
                }
                for value in shown
            ]
            out.json({"type": entity.kind, "name": entity.name, "configs": configs})
            continue
        out.line(f"{entity}:{'' if shown else ' nothing is set'}")
        if shown:
            rows = [[one.name, _text(one), _source(one), "read-only" if one.is_read_only else ""] for one in shown]
            show_table(out, ("key", "value", "source", ""), rows)
    out.flush()
    return FINE


@with_options
def alter_configs(
    add_config: Annotated[
        list[str] | None,
        typer.Option(
            "--add-config", "--set", "-s", metavar="KEY=VALUE", help="Set keys: a=b,c=[d,e].", show_default=False
        ),
    ] = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option("--delete-config", "--delete", "-d", metavar="KEY", help="Back to default.", show_default=False),
    ] = None,
    meant: Meant = _NOBODY,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Ask whether it could be done.")] = False,
    brokers: wire.Brokers = wire.DEFAULT_BROKERS,
    json: wire.Json = False,
) -> int:
    """Set keys and remove others; what is not named stays."""
    entities = meant.entities()
    if not entities:
        return fail("configs alter needs a topic, --broker or --broker-defaults")
    changes: dict[str, str | None] = dict(wire.key_values(add_config, "--add-config"))
    for name in (part.strip() for text in delete_config or () for part in text.split(",")):
        if name in changes:
            return fail(f"{name} is in --add-config and in --delete-config")
        changes[name] = None
    if not changes:
        return fail("configs alter needs --add-config or --delete-config")
    cluster = brokers.cluster()
    out = Out()
    try:
        for entity in entities:
            _alter(cluster, entity, changes, dry_run=dry_run)
            if json:
                out.json({"type": entity.kind, "name": entity.name, "changes": changes, "done": not dry_run})
            else:
                out.line(f"{'would alter' if dry_run else 'altered'} {entity}")
    finally:
        out.flush()
    return FINE


def _resource(cluster: Cluster, entity: Entity, **more: Any) -> Any:
    types = cluster.api.ResourceType
    return cluster.api.ConfigResource(types.TOPIC if entity.kind == "topic" else types.BROKER, entity.name, **more)


def _read(cluster: Cluster, entities: Sequence[Entity]) -> dict[Entity, list[ConfigValue]]:
    found = {}
    for entity in entities:
        if not entity.name:
            with cluster.own_admin() as admin:
                found[entity] = sorted(admin.describe_broker_defaults())
            continue
        with cluster.errors(str(entity)):  # one resource a request: those of brokers go to different brokers
            futures = cluster.admin.describe_configs([_resource(cluster, entity)], request_timeout=cluster.timeout)
        (future,) = futures.values()
        entries = cluster.result(future, str(entity)).values()
        found[entity] = sorted(
            ConfigValue(one.name, one.value, int(one.source), one.is_read_only, one.is_sensitive) for one in entries
        )
    return found


def _alter(cluster: Cluster, entity: Entity, changes: Mapping[str, str | None], *, dry_run: bool) -> None:
    if not entity.name:
        with cluster.own_admin() as admin:
            admin.alter_broker_defaults(changes, validate_only=dry_run)
        return
    api = cluster.api
    operations = api.AlterConfigOpType
    entries = [
        api.ConfigEntry(name, value, incremental_operation=operations.DELETE if value is None else operations.SET)
        for name, value in changes.items()
    ]
    with cluster.errors(str(entity)):
        futures = cluster.admin.incremental_alter_configs(
            [_resource(cluster, entity, incremental_configs=entries)],
            validate_only=dry_run,
            request_timeout=cluster.timeout,
        )
    (future,) = futures.values()
    cluster.result(future, str(entity))


def _source(value: ConfigValue) -> str:
    return _SOURCES.get(value.source, str(value.source))


def _text(value: ConfigValue) -> str:
    return "(secret)" if value.is_sensitive and value.value is None else "-" if value.value is None else value.value

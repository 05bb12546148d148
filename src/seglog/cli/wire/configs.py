"""`seglog configs describe|alter`: configurations of topics and brokers, as kafka-configs shows and changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple

import typer

from seglog.cli.options import JsonLines, OptionError, check_choice, key_values, with_deletions, with_options
from seglog.cli.output import FINE, Out, show_table
from seglog.cli.wire.clients import DEFAULT_BROKERS, NO_TOPICS, Brokers, Cluster, DryRun, TopicNames
from seglog.client.admin import ConfigValue

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
_ENTITIES: Final = ("topics", "brokers")


class ConfigEntity(NamedTuple):
    """A topic or a broker. A broker without a name stands for the defaults of all brokers."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.name else "broker defaults"


class EntityOptions(NamedTuple):
    """The options, ours and Kafka's, that name entities beside topics."""

    brokers: Annotated[
        list[str] | None, typer.Option("--broker", metavar="ID", help="This broker.", show_default=False)
    ] = None
    broker_defaults: Annotated[bool, typer.Option("--broker-defaults", help="The defaults of all brokers.")] = False
    entity_type: Annotated[
        str | None, typer.Option(metavar="|".join(_ENTITIES), help="Kafka's form of --topic.", show_default=False)
    ] = None
    entity_names: Annotated[
        list[str] | None, typer.Option("--entity-name", metavar="NAME", help="With --entity-type.", show_default=False)
    ] = None
    entity_default: Annotated[
        bool, typer.Option("--entity-default", help="With --entity-type brokers: --broker-defaults.")
    ] = False

    def entities(self, topics: Sequence[str], command: str) -> list[ConfigEntity]:
        found = [ConfigEntity("topic", name) for name in dict.fromkeys(topics)]
        found += [ConfigEntity("broker", name) for name in self.brokers or ()]
        has_defaults = self.broker_defaults
        if self.entity_type is not None:
            kind = self.entity_type.removesuffix("s")
            if kind not in ("topic", "broker"):
                check_choice("--entity-type", self.entity_type, _ENTITIES)
            found += [ConfigEntity(kind, name) for name in self.entity_names or ()]
            has_defaults = has_defaults or (self.entity_default and kind == "broker")
        elif self.entity_names:
            raise OptionError("--entity-name needs --entity-type")
        for entity in found:
            if entity.kind == "broker" and not entity.name.isdecimal():
                raise OptionError(f"{entity.name!r} is not a broker id")
        found += [ConfigEntity("broker", "")] if has_defaults else []
        if not found:
            raise OptionError(f"configs {command} needs a topic, --broker or --broker-defaults")
        return found


_NO_ENTITIES: Final = EntityOptions()


@with_options
def describe_configs(
    names: TopicNames = NO_TOPICS,
    options: EntityOptions = _NO_ENTITIES,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Show all keys, also defaults and those of the broker's file.")
    ] = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Show the keys that are set; with --all every key, its value and its source."""
    entities = options.entities(names.all(), "describe")
    cluster = brokers.cluster()
    with Out() as out:
        for entity in entities:
            shown = shown_configs(read_configs(cluster, entity), everything=everything)
            if json:
                out.json(configs_document(entity, shown))
                continue
            out.line(f"{entity}:{'' if shown else ' nothing is set'}")
            if shown:
                rows = [[one.name, _text(one), _source(one), "read-only" if one.is_read_only else ""] for one in shown]
                show_table(out, ("key", "value", "source", ""), rows)
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
        typer.Option("--delete-config", "--delete", "-d", metavar="KEY", help="Reset to default.", show_default=False),
    ] = None,
    names: TopicNames = NO_TOPICS,
    options: EntityOptions = _NO_ENTITIES,
    dry_run: DryRun = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Set or remove keys; other keys keep their values."""
    entities = options.entities(names.all(), "alter")
    changes = with_deletions("configs alter", parse_configs(add_config, "--add-config"), delete_config)
    cluster = brokers.cluster()
    with Out() as out:
        for entity in entities:
            _alter(cluster, entity, changes, dry_run=dry_run)
            if json:
                out.json({"type": entity.kind, "name": entity.name, "changes": changes, "done": not dry_run})
            else:
                out.line(f"{'would alter' if dry_run else 'altered'} {entity}")
    return FINE


def parse_configs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    """``a=b,c=[d,e]``, as kafka-configs has it; the option may be given several times. A single pair may have commas
    without brackets.

    >>> parse_configs(["retention.ms=1,cleanup.policy=[compact,delete]", "cleanup.policy=compact,delete"], "--config")
    {'retention.ms': '1', 'cleanup.policy': 'compact,delete'}
    """
    parts: list[str] = []
    for text in given or ():
        depth, start, pieces = 0, 0, []
        for position, character in enumerate(text):
            depth += {"[": 1, "]": -1}.get(character, 0)
            if character == "," and depth == 0:
                pieces.append(text[start:position])
                start = position + 1
        pieces.append(text[start:])
        for piece in pieces:
            if "=" in piece or piece is pieces[0]:
                parts.append(piece)
            else:
                parts[-1] += f",{piece}"
    return {
        key: value[1:-1] if value.startswith("[") and value.endswith("]") else value
        for key, value in key_values(option, parts).items()
    }


def _resource(cluster: Cluster, entity: ConfigEntity, **more: Any) -> Any:
    types = cluster.api.ResourceType
    return cluster.api.ConfigResource(types.TOPIC if entity.kind == "topic" else types.BROKER, entity.name, **more)


def read_configs(cluster: Cluster, entity: ConfigEntity) -> list[ConfigValue]:
    if not entity.name:
        with cluster.own_admin() as admin:
            return sorted(admin.describe_broker_defaults())
    # One resource per request: those of brokers go to different brokers.
    futures = cluster.ask("describe_configs", str(entity), [_resource(cluster, entity)])
    entries = cluster.only_result(futures, str(entity)).values()
    return sorted(
        ConfigValue(one.name, one.value, int(one.source), one.is_read_only, one.is_sensitive) for one in entries
    )


def _alter(cluster: Cluster, entity: ConfigEntity, changes: Mapping[str, str | None], *, dry_run: bool) -> None:
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
    resource = _resource(cluster, entity, incremental_configs=entries)
    futures = cluster.ask("incremental_alter_configs", str(entity), [resource], validate_only=dry_run)
    cluster.only_result(futures, str(entity))


def shown_configs(values: Sequence[ConfigValue], *, everything: bool) -> list[ConfigValue]:
    """The keys that are set, or all."""
    return [value for value in values if everything or value.source not in _INHERITED]


def configs_document(entity: ConfigEntity, values: Sequence[ConfigValue]) -> dict[str, Any]:
    configs = [
        {
            "name": value.name,
            "value": value.value,
            "source": _source(value),
            "isReadOnly": value.is_read_only,
            "isSensitive": value.is_sensitive,
        }
        for value in values
    ]
    return {"type": entity.kind, "name": entity.name, "configs": configs}


def _source(value: ConfigValue) -> str:
    return _SOURCES.get(value.source, str(value.source))


def _text(value: ConfigValue) -> str:
    return "(secret)" if value.is_sensitive and value.value is None else "-" if value.value is None else value.value

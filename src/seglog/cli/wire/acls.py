"""`seglog acls add|list|remove`: who may do what in a cluster, as kafka-acls shows and changes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeVar

import typer

from seglog.cli.options import JsonLines, OptionError, ShowOnly, Yes, confirm, with_options
from seglog.cli.output import FINE, Out, fail, show_table
from seglog.cli.wire.clients import DEFAULT_BROKERS, Brokers

if TYPE_CHECKING:
    from seglog.broker.security.acls import Acl, AclFilter, Entry, Operation, Pattern
    from seglog.protocol.message_reader import Message

E = TypeVar("E", bound=IntEnum)
_ALL_HOSTS: Final = "*"
_COLUMNS: Final = ("resource", "name", "pattern", "permission", "operation", "principal", "host")
_Texts = list[str] | None


def _texts(name: str, metavar: str, text: str) -> Any:
    return typer.Option(name, metavar=metavar, help=text, show_default=False)


class Resources(NamedTuple):
    """The options that name resources."""

    topics: Annotated[_Texts, _texts("--topic", "TOPIC", "A topic, or * for all.")] = None
    groups: Annotated[_Texts, _texts("--group", "GROUP", "A group, or * for all.")] = None
    transactional_ids: Annotated[_Texts, _texts("--transactional-id", "ID", "A transactional id, or * for all.")] = None
    cluster: Annotated[bool, typer.Option("--cluster", help="The cluster.")] = False
    tokens: Annotated[_Texts, _texts("--delegation-token", "ID", "A delegation token, or * for all.")] = None
    users: Annotated[_Texts, _texts("--user-principal", "TYPE:NAME", "A user whose tokens are meant.")] = None
    pattern: Annotated[
        str,
        typer.Option(
            "--resource-pattern-type",
            metavar="TYPE",
            help="literal, or prefixed: names that begin so. To list and remove also any, and match: all that apply.",
        ),
    ] = "literal"

    def patterns(self) -> list[Pattern]:
        """With a type that may be one of filters."""
        from seglog.broker.security.acls import CLUSTER_NAME, Pattern, PatternType, ResourceType

        kind = _member(PatternType, "--resource-pattern-type", self.pattern)
        named = {
            ResourceType.TOPIC: self.topics,
            ResourceType.GROUP: self.groups,
            ResourceType.TRANSACTIONAL_ID: self.transactional_ids,
            ResourceType.DELEGATION_TOKEN: self.tokens,
            ResourceType.USER: self.users,
        }
        found = [Pattern(resource, name, kind) for resource, names in named.items() for name in names or ()]
        return [*found, Pattern(ResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)] if self.cluster else found


class Grants(NamedTuple):
    """The options that say who may, or must not, do what."""

    allowed: Annotated[_Texts, _texts("--allow-principal", "TYPE:NAME", "Allow it to this principal.")] = None
    denied: Annotated[_Texts, _texts("--deny-principal", "TYPE:NAME", "Deny it to this principal.")] = None
    allowed_hosts: Annotated[_Texts, _texts("--allow-host", "HOST", "From this address or range. Default: all.")] = None
    denied_hosts: Annotated[_Texts, _texts("--deny-host", "HOST", "From this address or range. Default: all.")] = None
    operations: Annotated[_Texts, _texts("--operation", "OPERATION", "Such as Read or Write. Default: All.")] = None
    producer: Annotated[
        bool, typer.Option("--producer", help="What a producer needs, on topics and transactional ids.")
    ] = False
    consumer: Annotated[bool, typer.Option("--consumer", help="What a consumer needs, on topics and groups.")] = False
    idempotent: Annotated[
        bool, typer.Option("--idempotent", help="With --producer: also IdempotentWrite, for brokers before 2.8.")
    ] = False

    def acls(self, resources: Resources) -> list[Acl]:
        """All combinations of resources, principals, hosts and operations. `OptionError`."""
        from seglog.broker.security.acls import Acl, Entry, Permission

        who = [
            (principal, host, permission)
            for principals, hosts, permission in (
                (self.allowed, self.allowed_hosts, Permission.ALLOW),
                (self.denied, self.denied_hosts, Permission.DENY),
            )
            for principal in principals or ()
            for host in hosts or (_ALL_HOSTS,)
        ]
        if (self.allowed_hosts and not self.allowed) or (self.denied_hosts and not self.denied):
            raise OptionError("--allow-host needs --allow-principal, and --deny-host needs --deny-principal")
        found = [
            Acl(pattern, Entry(principal, host, operation, permission))
            for pattern, operations in self._operations(resources)
            for operation in operations
            for principal, host, permission in who
        ]
        return list(dict.fromkeys(found))

    def _operations(self, resources: Resources) -> Iterator[tuple[Pattern, Sequence[Operation]]]:
        from seglog.broker.security.acls import Operation, ResourceType
        from seglog.broker.security.authorizer import OPERATIONS

        patterns = resources.patterns()
        if not (self.producer or self.consumer):
            operations = [_member(Operation, "--operation", one) for one in self.operations or ("All",)]
            for pattern in patterns:
                for one in operations:
                    if one is not Operation.ALL and one not in OPERATIONS[pattern.resource]:
                        names = ", ".join(map(_name, (*OPERATIONS[pattern.resource], Operation.ALL)))
                        raise OptionError(f"--operation {_name(one)}: {_name(pattern.resource)} only has {names}")
                yield pattern, operations
            return
        self._check_roles(resources)
        for pattern in patterns:
            producing = self.producer and _OF_PRODUCERS.get(pattern.resource.name)
            consuming = self.consumer and _OF_CONSUMERS.get(pattern.resource.name)
            yield pattern, [Operation[name] for name in (*(producing or ()), *(consuming or ()))]
        if self.idempotent:
            (cluster,) = Resources(cluster=True).patterns()
            assert cluster.resource is ResourceType.CLUSTER
            yield cluster, [Operation.IDEMPOTENT_WRITE]

    def _check_roles(self, resources: Resources) -> None:
        if self.operations or self.denied or self.denied_hosts:
            raise OptionError("--producer and --consumer take no --operation, --deny-principal or --deny-host")
        if not resources.topics:
            raise OptionError("--producer and --consumer need --topic")
        if self.consumer and not resources.groups:
            raise OptionError("--consumer needs --group")
        if self.consumer and not self.producer and (resources.cluster or resources.transactional_ids):
            raise OptionError("--consumer takes no --cluster and no --transactional-id")
        if self.idempotent and not self.producer:
            raise OptionError("--idempotent needs --producer")


_OF_PRODUCERS: Final[Mapping[str, Sequence[str]]] = {
    "TOPIC": ("WRITE", "DESCRIBE", "CREATE"),
    "TRANSACTIONAL_ID": ("WRITE", "DESCRIBE"),
}
_OF_CONSUMERS: Final[Mapping[str, Sequence[str]]] = {"TOPIC": ("READ", "DESCRIBE"), "GROUP": ("READ",)}


_NO_RESOURCES: Final = Resources()
_NO_GRANTS: Final = Grants()


@with_options
def add_acls(
    resources: Resources = _NO_RESOURCES,
    grants: Grants = _NO_GRANTS,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Allow or deny operations on resources."""
    from seglog.broker.requests import ApiError
    from seglog.broker.security.acls import check_acl
    from seglog.client.connection import describe_code

    acls = grants.acls(resources)
    if not acls:
        return fail("acls add needs a resource such as --topic, and --allow-principal or --deny-principal")
    for acl in acls:
        try:
            check_acl(acl)
        except ApiError as error:
            return fail(error)
    creations = [
        {**_pattern_fields(acl.pattern, "resource_{}", "resource_pattern_type"), **_entry_fields(acl.entry)}
        for acl in acls
    ]
    results = _ask(brokers, "CREATE_ACLS", {"creations": creations}).results
    code = FINE
    added = []
    for acl, result in zip(acls, results, strict=True):
        if result.error_code:
            code = fail(f"{_text(acl)}: {result.error_message or describe_code(result.error_code)}")
        else:
            added.append(acl)
    _show(added, as_json=json)
    return code


@with_options
def list_acls(
    resources: Resources = _NO_RESOURCES,
    principals: Annotated[_Texts, _texts("--principal", "TYPE:NAME", "Only of this principal.")] = None,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """List ACLs, all or those of resources and principals."""
    from seglog.broker.security.acls import AclFilter

    filters = [
        wanted._replace(principal=principal)
        for wanted in [_filter_of(pattern) for pattern in resources.patterns()] or [AclFilter()]
        for principal in principals or (None,)
    ]
    _show(_described(brokers, filters), as_json=json)
    return FINE


@with_options
def remove_acls(
    resources: Resources = _NO_RESOURCES,
    grants: Grants = _NO_GRANTS,
    yes: Yes = False,
    dry_run: ShowOnly = False,
    brokers: Brokers = DEFAULT_BROKERS,
    json: JsonLines = False,
) -> int:
    """Remove ACLs: those that are named, or all of the resources."""
    from seglog.client.connection import check_answer

    patterns = resources.patterns()
    if not patterns:
        return fail("acls remove needs a resource, such as --topic")
    acls = grants.acls(resources)
    if not acls and any(grants):
        return fail("acls remove needs --allow-principal or --deny-principal, or no other option than resources")
    filters = [
        _filter_of(acl.pattern)._replace(**acl.entry._asdict()) for acl in acls
    ] or [_filter_of(pattern) for pattern in patterns]  # fmt: skip
    if dry_run:
        _show(_described(brokers, filters), as_json=json)
        return FINE
    what = f"{len(acls)} ACLs" if acls else f"all ACLs of {', '.join(map(_pattern_text, patterns))}"
    confirm(f"Remove {what}?", yes=yes)
    results = _ask(brokers, "DELETE_ACLS", {"filters": [_filter_fields(one) for one in filters]}).filter_results
    removed: list[Acl] = []
    code = FINE
    for result in results:
        check_answer(result.error_code, "ACLs", result.error_message)
        for one in result.matching_acls:
            if one.error_code:
                code = fail(f"{_text(_acl(one, one))}: {one.error_message}")
            else:
                removed.append(_acl(one, one))
    _show(sorted(set(removed)), as_json=json)
    return code


def _described(brokers: Brokers, filters: Iterable[AclFilter]) -> list[Acl]:
    """The ACLs of the cluster that match."""
    from seglog.client.connection import check_answer

    found: set[Acl] = set()
    for wanted in filters:
        answer = _ask(brokers, "DESCRIBE_ACLS", _filter_fields(wanted))
        check_answer(answer.error_code, "ACLs", answer.error_message)
        found |= {_acl(one, entry) for one in answer.resources for entry in one.acls}
    return sorted(found)


def _ask(brokers: Brokers, key: str, contents: Mapping[str, Any]) -> Message:
    from seglog.client.cluster_connections import ClusterConnections
    from seglog.protocol.apis import ApiKey

    with ClusterConnections(brokers.own_config()) as cluster:
        return cluster.ask_any(ApiKey[key], contents)


def _member(kind: type[E], option: str, text: str) -> E:
    """The member of a name, as Kafka's tools write it, or as Java does."""
    wanted = text.strip().lower().replace("_", "").replace("-", "")
    for one in kind:
        if one and one.name.lower().replace("_", "") == wanted:
            return one
    names = ", ".join(_name(one) for one in kind if one)
    raise OptionError(f"{option} {text}: not one of {names}")


def _name(value: IntEnum) -> str:
    return value.name.title().replace("_", "")


def _pattern_fields(pattern: Pattern, form: str, kind: str) -> dict[str, Any]:
    return {form.format("type"): int(pattern.resource), form.format("name"): pattern.name, kind: int(pattern.type)}


def _entry_fields(entry: Entry) -> dict[str, Any]:
    return {
        "principal": entry.principal,
        "host": entry.host,
        "operation": int(entry.operation),
        "permission_type": int(entry.permission),
    }


def _filter_of(pattern: Pattern) -> AclFilter:
    from seglog.broker.security.acls import AclFilter

    return AclFilter(pattern.resource, pattern.name, pattern.type)


def _filter_fields(wanted: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": int(wanted.resource),
        "resource_name_filter": wanted.name,
        "pattern_type_filter": int(wanted.type),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": int(wanted.operation),
        "permission_type": int(wanted.permission),
    }


def _acl(resource: Message, entry: Message) -> Acl:
    from seglog.broker.security.acls import Acl, Entry, Operation, Pattern, PatternType, Permission, ResourceType
    from seglog.broker.security.acls import of_number as of

    kind = of(ResourceType, resource.resource_type)
    return Acl(
        Pattern(kind, resource.resource_name, of(PatternType, resource.pattern_type)),
        Entry(entry.principal, entry.host, of(Operation, entry.operation), of(Permission, entry.permission_type)),
    )


def _pattern_text(pattern: Pattern) -> str:
    return f"{_name(pattern.resource)} {pattern.name} ({_name(pattern.type)})"


def _text(acl: Acl) -> str:
    entry = acl.entry
    who = f"{entry.principal} from {entry.host}"
    return f"{_name(entry.permission)} {_name(entry.operation)} on {_pattern_text(acl.pattern)} to {who}"


def _show(acls: Iterable[Acl], *, as_json: bool) -> None:
    rows = [
        (
            _name(pattern.resource),
            pattern.name,
            _name(pattern.type),
            _name(entry.permission),
            _name(entry.operation),
            entry.principal,
            entry.host,
        )
        for pattern, entry in acls
    ]
    with Out() as out:
        if as_json:
            for row in rows:
                out.json(dict(zip(_COLUMNS, row, strict=True)))
        elif rows:
            show_table(out, _COLUMNS, rows)
        else:
            out.line("no ACLs")

"""Checks requests by the table of permissions before handlers see them, and takes out of answers what a client must not
see. A handler is asked for what the client may do only; the refusals join its answer.

Produce and Fetch check themselves (`seglog.broker.produce.produce`, `seglog.broker.fetch.fetch`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from typing import Any, Final, NamedTuple

from seglog.broker.identity import NOT_ASKED
from seglog.broker.offload import in_turns
from seglog.broker.requests import Answer, ApiHandler, RequestContext
from seglog.broker.security.acls import ResourceType
from seglog.broker.security.authorization import Authorization
from seglog.broker.security.permissions import NEEDS, Denied, Need
from seglog.broker.topics.topics import Topics
from seglog.core.error_codes import ErrorCode
from seglog.core.topic_names import INTERNAL_TOPICS
from seglog.protocol.apis import ApiKey
from seglog.protocol.messages import Message

MESSAGES: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "Delegation Token authorization failed.",
}
_TOPIC_IDS_OF_METADATA: Final = 12
_FIND_GROUP: Final = 0
_FIND_TRANSACTION: Final = 1
_TOPIC_CONFIGS: Final = 2
_GROUP_CONFIGS: Final = 32
_HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."


class _Elements(NamedTuple):
    """A list of a request whose elements are refused one by one: its name, the attribute with the resource's name (""
    if the element is the name), and the same of the answer. An element may have partitions: the name of the list, and
    the attribute with the number, of the request and then of the answer."""

    asked: str
    name: str
    answered: str
    named: str
    partitions: tuple[str, str, str, str] | None = None


_NUMBERED: Final = ("partitions", "partition_index", "partitions", "partition_index")
_ELEMENTS: Final[Mapping[ApiKey, _Elements]] = {
    ApiKey.LIST_OFFSETS: _Elements("topics", "name", "topics", "name", _NUMBERED),
    ApiKey.METADATA: _Elements("topics", "name", "topics", "name"),
    ApiKey.OFFSET_COMMIT: _Elements("topics", "name", "topics", "name", _NUMBERED),
    ApiKey.OFFSET_FETCH: _Elements(
        "topics", "name", "topics", "name", ("partition_indexes", "", "partitions", "partition_index")
    ),
    ApiKey.FIND_COORDINATOR: _Elements("coordinator_keys", "", "coordinators", "key"),
    ApiKey.DESCRIBE_GROUPS: _Elements("groups", "", "groups", "group_id"),
    ApiKey.CREATE_TOPICS: _Elements("topics", "name", "topics", "name"),
    ApiKey.DELETE_TOPICS: _Elements("topics", "name", "responses", "name"),
    ApiKey.DELETE_RECORDS: _Elements("topics", "name", "topics", "name", _NUMBERED),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _Elements(
        "topics", "topic", "topics", "topic", ("partitions", "partition", "partitions", "partition")
    ),
    ApiKey.TXN_OFFSET_COMMIT: _Elements("topics", "name", "topics", "name", _NUMBERED),
    ApiKey.CREATE_PARTITIONS: _Elements("topics", "name", "results", "name"),
    ApiKey.DELETE_GROUPS: _Elements("groups_names", "", "results", "group_id"),
    ApiKey.OFFSET_DELETE: _Elements("topics", "name", "topics", "name", _NUMBERED),
    ApiKey.DESCRIBE_PRODUCERS: _Elements(
        "topics", "name", "topics", "name", ("partition_indexes", "", "partitions", "partition_index")
    ),
    ApiKey.DESCRIBE_CONFIGS: _Elements("resources", "resource_name", "results", "resource_name"),
    ApiKey.ALTER_CONFIGS: _Elements("resources", "resource_name", "responses", "resource_name"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Elements("resources", "resource_name", "responses", "resource_name"),
    ApiKey.DESCRIBE_TRANSACTIONS: _Elements("transactional_ids", "", "transaction_states", "transactional_id"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _Elements("group_ids", "", "groups", "group_id"),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _Elements("topics", "name", "topics", "name"),
}
_FIRST_TELL_OF_REPEATS: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
    }
)
"""APIs that refuse what a request names twice, whatever the client may do."""

_Check = Callable[["_Request"], Awaitable[Answer]]


class Guard:
    """``creates_topics``: whether Metadata may create topics."""

    def __init__(self, authorization: Authorization, topics: Topics, creates_topics: Callable[[], bool]) -> None:
        self._authorization = authorization
        self._topics = topics
        self._creates_topics = creates_topics

    def guarded(self, handlers: Mapping[int, ApiHandler]) -> dict[int, ApiHandler]:
        """The handlers, each with its checks."""
        return {key: self._guarded(ApiKey(key), handler) for key, handler in handlers.items()}

    def _guarded(self, key: ApiKey, handler: ApiHandler) -> ApiHandler:
        if not NEEDS[key]:
            return handler
        check = _CHECKS.get(key, _usual)

        async def handle(request: Message, context: RequestContext) -> Answer:
            return await check(
                _Request(self._authorization, self._topics, self._creates_topics, handler, request, context)
            )

        return handle


class _Request:
    """A request that is being checked."""

    def __init__(
        self,
        authorization: Authorization,
        topics: Topics,
        creates_topics: Callable[[], bool],
        handler: ApiHandler,
        message: Message,
        context: RequestContext,
    ) -> None:
        self._authorization = authorization
        self._handler = handler
        self.topics = topics
        self.creates_topics = creates_topics
        self.message = message
        self.context = context
        self.key = ApiKey(context.key)
        self.needs = [need for need in NEEDS[self.key] if need.first <= context.version <= need.last]

    def may(self, need: Need, name: str | None = None, *, logs: bool = True) -> bool:
        if name is None:
            return self._authorization.permits(self.context, need, logs=logs)
        return self._authorization.permits(self.context, need, name, logs=logs)

    def operations(self, resource: ResourceType, name: str | None = None) -> int:
        if name is None:
            return self._authorization.operations(self.context, resource)
        return self._authorization.operations(self.context, resource, name)

    async def answer(self, message: Message | None = None) -> Answer:
        """The handler's."""
        found = self._handler(self.message if message is None else message, self.context)
        return await found if isinstance(found, Awaitable) else found

    def name_of(self, element: Any, attribute: str) -> str | None:
        """The name of a resource; None for a topic whose id is not known, and for one without name and id."""
        if not attribute:
            return str(element)
        topic_id = getattr(element, "topic_id", None)
        if topic_id:
            found = self.topics.by_id.get(topic_id)
            return None if found is None else found.name
        name: str | None = getattr(element, attribute, None)
        return name or (None if hasattr(element, "topic_id") else name)

    async def split(self, elements: Sequence[Any], attribute: str, need: Need) -> tuple[list[Any], list[Any]]:
        """The elements that may pass, and the others."""
        passing: list[Any] = []
        refused: list[Any] = []
        repeated = self._repeated(elements, attribute)
        async for element in in_turns(elements):
            name = self.name_of(element, attribute)
            if name is None or name in repeated or self.may(need, name):
                passing.append(element)
            else:
                refused.append(element)
        return passing, refused

    def _repeated(self, elements: Sequence[Any], attribute: str) -> frozenset[Any]:
        if self.key not in _FIRST_TELL_OF_REPEATS:
            return frozenset()
        times = Counter([getattr(element, attribute) for element in elements])
        return frozenset(name for name, count in times.items() if count > 1)


def _with(message: Message, name: str, value: Any) -> Message:
    changed = copy(message)
    setattr(changed, name, value)
    return changed


def _refusal(code: ErrorCode) -> dict[str, Any]:
    return {"error_code": int(code), "error_message": MESSAGES[code]}


def _refused_element(spec: _Elements, element: Any, code: ErrorCode) -> dict[str, Any]:
    found: dict[str, Any] = {spec.named: getattr(element, spec.name, None) if spec.name else element}
    for more in ("topic_id", "resource_type"):
        if hasattr(element, more):
            found[more] = getattr(element, more)
    if found[spec.named] is None:
        del found[spec.named]
    if spec.partitions is None:
        return {**found, **_refusal(code)}
    numbers, number, answered, named = spec.partitions
    partitions = [getattr(one, number) if number else one for one in getattr(element, numbers)]
    return {**found, answered: [{named: one, **_refusal(code)} for one in partitions]}


def _joined(answer: Answer, name: str, refused: Sequence[Mapping[str, Any]]) -> Answer:
    """The answer with refusals at the end of a list, unless it refuses the whole request."""
    if not refused or answer.get("error_code"):
        return answer
    return {**answer, name: [*(answer.get(name) or ()), *refused]}


# By need


async def _usual(request: _Request) -> Answer:
    """What holds for most APIs: permissions that the whole request needs, and then those of the elements of a list."""
    message, refused = request.message, list[dict[str, Any]]()
    for need in request.needs:
        if need.denied is Denied.REQUEST:
            if not await _may_all(request, need):
                return _refused_request(request, need.code)
        elif need.denied is Denied.ELEMENT:
            spec = _ELEMENTS[request.key]
            passing, others = await request.split(getattr(message, spec.asked), spec.name, need)
            if others:
                message = _with(message, spec.asked, passing)
                refused += [_refused_element(spec, one, need.code) for one in others]
    answer = await request.answer(message)
    return _joined(answer, _ELEMENTS[request.key].answered, refused) if refused else answer


async def _may_all(request: _Request, need: Need) -> bool:
    if not need.of:
        return request.may(need)
    named = getattr(request.message, need.of)
    if named is None:
        return True
    if isinstance(named, str):
        return request.may(need, named)
    return all([request.may(need, name) async for name in in_turns(named)])


def _refused_request(request: _Request, code: ErrorCode) -> Answer:
    """Every API has its own place for the error."""
    made = _REFUSED_REQUESTS.get(request.key)
    if made is not None:
        return made(request.message, _refusal(code))
    spec = _ELEMENTS.get(request.key)
    if spec is not None and spec.partitions is not None and request.key is not ApiKey.OFFSET_DELETE:
        return {
            spec.answered: [_refused_element(spec, one, code) for one in getattr(request.message, spec.asked)],
        }
    return _refusal(code)


def _partitions(topics: Sequence[Any], lists: Sequence[str], refusal: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Topics with a refusal for each partition. ``lists``: the attributes of the name and of the partitions, in the
    request and then in the answer."""
    name, numbers, named, answered, number = lists
    return [
        {
            named: getattr(topic, name),
            answered: [{number: one, **refusal} for one in getattr(topic, numbers)],
        }
        for topic in topics
    ]


_REFUSED_REQUESTS: Final[Mapping[ApiKey, Callable[[Message, dict[str, Any]], Answer]]] = {
    ApiKey.CREATE_ACLS: lambda request, refusal: {"results": [refusal for _ in request.creations]},
    ApiKey.DELETE_ACLS: lambda request, refusal: {"filter_results": [refusal for _ in request.filters]},
    ApiKey.WRITE_TXN_MARKERS: lambda request, refusal: {
        "markers": [
            {
                "producer_id": one.producer_id,
                "topics": _partitions(
                    one.topics, ("name", "partition_indexes", "name", "partitions", "partition_index"), refusal
                ),
            }
            for one in request.markers
        ]
    },
    ApiKey.ALTER_REPLICA_LOG_DIRS: lambda request, refusal: {
        "results": [
            result
            for one in request.dirs
            for result in _partitions(
                one.topics, ("name", "partitions", "topic_name", "partitions", "partition_index"), refusal
            )
        ]
    },
    ApiKey.ELECT_LEADERS: lambda request, refusal: {
        **refusal,
        "replica_election_results": _partitions(
            request.topic_partitions or (),
            ("topic", "partitions", "topic", "partition_result", "partition_id"),
            refusal,
        ),
    },
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: lambda request, refusal: {
        **refusal,
        "responses": [
            {
                "name": topic.name,
                "partitions": [{"partition_index": one.partition_index, **refusal} for one in topic.partitions],
            }
            for topic in request.topics
        ],
    },
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda request, refusal: {
        **refusal,
        "topics": _partitions(
            request.topics or (), ("name", "partition_indexes", "name", "partitions", "partition_index"), {}
        ),
    },
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: lambda request, refusal: {
        **refusal,
        "results": [{"user": "", **refusal} for _ in request.users or ()],
    },
    ApiKey.ALTER_CLIENT_QUOTAS: lambda request, refusal: {
        "entries": [
            {
                "entity": [{"entity_type": part.entity_type, "entity_name": part.entity_name} for part in entry.entity],
                **refusal,
            }
            for entry in request.entries
        ]
    },
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda _, refusal: {**refusal, "entries": None},
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: lambda request, refusal: {
        "results": [
            {"user": user, **refusal}
            for user in dict.fromkeys([one.name for one in (*request.deletions, *request.upsertions)])
        ]
    },
    ApiKey.INIT_PRODUCER_ID: lambda _, refusal: {**refusal, "producer_id": -1, "producer_epoch": -1},
}


# By API


async def _metadata(request: _Request) -> Answer:
    describe, create, cluster = request.needs
    message, context = request.message, request.context
    named = message.topics
    has_ids = any(topic.name is None or getattr(topic, "topic_id", None) for topic in named or ())
    if has_ids and context.version < _TOPIC_IDS_OF_METADATA:
        return await request.answer()
    refused: list[dict[str, Any]] = []
    if named is not None:
        passing, others = await request.split(named, "name", describe)
        refused = [
            {"error_code": int(describe.code), "name": one.name, "topic_id": getattr(one, "topic_id", None)}
            for one in others
        ]
        if request.creates_topics() and (context.version < 4 or message.allow_auto_topic_creation):
            missing = [one for one in passing if one.name and one.name not in request.topics.by_name]
            _, others = await request.split(missing, "name", create)
            if others:
                names = {one.name for one in others}
                passing = [one for one in passing if one.name not in names]
                refused += [
                    {"error_code": int(create.code), "name": name, "is_internal": name in INTERNAL_TOPICS}
                    for name in names
                ]
        if refused:
            message = _with(message, "topics", passing)
    answer = dict(await request.answer(message))
    topics = [
        _reported(request, topic, ResourceType.TOPIC, "topic_authorized_operations", topic.get("name"))
        async for topic in in_turns(answer.get("topics", ()))
        if named is not None or request.may(describe, topic["name"], logs=False)
    ]
    return {**_reported_cluster(request, answer, cluster), "topics": topics + refused}


def _reported(
    request: _Request, answer: Mapping[str, Any], resource: ResourceType, field: str, name: str | None
) -> Mapping[str, Any]:
    """An answer with the operations that the client may do, if it asked for them."""
    if answer.get(field, NOT_ASKED) == NOT_ASKED or name is None:
        return answer
    return {**answer, field: request.operations(resource, name)}


def _reported_cluster(request: _Request, answer: Answer, need: Need) -> Answer:
    if answer.get(need.of, NOT_ASKED) == NOT_ASKED:
        return answer
    return {**answer, need.of: request.operations(ResourceType.CLUSTER) if request.may(need) else 0}


async def _describe_cluster(request: _Request) -> Answer:
    (need,) = request.needs
    return _reported_cluster(request, await request.answer(), need)


async def _describe_topic_partitions(request: _Request) -> Answer:
    (describe,) = request.needs
    message, cursor = request.message, request.message.cursor
    if cursor is not None and cursor.partition_index < 0:
        return await request.answer()
    first = "" if cursor is None else cursor.topic_name
    asked = [topic for topic in message.topics if topic.name >= first]
    if message.topics:
        passing, others = await request.split(asked, "name", describe)
        refused = [{"error_code": int(describe.code), "name": one.name} for one in others]
    else:
        names = [name for name in request.topics.by_name if name >= first]
        passing = [Message(name=name) async for name in in_turns(names) if request.may(describe, name, logs=False)]
        refused = []
    answer = await request.answer(_with(message, "topics", passing)) if passing else {"topics": []}
    topics = [
        _reported(request, topic, ResourceType.TOPIC, "topic_authorized_operations", topic["name"])
        async for topic in in_turns(answer["topics"])
    ]
    return {**answer, "topics": topics + refused}


async def _find_coordinator(request: _Request) -> Answer:
    message = request.message
    needs = dict(zip((_FIND_GROUP, _FIND_TRANSACTION), request.needs, strict=True))
    need = needs.get(message.key_type)
    if need is None:
        return await request.answer()
    passing, others = await request.split(message.coordinator_keys, "", need)
    refused = [
        {
            "key": key,
            "error_code": int(need.code),
            "error_message": MESSAGES[need.code] if request.context.version < 4 else "",
            "node_id": -1,
            "host": "",
            "port": -1,
        }
        for key in others
    ]
    answer = await request.answer(_with(message, "coordinator_keys", passing)) if passing else {}
    return _joined(answer, "coordinators", refused)


async def _listed(request: _Request) -> Answer:
    """Leave out of a list what the client must not know of."""
    (need,) = request.needs
    attribute = "group_id" if need.resource is ResourceType.GROUP else "transactional_id"
    answer = await request.answer()
    shown = [one async for one in in_turns(answer.get(need.of, ())) if request.may(need, one[attribute], logs=False)]
    return {**answer, need.of: shown}


async def _described_groups(request: _Request) -> Answer:
    """DescribeGroups and ConsumerGroupDescribe."""
    describe, *of_topics = request.needs
    spec = _ELEMENTS[request.key]
    passing, others = await request.split(getattr(request.message, spec.asked), "", describe)
    answer = await request.answer(_with(request.message, spec.asked, passing))
    groups: list[Mapping[str, Any]] = []
    async for group in in_turns(answer["groups"]):
        if of_topics and not all(request.may(of_topics[0], name) for name in _topics_of(group)):
            refusal = {"error_code": int(of_topics[0].code), "error_message": _HIDDEN_TOPICS}
            groups.append({"group_id": group["group_id"], **refusal})
        else:
            groups.append(_reported(request, group, ResourceType.GROUP, "authorized_operations", group["group_id"]))
    return {**answer, "groups": [*groups, *(_refused_element(spec, one, describe.code) for one in others)]}


def _topics_of(group: Mapping[str, Any]) -> set[str]:
    """The topics that are assigned to the members of a described group."""
    return {
        topic["topic_name"]
        for member in group.get("members", ())
        for field in ("assignment", "target_assignment")
        for topic in member[field]["topic_partitions"]
    }


async def _created_topics(request: _Request) -> Answer:
    create, describe_configs = request.needs
    spec = _ELEMENTS[request.key]
    passing, others = await request.split(request.message.topics, "name", create)
    answer = await request.answer(_with(request.message, "topics", passing))
    refused = [
        {**_refused_element(spec, one, create.code), "configs": (), "error_message": "Authorization failed."}
        for one in others
    ]
    hidden = {
        "topic_config_error_code": int(describe_configs.code),
        "num_partitions": -1,
        "replication_factor": -1,
        "configs": (),
    }
    topics = [
        topic if topic.get("error_code") or request.may(describe_configs, topic["name"], logs=False) else topic | hidden
        async for topic in in_turns(answer["topics"])
    ]
    return {**answer, "topics": topics + refused}


async def _deleted_topics(request: _Request) -> Answer:
    """A client that may not describe a topic learns neither whether its name exists nor the name of an id."""
    delete, describe = request.needs
    message = request.message
    describe = describe._replace(or_else=delete.or_else)
    passing, refused = [], []
    times = Counter([topic.name for topic in message.topics if topic.name is not None])
    async for topic in in_turns(message.topics):
        name = request.name_of(topic, "name")
        is_by_id = topic.name is None
        if name is None or times[name] > 1 or (topic.name is not None and topic.topic_id):
            passing.append(topic)
            continue
        is_seen = request.may(describe, name, logs=not is_by_id)
        exists = is_by_id or name in request.topics.by_name
        if (is_seen and not exists) or ((is_seen or is_by_id) and request.may(delete, name)):
            passing.append(topic)
        else:
            shown = name if is_seen or not is_by_id else None
            refused.append({"name": shown, "topic_id": topic.topic_id, **_refusal(delete.code)})
    return _joined(await request.answer(_with(message, "topics", passing)), "responses", refused)


async def _init_producer_id(request: _Request) -> Answer:
    of_transaction, idempotent = request.needs
    name = request.message.transactional_id
    need = idempotent if name is None else of_transaction
    return await request.answer() if request.may(need, name) else _refused_request(request, need.code)


async def _fetched_offsets(request: _Request) -> Answer:
    of_group, of_topic = request.needs
    spec = _ELEMENTS[request.key]
    passing: list[Message] = []
    hidden: dict[int, list[dict[str, Any]]] = {}
    """Refused topics, by the place of the group."""
    refused: list[dict[str, Any]] = []
    async for group in in_turns(request.message.groups):
        if not request.may(of_group, group.group_id):
            has_no_code = request.context.version < 2 and group.topics is not None
            topics = [_no_offsets(spec, one, of_group.code) for one in group.topics] if has_no_code else []
            refused.append({"group_id": group.group_id, "error_code": int(of_group.code), "topics": topics})
            continue
        if group.topics is not None:
            kept, others = await request.split(group.topics, "name", of_topic)
            if others:
                hidden[len(passing)] = [_no_offsets(spec, one, of_topic.code) for one in others]
                group = _with(group, "topics", kept)
        passing.append(group)
    answer = await request.answer(_with(request.message, "groups", passing)) if passing else {"groups": []}
    groups = []
    for place, (group, found) in enumerate(zip(passing, answer["groups"], strict=True)):
        if group.topics is None and not found.get("error_code"):
            found = {
                **found,
                "topics": [
                    one async for one in in_turns(found["topics"]) if request.may(of_topic, one["name"], logs=False)
                ],
            }
        groups.append(_joined(found, "topics", hidden.get(place, ())))
    return {**answer, "groups": groups + refused}


def _no_offsets(spec: _Elements, element: Message, code: ErrorCode) -> dict[str, Any]:
    topic = _refused_element(spec, element, code)
    nothing = {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""}
    return {**topic, "partitions": [{**one, **nothing} for one in topic["partitions"]]}


async def _added_partitions(request: _Request) -> Answer:
    """From version 4 on, brokers ask."""
    if len(request.needs) == 1:
        (need,) = request.needs
        return await request.answer() if request.may(need) else _refusal(need.code)
    of_transaction, of_topic = request.needs
    (transaction,) = request.message.transactions
    name = transaction.transactional_id
    if not request.may(of_transaction, name):
        return _added(transaction, lambda _, __: of_transaction.code)
    denied = {
        topic.name
        async for topic in in_turns(transaction.topics)
        if topic.name not in INTERNAL_TOPICS and not request.may(of_topic, topic.name)
    }
    if not denied:
        return await request.answer()

    def code(topic: str, number: int) -> ErrorCode:
        if topic in denied or topic in INTERNAL_TOPICS:
            return of_topic.code
        has = request.topics.has(topic, number)
        return ErrorCode.OPERATION_NOT_ATTEMPTED if has else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    return _added(transaction, code)


def _added(transaction: Message, code: Callable[[str, int], ErrorCode]) -> Answer:
    topics = [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": number, "partition_error_code": int(code(topic.name, number))}
                for number in topic.partitions
            ],
        }
        for topic in transaction.topics
    ]
    return {"results_by_transaction": [{"transactional_id": transaction.transactional_id, "topic_results": topics}]}


async def _configs(request: _Request) -> Answer:
    of_topic, of_group, of_cluster = request.needs
    spec = _ELEMENTS[request.key]
    resources = request.message.resources
    times = Counter([(one.resource_type, one.resource_name) for one in resources])
    passing, refused = [], []
    async for one in in_turns(resources):
        named = {_TOPIC_CONFIGS: of_topic, _GROUP_CONFIGS: of_group}.get(one.resource_type)
        need = named or of_cluster
        is_repeated = request.key in _FIRST_TELL_OF_REPEATS and times[one.resource_type, one.resource_name] > 1
        if is_repeated or request.may(need, None if named is None else one.resource_name):
            passing.append(one)
        else:
            refused.append(_refused_element(spec, one, need.code))
    return _joined(await request.answer(_with(request.message, "resources", passing)), spec.answered, refused)


async def _described_transactions(request: _Request) -> Answer:
    describe, of_topic = request.needs
    spec = _ELEMENTS[request.key]
    passing, others = await request.split(request.message.transactional_ids, "", describe)
    answer = await request.answer(_with(request.message, "transactional_ids", passing))
    shown = [
        {
            **one,
            "topics": [topic for topic in one.get("topics", ()) if request.may(of_topic, topic["topic"], logs=False)],
        }
        async for one in in_turns(answer["transaction_states"])
    ]
    refused = [_refused_element(spec, one, describe.code) for one in others]
    return {**answer, "transaction_states": shown + refused}


async def _created_token(request: _Request) -> Answer:
    """A client may create tokens of its own."""
    (need,) = request.needs
    message, requester = request.message, str(request.context.principal)
    name = getattr(message, "owner_principal_name", None)
    owner = f"{message.owner_principal_type}:{name}" if name else requester
    if owner == requester or request.may(need, owner):
        return await request.answer()
    parties = {
        f"{prefix}principal_{part}": text
        for prefix, principal in (("", owner), ("token_requester_", requester))
        for part, text in zip(("type", "name"), principal.split(":", 1), strict=True)
    }
    times = dict.fromkeys(("issue_timestamp", "expiry_timestamp", "max_timestamp"), -1)
    return {"error_code": int(need.code), **parties, **times, "token_id": "", "hmac": b""}


async def _described_tokens(request: _Request) -> Answer:
    """A client sees the tokens that it owns, asked for or may renew."""
    of_token, of_owner = request.needs
    answer, me = await request.answer(), str(request.context.principal)
    shown = []
    async for token in in_turns(answer.get("tokens", ())):
        owner, *renewers = (
            f"{one['principal_type']}:{one['principal_name']}" for one in (token, *token.get("renewers", ()))
        )
        requester = f"{token['token_requester_principal_type']}:{token['token_requester_principal_name']}"
        if (
            me in (owner, requester, *renewers)
            or request.may(of_token, token["token_id"], logs=False)
            or request.may(of_owner, owner, logs=False)
        ):
            shown.append(token)
    return {**answer, "tokens": shown}


_CHECKS: Final[Mapping[ApiKey, _Check]] = {
    ApiKey.METADATA: _metadata,
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _describe_topic_partitions,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.LIST_GROUPS: _listed,
    ApiKey.LIST_TRANSACTIONS: _listed,
    ApiKey.DESCRIBE_GROUPS: _described_groups,
    ApiKey.CONSUMER_GROUP_DESCRIBE: _described_groups,
    ApiKey.CREATE_TOPICS: _created_topics,
    ApiKey.DELETE_TOPICS: _deleted_topics,
    ApiKey.INIT_PRODUCER_ID: _init_producer_id,
    ApiKey.OFFSET_FETCH: _fetched_offsets,
    ApiKey.ADD_PARTITIONS_TO_TXN: _added_partitions,
    ApiKey.DESCRIBE_CONFIGS: _configs,
    ApiKey.ALTER_CONFIGS: _configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs,
    ApiKey.DESCRIBE_TRANSACTIONS: _described_transactions,
    ApiKey.CREATE_DELEGATION_TOKEN: _created_token,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _described_tokens,
}

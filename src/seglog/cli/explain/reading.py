"""What readers of a partition see, in sentences: why a lag stays, and why a look-up found what it found. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from seglog.cli.explain.words import Fact, Statement, moment, say
from seglog.cli.offline.coordinator_state import GroupPosition
from seglog.cli.output import count, format_time
from seglog.storage.offline.log_state import LogState
from seglog.storage.offline.lookup import Lookup
from seglog.storage.offline.unread_tail import Content, TailBatch, UnreadTail


def tail_statements(state: LogState, uncommitted: UnreadTail, committed: UnreadTail) -> list[Statement]:
    """Whether the last offsets have records for a consumer, whatever its group."""
    found = []
    for isolation, tail in (("read_uncommitted", uncommitted), ("read_committed", committed)):
        lag = state.high_watermark - tail.unread_from
        if lag <= 0 or (isolation == "read_committed" and lag == state.high_watermark - uncommitted.unread_from):
            continue
        text = (
            f"a {isolation} consumer that has read everything and commits its last record + 1, "
            f"{tail.unread_from}, has a lag of {lag}: {_rest_text(tail, state)}"
        )
        if tail.end < state.high_watermark:
            text += (
                f". It cannot read offsets {tail.end} to {state.high_watermark} until the transaction that is open "
                f"since offset {tail.end} ends"
            )
        else:
            text += ". This is not a backlog; the next record ends it"
        found.append(say("lag", isolation, text, lag=lag, readUpTo=tail.unread_from))
    return found


def group_statement(
    position: GroupPosition, state: LogState, uncommitted: UnreadTail, committed: UnreadTail, now_ms: int
) -> Statement:
    """Why the lag of a group is what it is."""
    lag = state.high_watermark - position.offset
    when = f" at {moment(position.committed_ms, now_ms)}" if position.committed_ms is not None else ""
    text = (
        f"group {position.group} has committed offset {position.offset}{when} ({position.source}); the high watermark "
        f"is {state.high_watermark}, a lag of {lag}"
    )
    facts: dict[str, Fact] = {
        "group": position.group,
        "committed": position.offset,
        "lag": lag,
        "readable": uncommitted.readable,
        "readableCommitted": committed.readable,
    }
    if position.offset < state.log_start_offset:
        text += (
            f". Offsets below {state.log_start_offset} are gone: the consumer continues where auto.offset.reset says"
        )
        return Statement("lag", "log start offset", text, facts)
    if lag < 0:
        text += (
            ". The commit is above the log's end: the log was truncated or the topic created again; the consumer "
            "continues where auto.offset.reset says"
        )
        return Statement("lag", "log end offset", text, facts)
    if lag == 0:
        return Statement("lag", "high watermark", f"{text}: it has read everything", facts)
    if uncommitted.readable == 0:
        text += f". No consumer gets a record from it: {_rest_text(uncommitted, state)}. This is not a backlog"
        return Statement("lag", "control records", text, facts)
    if committed.readable == 0:
        text += f". A read_committed consumer gets none of it now: {_rest_text(committed, state)}"
        if committed.end < state.high_watermark:
            text += (
                f"; offsets {committed.end} to {state.high_watermark} wait for the transaction that is open since "
                f"offset {committed.end}"
            )
            return Statement("lag", "last stable offset", text, facts)
        return Statement("lag", "aborted records", f"{text}. This is not a backlog", facts)
    if uncommitted.readable is not None:
        text += f". Of it, {count(uncommitted.readable, 'record')} can be read"
        if committed.readable is not None and committed.readable != uncommitted.readable:
            text += f", {committed.readable} with read_committed"
    return Statement("lag", "backlog", text, facts)


def _rest_text(tail: UnreadTail, state: LogState) -> str:
    """The batches after the last record, in words."""
    parts = [f"{count(tail.gap, 'offset')} that compaction has emptied"] if tail.gap > 0 else []
    for content, batches in _runs(tail.rest):
        first, last = batches[0].first_offset, batches[-1].last_offset
        where = f"offset {first}" if first == last else f"offsets {first} to {last}"
        producers = sorted({one.producer_id for one in batches if one.producer_id >= 0})
        of = f" of producer {producers[0]}" if len(producers) == 1 else ""
        noun = content.value if len(batches) == 1 or content in _PLURAL else f"{content.value}s"
        parts.append(f"{where}: {noun}{of}")
    if not parts and tail.end < state.high_watermark:
        parts.append("nothing is readable before the open transaction")
    return "; ".join(parts) or "the offsets there have no records: compaction has removed them"


_PLURAL = frozenset({Content.ABORTED, Content.EMPTY, Content.RECORDS})


def _runs(batches: Sequence[TailBatch]) -> list[tuple[Content, list[TailBatch]]]:
    runs: list[tuple[Content, list[TailBatch]]] = []
    for one in batches:
        if runs and runs[-1][0] is one.content:
            runs[-1][1].append(one)
        else:
            runs.append((one.content, [one]))
    return runs


# Look-ups


def lookup_statements(
    asked: str, lookup: Lookup, state: LogState, *, offset: int | None, timestamp: int | None
) -> list[Statement]:
    """Each step of a look-up, and what a consumer makes of the result."""
    found = [
        say("look-up", step.what, f"{step.what}: {step.why}{_facts_text(step.facts)}", **dict(step.facts))
        for step in lookup.steps
    ]
    location = lookup.found
    if location is None:
        text = (
            f"no record is at or after {asked}: ListOffsets answers with -1, and clients then go to the log's end, "
            f"{state.high_watermark}"
        )
        return [*found, say("look-up", "not found", text, foundOffset=None)]
    record = location.record
    text = f"{asked} leads to offset {record.offset} of {format_time(record.timestamp)}"
    rule = "found"
    if offset is not None and record.offset != offset:
        rule = "gap"
        text += (
            f": offset {offset} itself has no record, since compaction or an emptied batch left a gap; a consumer that "
            f"asks for {offset} gets {record.offset} next"
        )
    elif timestamp is not None and record.timestamp > timestamp:
        text += (
            ": it is the first record in the order of offsets that is not earlier, and not the one nearest in time; "
            "earlier offsets are older, later ones may be older again"
        )
    if location.batch.is_control:
        rule = "control record"
        text += ". It is a control record: consumers never get it, and go on with the next offset"
    if record.offset >= state.high_watermark:
        rule = "high watermark"
        text += f". Consumers cannot see it: the high watermark is {state.high_watermark}"
    elif record.offset >= state.last_stable_offset:
        rule = "last stable offset"
        text += (
            f". A read_committed consumer cannot see it: the last stable offset is {state.last_stable_offset}, since a "
            "transaction is open"
        )
    return [*found, say("look-up", rule, text, foundOffset=record.offset, foundTimestamp=record.timestamp)]


def out_of_range_statement(offset: int, state: LogState) -> Statement:
    """Why an offset is not in the log at all."""
    first = state.segments[0].base_offset if state.segments else 0
    if offset >= state.log_end_offset:
        text = (
            f"offset {offset} is not in the log yet: its end is {state.log_end_offset}. A consumer there waits, or if "
            f"it is above {state.log_end_offset}, continues where auto.offset.reset says"
        )
        return say("look-up", "log end offset", text, foundOffset=None)
    if offset >= first:
        text = (
            f"offset {offset} is below the log start offset {state.log_start_offset}: DeleteRecords has removed it, "
            f"although the file of segment {_holding(state, offset)} still has it"
        )
    else:
        text = (
            f"offset {offset} is below the log start offset {state.log_start_offset}: retention, DeleteRecords or "
            "compaction has removed its segment"
        )
    text += "; a consumer that asks for it gets OFFSET_OUT_OF_RANGE and continues where auto.offset.reset says"
    return say("look-up", "log start offset", text, foundOffset=None)


def _holding(state: LogState, offset: int) -> int:
    return max(one.base_offset for one in state.segments if one.base_offset <= offset)


def _facts_text(facts: Mapping[str, Fact]) -> str:
    shown = ", ".join(f"{name} {'-' if value is None else value}" for name, value in facts.items())
    return f" ({shown})" if shown else ""

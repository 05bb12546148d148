"""What retention and the cleaner will do to a partition, in sentences. Pure.

The decisions are those of `seglog.storage.log.retention` and `seglog.storage.compaction.cleanable`, which the engine
itself asks; here they are only put into words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar

from seglog.cli.explain.words import Fact, Statement, duration, moment, say
from seglog.cli.offline.coordinator_state import Holder
from seglog.cli.output import count, format_size, format_time
from seglog.core.config import LogConfig
from seglog.storage.compaction.cleanable import Bound, CleanablePart, cleanable_part, due_ms
from seglog.storage.log.retention import Hold, Reason, SegmentFate, fates
from seglog.storage.offline.log_state import LogState, SegmentState
from seglog.storage.offline.topic_configs import TopicConfig

Decided = TypeVar("Decided")
_SECONDS_BELOW: Final = 100_000_000_000
"""A timestamp in ms below this is before March 1973: it is one in seconds."""
_FAR: Final = 10 * 365 * 86_400_000
_SHOWN: Final = ("cleanup.policy", "retention.ms", "retention.bytes", "segment.ms", "segment.bytes")
_SHOWN_COMPACT: Final = (
    "min.cleanable.dirty.ratio",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "delete.retention.ms",
)
_RULES: Final = {
    Reason.START_OFFSET: "log start offset",
    Reason.SIZE: "retention.bytes",
    Reason.TIME: "retention.ms",
}
_HOLDS: Final = {
    Hold.HIGH_WATERMARK: "high watermark",
    Hold.EMPTY: "active segment",
    Hold.NO_RULE: "cleanup.policy",
    Hold.OLDER: "order",
}


class SegmentVerdict(NamedTuple):
    """A segment's fate in words. ``goes_ms`` is when it goes, ``now_ms`` if at the next check; None: it stays."""

    segment: SegmentState
    fate: SegmentFate
    rule: str
    goes_ms: int | None
    text: str


class Forecast(NamedTuple):
    """The time from which explanations count, and the time up to which the future is asked about, if it is."""

    now_ms: int
    at_ms: int | None

    @property
    def until_ms(self) -> int:
        return self.now_ms if self.at_ms is None else self.at_ms


def shown_config(config: TopicConfig) -> dict[str, tuple[str, str]]:
    """The keys that decide: their values and origins."""
    values = {key: _value(config.log, key) for key in (*_SHOWN, *(_SHOWN_COMPACT if config.log.compact else ()))}
    return {key: (value, config.origin(_stored_as(config, key))) for key, value in values.items()}


def _stored_as(config: TopicConfig, key: str) -> str:
    small = "internal.segment.bytes"
    return small if key == "segment.bytes" and small in config.origins else key


def _value(config: LogConfig, key: str) -> str:
    value = getattr(config, key.replace(".", "_"))
    return ",".join(sorted(value)) if isinstance(value, frozenset) else str(value)


def config_statement(config: TopicConfig) -> Statement:
    shown = shown_config(config)
    by_origin: dict[str, list[str]] = {}
    for key, (value, origin) in shown.items():
        unit = f" ({duration(int(value))})" if key.endswith(".ms") and int(value) >= 0 else ""
        by_origin.setdefault(origin, []).append(f"{key}={value}{unit}")
    text = "; ".join(f"{', '.join(values)} from {origin}" for origin, values in by_origin.items())
    if not config.is_known:
        text += (
            ". The topic's own configuration is not in this directory: give it with --config or --config-file, or ask "
            "a broker with -b"
        )
    return say("config", "configuration", text, isKnown=config.is_known)


def ignored_statements(config: TopicConfig) -> list[Statement]:
    return [
        say("config", key, f"{key} is left out of this forecast: {reason}") for key, reason in config.ignored.items()
    ]


# Retention


def segment_verdicts(state: LogState, config: LogConfig, forecast: Forecast) -> list[SegmentVerdict]:
    """Each segment's fate, as `Log.delete_old_segments` decides it."""
    found = fates(
        state.for_retention(),
        config=config,
        log_start_offset=state.log_start_offset,
        high_watermark=state.high_watermark,
    )
    by_base = {one.base_offset: one for one in state.segments}
    verdicts = []
    for fate in found:
        segment = by_base[fate.base_offset]
        rule, text = _fate_text(fate, segment, by_base, state, config, forecast.now_ms)
        goes = None if fate.reason is None else max(fate.due_ms or forecast.now_ms, forecast.now_ms)
        verdicts.append(SegmentVerdict(segment, fate, rule, goes, text))
    return verdicts


def _fate_text(
    fate: SegmentFate,
    segment: SegmentState,
    by_base: dict[int, SegmentState],
    state: LogState,
    config: LogConfig,
    now_ms: int,
) -> tuple[str, str]:
    """The rule's name and the sentence."""
    if fate.reason is Reason.START_OFFSET:
        return _RULES[fate.reason], (
            f"goes at the next check: it ends at offset {segment.next_base_offset}, and the log start offset is "
            f"{state.log_start_offset}"
        )
    if fate.reason is Reason.SIZE:
        return _RULES[fate.reason], (
            f"goes at the next check: the partition has {format_size(state.size)}, and retention.bytes allows "
            f"{format_size(config.retention_bytes)}"
        )
    if fate.reason is Reason.TIME and fate.due_ms is not None:
        return _RULES[fate.reason], _time_text(fate, segment, by_base, config, now_ms, fate.due_ms)
    if fate.hold is Hold.HIGH_WATERMARK:
        return _HOLDS[fate.hold], (
            f"stays: it ends at offset {segment.next_base_offset}, above the high watermark {state.high_watermark}"
            f"{_watermark_source(state)}; retention deletes only what all in-sync replicas have"
        )
    if fate.hold is Hold.EMPTY:
        return _HOLDS[fate.hold], "stays: it is the active segment, and empty"
    if fate.hold is Hold.OLDER:
        return _HOLDS[fate.hold], f"stays as long as segment {fate.waits_for}: deletion begins at the oldest segment"
    if not config.delete:
        policy = ",".join(sorted(config.cleanup_policy)) or "empty"
        return "cleanup.policy", f"stays: cleanup.policy is {policy}, so no retention.ms or retention.bytes counts"
    return "retention.ms", f"stays: retention.ms is -1{_size_margin(state, config)}"


def _time_text(
    fate: SegmentFate,
    segment: SegmentState,
    by_base: dict[int, SegmentState],
    config: LogConfig,
    now_ms: int,
    due: int,
) -> str:
    holder = segment if fate.waits_for is None else by_base[fate.waits_for]
    if segment.max_timestamp >= 0:
        newest = f"its newest record is of {moment(segment.max_timestamp, now_ms)}"
    else:
        newest = f"no record has a timestamp, and its file was changed at {moment(segment.mtime_ms, now_ms)}"
    allowed = f"retention.ms is {duration(config.retention_ms)}"
    if now_ms >= due:
        text = f"goes at the next check: {newest}, and {allowed}"
        if 0 <= segment.max_timestamp < _SECONDS_BELOW:
            return f"{text}. Such a timestamp is probably in seconds: Kafka's are in milliseconds"
        if segment.max_timestamp >= 0 and segment.mtime_ms - segment.max_timestamp > config.retention_ms:
            return (
                f"{text}. It was written until {format_time(segment.mtime_ms)} with event times that were too old "
                "already: retention.ms counts from a record's own timestamp unless message.timestamp.type is "
                "LogAppendTime"
            )
        return text
    if holder is not segment:
        return (
            f"stays until {moment(due, now_ms)}, as segment {holder.base_offset} does: deletion begins at the oldest "
            f"segment. Alone it would go at {format_time(segment.largest_timestamp + config.retention_ms + 1)}"
        )
    text = f"stays until {moment(due, now_ms)}: {newest}, and {allowed}"
    if segment.max_timestamp > now_ms:
        text += f". That is {duration(segment.max_timestamp - now_ms)} in the future"
        if segment.max_timestamp - now_ms > _FAR:
            text += ", and probably in micro- or nanoseconds"
        later = "" if segment.is_active else " It keeps every later segment, too."
        text += f".{later} retention.bytes or DeleteRecords removes it earlier"
    return text


def _watermark_source(state: LogState) -> str:
    return f" ({state.high_watermark_from})" if state.high_watermark_from else ""


def _size_margin(state: LogState, config: LogConfig) -> str:
    if config.retention_bytes < 0:
        return ", and retention.bytes is -1: nothing is deleted"
    return (
        f", and the partition's {format_size(state.size)} are within retention.bytes, "
        f"{format_size(config.retention_bytes)}, or would be without this segment"
    )


def retention_statements(
    state: LogState, config: LogConfig, verdicts: list[SegmentVerdict], forecast: Forecast
) -> list[Statement]:
    """The partition as a whole: what goes by the time that is asked about, and the usual surprises."""
    found = []
    gone = [one for one in verdicts if one.fate.is_due(forecast.until_ms)]
    when = "at the next check" if forecast.at_ms is None else f"by {moment(forecast.at_ms, forecast.now_ms)}"
    if gone:
        size = sum(one.segment.size for one in gone)
        start = max(state.log_start_offset, gone[-1].segment.next_base_offset)
        found.append(
            say(
                "retention",
                ", ".join(dict.fromkeys(one.rule for one in gone)),
                f"{when}, {count(len(gone), 'segment')} with {format_size(size)} will be gone; the log will start at "
                f"offset {start}. Checks run every log.retention.check.interval.ms (5 min by default), and files are "
                f"unlinked {duration(config.file_delete_delay_ms)} later (file.delete.delay.ms)",
                segments=len(gone),
                bytes=size,
                logStartOffset=start,
            )
        )
    elif state.segments:
        found.append(
            say("retention", "retention", f"{when}, nothing will be gone", segments=0, bytes=0,
                logStartOffset=state.log_start_offset)
        )  # fmt: skip
    active = state.segments[-1] if state.segments else None
    if active is not None and active.size and len(state.segments) == 1 and config.delete and not gone:
        found.append(
            say(
                "retention",
                "segment.ms",
                f"all of the data is in the active segment. Retention deletes whole segments, and each append makes "
                f"this one younger: it is closed after segment.ms ({duration(config.segment_ms)}) or at segment.bytes "
                f"({format_size(config.segment_bytes)}), whichever comes first, at the next append",
            )
        )
    if state.deleted_bytes:
        found.append(
            say(
                "retention",
                "file.delete.delay.ms",
                f"{format_size(state.deleted_bytes)} are in files .deleted, which a running broker unlinks "
                f"{duration(config.file_delete_delay_ms)} after their deletion, and the next start at once",
                bytes=state.deleted_bytes,
            )
        )
    return found


# Compaction


def cleaning_part(state: LogState, config: LogConfig, now_ms: int) -> CleanablePart | None:
    """What a round of compaction would clean, as the cleaner decides it."""
    if not state.segments:
        return None
    return _by_cleaner(cleanable_part, state, config, now_ms)


def cleaning_due_ms(state: LogState, config: LogConfig, now_ms: int) -> int | None:
    """When a round is due if nothing more is appended."""
    return _by_cleaner(due_ms, state, config, now_ms)


def _by_cleaner(decide: Callable[..., Decided], state: LogState, config: LogConfig, now_ms: int) -> Decided:
    return decide(
        state.for_cleaning(),
        checkpoint=state.cleaned_to,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        last_stable_offset=state.last_stable_offset,
        config=config,
        now_ms=now_ms,
    )


def cleaning_statements(state: LogState, config: TopicConfig, forecast: Forecast) -> list[Statement]:
    log = config.log
    if not log.compact:
        policy = ",".join(sorted(log.cleanup_policy)) or "empty"
        return [say("cleaning", "cleanup.policy", f"it is not compacted: cleanup.policy is {policy}", isDue=False)]
    now_ms = forecast.now_ms
    part = cleaning_part(state, log, now_ms)
    if part is None:
        return []
    found = [_ratio_statement(state, part, config, forecast), *_bound_statements(state, part, log, now_ms)]
    if part.was_reset:
        found.append(
            say(
                "cleaning",
                "cleaner-offset-checkpoint",
                f"the checkpoint says that it is clean up to {state.cleaned_to}, which is outside of the log: the next "
                f"round begins at its start, {state.log_start_offset}",
            )
        )
    return found


def _ratio_statement(state: LogState, part: CleanablePart, config: TopicConfig, forecast: Forecast) -> Statement:
    log, now_ms = config.log, forecast.now_ms
    is_due = part.is_due(log.min_cleanable_dirty_ratio)
    since = "never cleaned" if state.cleaned_to is None else f"clean up to offset {part.first_dirty}"
    measured = (
        f"it is {since}; {format_size(part.cleanable_bytes)} of "
        f"{format_size(part.clean_bytes + part.cleanable_bytes)} are dirty and may be cleaned, a ratio of "
        f"{part.ratio:.3f}"
    )
    limit = f"min.cleanable.dirty.ratio is {log.min_cleanable_dirty_ratio:g}"
    facts: dict[str, Fact] = {
        "firstDirty": part.first_dirty,
        "firstUncleanable": part.first_uncleanable,
        "cleanBytes": part.clean_bytes,
        "cleanableBytes": part.cleanable_bytes,
        "ratio": part.ratio,
        "isDue": is_due,
    }
    if not config.cleaner_enabled:
        text = f"{measured}, but the cleaner is off: log.cleaner.enable is false or log.cleaner.threads is 0"
        return Statement("cleaning", "log.cleaner.enable", text, facts)
    if is_due and part.ratio > log.min_cleanable_dirty_ratio:
        text = f"{measured}, and {limit}: it is cleaned next, the log with the highest ratio first"
        return Statement("cleaning", "min.cleanable.dirty.ratio", text, facts)
    if is_due:
        text = (
            f"{measured}, and a record is {duration(part.delay_ms)} later than max.compaction.lag.ms "
            f"({duration(log.max_compaction_lag_ms)}) allows: it is cleaned next"
        )
        return Statement("cleaning", "max.compaction.lag.ms", text, facts)
    due = cleaning_due_ms(state, log, now_ms)
    facts["dueMs"] = due if due is not None else -1
    if due is not None:
        asked = "" if forecast.at_ms is None else (", which is by then" if due <= forecast.at_ms else ", not by then")
        text = f"{measured}, and {limit}: without another append it is cleaned from {moment(due, now_ms)} on{asked}"
    elif not part.cleanable_bytes:
        text = f"it is {since}, and nothing before offset {part.first_uncleanable} is dirty"
    else:
        needed = _bytes_needed(part, log.min_cleanable_dirty_ratio)
        missing = f": {format_size(needed)} more have to be closed first" if needed is not None else ""
        text = f"{measured}, and {limit}{missing}"
    return Statement("cleaning", "min.cleanable.dirty.ratio", text, facts)


def _bytes_needed(part: CleanablePart, ratio: float) -> int | None:
    """How many more dirty bytes raise the ratio over the limit; None: no number does."""
    if ratio >= 1:
        return None
    return max(int(ratio * part.clean_bytes / (1 - ratio)) + 1 - part.cleanable_bytes, 1)


def _bound_statements(state: LogState, part: CleanablePart, log: LogConfig, now_ms: int) -> list[Statement]:
    active = state.segments[-1]
    first = next((one for one in state.segments if one.base_offset >= part.first_uncleanable), active)
    found = []
    if part.bound is Bound.LAST_STABLE:
        found.append(
            say(
                "cleaning",
                "last stable offset",
                f"nothing from offset {part.first_uncleanable} on is cleaned: the last stable offset is "
                f"{state.last_stable_offset}, since a transaction is open or the high watermark is there",
                lastStableOffset=state.last_stable_offset,
            )
        )
    elif part.bound is Bound.YOUNG:
        found.append(
            say(
                "cleaning",
                "min.compaction.lag.ms",
                f"nothing from offset {part.first_uncleanable} on is cleaned before "
                f"{moment(first.largest_timestamp + log.min_compaction_lag_ms, now_ms)}: segment {first.base_offset} "
                f"has a record of {format_time(first.largest_timestamp)}, and min.compaction.lag.ms is "
                f"{duration(log.min_compaction_lag_ms)}",
            )
        )
    if active.size:
        found.append(
            say(
                "cleaning",
                "active segment",
                f"{format_size(active.size)} from offset {active.base_offset} on are in the active segment, which is "
                f"never cleaned; it is closed by the next append after {duration(log.max_segment_ms)} (segment.ms"
                f"{' or max.compaction.lag.ms' if log.max_segment_ms < log.segment_ms else ''}) or at "
                f"{format_size(log.segment_bytes)} (segment.bytes)",
                bytes=active.size,
            )
        )
    return found


# Transactions and offsets


def offsets_statement(state: LogState) -> Statement:
    source = f" by {state.high_watermark_from}" if state.high_watermark_from else ", as no file has another one"
    text = (
        f"the log has offsets {state.log_start_offset} to {state.log_end_offset} (exclusive); consumers read up to the "
        f"high watermark {state.high_watermark}{source}"
    )
    if state.last_stable_offset < state.high_watermark:
        text += f", with read_committed up to the last stable offset {state.last_stable_offset}"
    first = state.segments[0].base_offset if state.segments else 0
    if state.log_start_offset > first:
        text += (
            f". Offsets {first} to {state.log_start_offset} are still in files, but DeleteRecords has moved the start "
            "(log-start-offset-checkpoint)"
        )
    if state.damage is not None:
        text += f". The end cannot be read: {state.damage}"
    return say(
        "offsets",
        "high watermark",
        text,
        logStartOffset=state.log_start_offset,
        lastStableOffset=state.last_stable_offset,
        highWatermark=state.high_watermark,
        logEndOffset=state.log_end_offset,
    )


def transaction_statements(state: LogState, holders: dict[int, Holder], now_ms: int) -> list[Statement]:
    found = []
    for one in state.transactions:
        holder = holders.get(one.producer_id)
        age = f", last written at {moment(one.last_timestamp, now_ms)}" if one.last_timestamp >= 0 else ""
        text = (
            f"producer {one.producer_id} (epoch {one.producer_epoch}) has a transaction open since offset "
            f"{one.first_offset}{age}. It holds the last stable offset: read_committed consumers and the cleaner stop "
            "there. "
        )
        if holder is None:
            text += (
                "No transactional id of this directory has that producer id: ask a broker with -b, or see "
                "`seglog transactions find-hanging`"
            )
        else:
            text += f"It is transactional id {holder.transactional_id}, state {holder.state}"
            if holder.state == "Ongoing":
                end_ms = holder.start_ms + holder.timeout_ms
                text += (
                    f", begun at {moment(holder.start_ms, now_ms)} with a transaction.timeout.ms of "
                    f"{duration(holder.timeout_ms)}: its coordinator aborts it at {moment(end_ms, now_ms)}, if it runs"
                )
            elif holder.state.startswith("Prepare"):
                text += ", whose coordinator is about to write the marker"
            else:
                text += ", so no coordinator will end it: it hangs. `seglog transactions abort` writes the marker"
        found.append(
            say(
                "transactions",
                "last stable offset",
                text,
                producerId=one.producer_id,
                producerEpoch=one.producer_epoch,
                firstOffset=one.first_offset,
                transactionalId=holder.transactional_id if holder else None,
                state=holder.state if holder else None,
            )
        )
    return found

"""Whether a reader's Avro schema can read what a writer's wrote (Avro's ``SchemaCompatibility``)."""

from __future__ import annotations

from seglog.values.avro.program import best_branch, misfit
from seglog.values.avro.schema import NO_DEFAULT, Array, Enum, Map, Record, Schema, Union


def incompatibilities(reader: Schema, writer: Schema) -> list[str]:
    """Why some value of ``writer`` could not be read as ``reader``; empty if all can.

    >>> from seglog.values.avro.schema import parse_schema
    >>> incompatibilities(parse_schema('"long"'), parse_schema('"int"'))
    []
    >>> incompatibilities(parse_schema('"int"'), parse_schema('"long"'))
    ['the value: long cannot be read as int']
    """
    found: list[str] = []
    _compare(reader, writer, "", set(), found)
    return found


def _compare(reader: Schema, writer: Schema, where: str, seen: set[tuple[int, int]], found: list[str]) -> None:
    if (id(reader), id(writer)) in seen:  # a recursive type
        return
    place = where or "the value"
    if isinstance(writer, Union):
        for branch in writer.branches:
            _compare(reader, branch, where, seen, found)
        return
    if isinstance(reader, Union):
        best = best_branch(writer, reader)
        if best is None:
            found.append(f"{place}: {misfit(writer, reader.branches[0]) or 'no branch fits'}")
        else:
            _compare(best, writer, where, seen, found)
        return
    reason = misfit(writer, reader)
    if reason:
        found.append(f"{place}: {reason}")
        return
    seen.add((id(reader), id(writer)))
    if isinstance(reader, Array) and isinstance(writer, Array):
        _compare(reader.items, writer.items, f"{where}[]", seen, found)
    elif isinstance(reader, Map) and isinstance(writer, Map):
        _compare(reader.values, writer.values, f"{where}{{}}", seen, found)
    elif isinstance(reader, Enum) and isinstance(writer, Enum):
        missing = sorted(set(writer.symbols) - set(reader.symbols))
        if missing and reader.default is None:
            found.append(f"{place}: the reader's enum has no symbol {', '.join(missing)} and no default")
    elif isinstance(reader, Record) and isinstance(writer, Record):
        theirs = {one.name: one for one in writer.fields}
        for one in reader.fields:
            inner = f"{where}.{one.name}" if where else one.name
            name = next((name for name in (one.name, *one.aliases) if name in theirs), None)
            if name is not None:
                _compare(one.schema, theirs[name].schema, inner, seen, found)
            elif one.default is NO_DEFAULT:
                found.append(f"{inner}: the writer's record has no such field, and the reader's has no default")

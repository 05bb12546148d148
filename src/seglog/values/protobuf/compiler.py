"""Protobuf schemas are texts: protoc, which grpcio-tools brings along, compiles them when they are needed."""

from __future__ import annotations

import os.path
import subprocess
import sys
import tempfile
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from seglog.core.extras import require
from seglog.core.fs import OsFs
from seglog.values.protobuf.known_imports import missing_imports
from seglog.values.schemas import SchemaError, SchemaText

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

_MAIN: Final = "seglog_schema.proto"
_SECONDS: Final = 60


class CompiledSchema(NamedTuple):
    """The messages of a schema: by their full name, and those at the top, in order."""

    pool: Any
    top: list[Descriptor]

    def at(self, path: tuple[int, ...]) -> list[str]:
        """The full names of the messages that a path may lead to. `SchemaError` if there is none.

        A map is a hidden message beside those that a message contains. Confluent's library for Java leaves these out
        when it counts; the one for Python counts them.
        """
        found = {self._descend(path, with_maps=with_maps): None for with_maps in (False, True)}
        names = [name for name in found if name is not None]
        if not names:
            raise SchemaError(f"the Protobuf schema has no message at the path {list(path)}")
        return names

    def _descend(self, path: tuple[int, ...], *, with_maps: bool) -> str | None:
        level, name = self.top, None
        for number in path:
            if number >= len(level):
                return None
            name = level[number].full_name
            level = [one for one in level[number].nested_types if with_maps or not one.GetOptions().map_entry]
        return name

    def path_of(self, message: Descriptor) -> tuple[int, ...]:
        """The path to a message of the schema itself, as Java counts; ``SchemaError`` for one that it imports."""
        outer = message.containing_type
        level = self.top
        if outer is not None:
            level = [one for one in outer.nested_types if not one.GetOptions().map_entry]
        for number, one in enumerate(level):
            if one.full_name == message.full_name:
                return (*(() if outer is None else self.path_of(outer)), number)
        raise SchemaError(f"message {message.full_name} is not in the Protobuf schema itself, but is imported")

    def named(self, name: str | None) -> Descriptor:
        """A message by its full name, or the part after its package; without a name, the first."""
        if not self.top:
            raise SchemaError("the Protobuf schema has no message")
        if name is None:
            return self.top[0]
        package = self.top[0].file.package
        for full in (name, f"{package}.{name}" if package else name):
            try:
                found: Descriptor = self.pool.FindMessageTypeByName(full)
            except KeyError:
                continue
            return found
        there = ", ".join(one.full_name for one in self.top)
        raise SchemaError(f"the Protobuf schema has no message {name!r}; there are {there}")


@lru_cache(maxsize=256)
def compile_schema(schema: SchemaText) -> CompiledSchema:
    """Compile a schema with what it imports. `SchemaError` has the compiler's message."""
    require("grpc_tools", "formats", purpose="compiling Protobuf schemas")
    descriptor_pb2: Any = require("google.protobuf.descriptor_pb2", "formats", purpose="reading Protobuf")
    descriptor_pool: Any = require("google.protobuf.descriptor_pool", "formats", purpose="reading Protobuf")
    files = descriptor_pb2.FileDescriptorSet.FromString(_run_protoc(schema))
    pool = descriptor_pool.DescriptorPool()
    for one in files.file:
        pool.Add(one)
    by_name = pool.FindFileByName(_MAIN).message_types_by_name
    (main,) = (one for one in files.file if one.name == _MAIN)
    return CompiledSchema(pool, [by_name[one.name] for one in main.message_type])


def _run_protoc(schema: SchemaText) -> bytes:
    fs = OsFs()
    with tempfile.TemporaryDirectory(prefix="seglog-proto-") as directory:
        given = {**dict(schema.references), _MAIN: schema.text}
        for name, text in (given | missing_imports(given)).items():
            path = os.path.normpath(os.path.join(directory, name))
            if not path.startswith(directory + os.sep):
                raise SchemaError(f"the Protobuf schema imports {name!r}, which is not a relative path")
            _make(fs, os.path.dirname(path))
            fs.write(path, text.encode())
        out = os.path.join(directory, "descriptors")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{directory}", "--include_imports"]
        done = subprocess.run(
            [*command, f"--descriptor_set_out={out}", _MAIN],
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if ": warning: " not in line]
            text = "; ".join(errors).replace(f"{directory}{os.sep}", "").replace(_MAIN, "line")
            raise SchemaError(f"the Protobuf schema cannot be compiled: {text}")
        return fs.read(out)


def _make(fs: OsFs, directory: str) -> None:
    if not fs.exists(directory):
        _make(fs, os.path.dirname(directory))
        fs.mkdir(directory)

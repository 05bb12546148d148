"""Files that a Protobuf schema may import without a reference, because every registry has them.

Confluent's are in its ``ProtobufSchema.KNOWN_DEPENDENCIES``. Those of ``google/protobuf`` come with protoc.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import Any, Final

from seglog.core.extras import require
from seglog.core.fs import OsFs

_IMPORT: Final = re.compile(r"""\bimport\s+(?:public\s+|weak\s+)?["']([^"']+)["']\s*;""")
_COMMENT: Final = re.compile(r"""("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|//[^\n]*|/\*.*?\*/""", re.DOTALL)
"""A string, which is kept, or a comment."""
_GOOGLE: Final = re.compile(r"google/(api|logging|longrunning|rpc|type)/")

_META: Final = """\
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
"""
_DECIMAL: Final = """\
syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
"""
_CONFLUENT: Final = {
    "confluent/meta.proto": _META,
    "confluent/type/decimal.proto": _DECIMAL,
    "confluent/types/decimal.proto": 'syntax = "proto3";\nimport public "confluent/type/decimal.proto";\n',
}


def imports_of(text: str) -> list[str]:
    """The names of the files that a schema imports.

    >>> imports_of('option java_package = "x//y"; import "a.proto"; // import "b.proto";')
    ['a.proto']
    """
    return _IMPORT.findall(_COMMENT.sub(lambda found: found[1] or " ", text))


def is_known(name: str) -> bool:
    """Whether a file need not be given with a schema that imports it."""
    return name in _CONFLUENT or name.startswith("google/protobuf/") or _GOOGLE.match(name) is not None


def missing_imports(files: Mapping[str, str]) -> dict[str, str]:
    """The known files that ``files`` import, directly or not, and do not have.

    `MissingExtraError` names the package that has those of Google.
    """
    found: dict[str, str] = {}
    pending = list(files.values())
    while pending:
        for name in imports_of(pending.pop()):
            text = None if name in files or name in found else _text_of(name)
            if text is not None:
                found[name] = text
                pending.append(text)
    return found


def _text_of(name: str) -> str | None:
    """None for a file that protoc has, or that is not known."""
    match = _GOOGLE.match(name)
    if match is None:
        return _CONFLUENT.get(name)
    package: Any = require(f"google.{match[1]}", "formats", purpose=f"Protobuf schemas that import {name}")
    fs = OsFs()
    for directory in package.__path__:
        path = os.path.normpath(os.path.join(directory, name[match.end() :]))
        if path.startswith(directory + os.sep) and fs.exists(path):
            return fs.read(path).decode()
    return None

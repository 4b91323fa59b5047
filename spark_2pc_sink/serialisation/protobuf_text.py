"""The .proto text of a Spark type: proto3, ``optional`` fields, numbered in the order of the columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructField, StructType

from spark_2pc_sink.serialisation.refusals import NoSchemaError

TIMESTAMP: Final = "google.protobuf.Timestamp"
DATE: Final = "google.type.Date"
_IMPORTS: Final[Mapping[str, str]] = {TIMESTAMP: "google/protobuf/timestamp.proto", DATE: "google/type/date.proto"}
#: The Protobuf types that hold all values of a Spark type, that of a derived schema first.
TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "BooleanType": ("bool",),
    "ByteType": ("int32", "int64"),
    "ShortType": ("int32", "int64"),
    "IntegerType": ("int32", "int64"),
    "LongType": ("int64",),
    "FloatType": ("float", "double"),
    "DoubleType": ("double",),
    "StringType": ("string",),
    "VarcharType": ("string",),
    "CharType": ("string",),
    "BinaryType": ("bytes",),
    "DecimalType": ("string",),
    "DateType": (DATE,),
    "TimestampType": (TIMESTAMP,),
}
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYS: Final = frozenset({"bool", "int32", "int64", "string"})
_INDENT: Final = "  "


def derived_text(kind: StructType, name: str) -> str:
    """The schema of a struct.

    Args:
        kind: a Spark type.
        name: name of the message, with its package before the last point.

    Raises:
        NoSchemaError: Protobuf cannot represent a type, or does not allow a name.
    """
    package, _, message = name.rpartition(".")
    written = _Messages()
    body = written.message(kind, message, "", "")
    lines = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    lines += [f'import "{_IMPORTS[used]}";' for used in sorted(written.imported)]
    return "\n".join([*lines, *body, ""])


def types_of(kind: DataType, path: str) -> tuple[str, ...]:
    """The Protobuf types that hold all values of a Spark type without fields.

    Raises:
        NoSchemaError: there is none.
    """
    allowed = TYPES.get(type(kind).__name__)
    if allowed is None:
        raise NoSchemaError(path, f"Protobuf has no type for {kind.simpleString()}")
    return allowed


def check_keys(kind: MapType, path: str) -> None:
    """Refuse keys that are not allowed in a Protobuf map.

    Raises:
        NoSchemaError: they are neither texts nor integers.
    """
    if not is_key(kind.keyType):
        rule = (
            f"keys of a Protobuf map are texts, booleans or whole numbers, and these are {kind.keyType.simpleString()}"
        )
        raise NoSchemaError(path, rule)


def is_key(kind: DataType) -> bool:
    """True for a Spark type whose values can be keys of a Protobuf map."""
    return bool(_KEYS & set(TYPES.get(type(kind).__name__, ()))) and not isinstance(kind, DecimalType)


@dataclass
class _Messages:
    """Writes messages, and records which other types they use."""

    imported: set[str] = field(default_factory=set)

    def message(self, kind: StructType, name: str, path: str, indent: str) -> list[str]:
        taken = {each.name for each in kind.fields}
        inner: list[str] = []
        fields: list[str] = []
        for number, each in enumerate(kind.fields, 1):
            place = f"{path}.{each.name}" if path else each.name
            _check_name(each, place)
            label, declared = self._declared(each.dataType, each.name, place, indent + _INDENT, taken, inner)
            fields.append(f"{indent}{_INDENT}{label}{declared} {each.name} = {number};")
        return [f"{indent}message {name} {{", *inner, *fields, f"{indent}}}"]

    def _declared(  # noqa: PLR0917 - the state of one walk
        self, kind: DataType, name: str, path: str, indent: str, taken: set[str], inner: list[str]
    ) -> tuple[str, str]:
        """The label and the type of a field."""
        if isinstance(kind, ArrayType):
            return "repeated ", self._single(kind.elementType, name, path, indent, taken, inner)
        if isinstance(kind, MapType):
            check_keys(kind, path)
            value = self._single(kind.valueType, name, path, indent, taken, inner, container="map")
            return "", f"map<{types_of(kind.keyType, path)[0]}, {value}>"
        return "optional ", self._single(kind, name, path, indent, taken, inner)

    def _single(  # noqa: PLR0917 - as above
        self,
        kind: DataType,
        name: str,
        path: str,
        indent: str,
        taken: set[str],
        inner: list[str],
        container: Literal["array", "map"] = "array",
    ) -> str:
        if isinstance(kind, StructType):
            message = _message_name(name, taken)
            taken.add(message)
            inner += self.message(kind, message, path, indent)
            return message
        if isinstance(kind, (ArrayType, MapType)):
            rule = "Protobuf has no array or map directly in an array or a map"
            call, names = ("transform", "x") if container == "array" else ("transform_values", "(k, x)")
            remedy = f"put the inner one into a struct: {call}({path}, {names} -> struct(x AS items))"
            raise NoSchemaError(path, rule, remedy)
        found = types_of(kind, path)[0]
        if found in _IMPORTS:
            self.imported.add(found)
        return found


def _check_name(each: StructField, path: str) -> None:
    if not _NAME.fullmatch(each.name):
        raise NoSchemaError(path, "Protobuf allows letters, digits and _ in a name")


def _message_name(name: str, taken: set[str]) -> str:
    """``line_items`` becomes ``LineItems``, with _ appended if a field or a message has that name."""
    found = "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Message"
    while found in taken:
        found += "_"
    return found

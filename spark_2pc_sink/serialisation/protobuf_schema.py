"""The Protobuf schema as parsed by its compiler, and the encoder of a Spark type for it."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from spark_2pc_sink.extras import extra
from spark_2pc_sink.serialisation.serialiser import (
    DATE,
    TIMESTAMP,
    Encoder,
    Map,
    Message,
    NoSchemaError,
    Repeated,
    Single,
    ValueType,
    joined_path,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

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
#: The compiler takes milliseconds, or some seconds on an overloaded machine.
_COMPILE_S_MAX: Final = 60
_FILE: Final = "schema.proto"


# --- the schema of a Spark type: proto3, ``optional`` fields, numbered in the order of the columns -------------------


def derived_text(kind: StructType, name: str) -> str:
    """The .proto text of a struct; its message has the package before the last point of the name."""
    package, _, message = name.rpartition(".")
    imported: set[str] = set()
    body = _message(kind, message, "", "", imported)
    lines = ['syntax = "proto3";', *([f"package {package};"] if package else [])]
    lines += [f'import "{_IMPORTS[used]}";' for used in sorted(imported)]
    return "\n".join([*lines, *body, ""])


def _message(kind: StructType, name: str, path: str, indent: str, imported: set[str]) -> list[str]:
    taken = {each.name for each in kind.fields}
    inner: list[str] = []
    fields: list[str] = []
    for number, each in enumerate(kind.fields, 1):
        place = joined_path(path, each.name)
        if not _NAME.fullmatch(each.name):
            raise NoSchemaError(place, "Protobuf allows letters, digits and _ in a name")
        single, form = _single_type(each.dataType, place)
        if isinstance(single, StructType):
            declared = _message_name(each.name, taken)
            taken.add(declared)
            inner += _message(single, declared, place, indent + _INDENT, imported)
        else:
            declared = types_of(single, place)[0]
            imported |= {declared} & _IMPORTS.keys()
        fields.append(f"{indent}{_INDENT}{form.format(declared)} {each.name} = {number};")
    return [f"{indent}message {name} {{", *inner, *fields, f"{indent}}}"]


def _single_type(kind: DataType, path: str) -> tuple[DataType, str]:
    """The type of a field's values, and how the field declares it."""
    single, form, call = kind, "optional {}", ""
    if isinstance(kind, ArrayType):
        single, form, call = kind.elementType, "repeated {}", f"transform({path}, x -> struct(x AS items))"
    elif isinstance(kind, MapType):
        check_keys(kind, path)
        single, form = kind.valueType, f"map<{types_of(kind.keyType, path)[0]}, {{}}>"
        call = f"transform_values({path}, (k, x) -> struct(x AS items))"
    if call and isinstance(single, (ArrayType, MapType)):
        rule = "Protobuf has no array or map directly in an array or a map"
        raise NoSchemaError(path, rule, f"put the inner one into a struct: {call}")
    return single, form


def _message_name(name: str, taken: set[str]) -> str:
    """``line_items`` becomes ``LineItems``, with _ appended if a field or a message has that name."""
    found = "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "Message"
    while found in taken:
        found += "_"
    return found


def types_of(kind: DataType, path: str) -> tuple[str, ...]:
    """The Protobuf types that hold all values of a Spark type without fields."""
    allowed = TYPES.get(type(kind).__name__)
    if allowed is None:
        raise NoSchemaError(path, f"Protobuf has no type for {kind.simpleString()}")
    return allowed


def check_keys(kind: MapType, path: str) -> None:
    if not is_key(kind.keyType):
        rule = f"keys of a Protobuf map must be texts, booleans or whole numbers, not {kind.keyType.simpleString()}"
        raise NoSchemaError(path, rule)


def is_key(kind: DataType) -> bool:
    return bool(_KEYS & set(TYPES.get(type(kind).__name__, ()))) and not isinstance(kind, DecimalType)


# --- a schema as text -------------------------------------------------------------------------------------------------


def compiled_message(text: str, name: str | None = None) -> Descriptor:
    """Compile the first message of a .proto text, or the one with this full name."""
    with extra("protobuf"):
        from google.protobuf import descriptor_pb2, descriptor_pool  # noqa: PLC0415 - an extra

    files = descriptor_pb2.FileDescriptorSet.FromString(_compiled(text))
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    described = pool.FindFileByName(_FILE)
    messages = {message.full_name: message for message in described.message_types_by_name.values()}
    if not messages:
        raise NoSchemaError("", "the schema has no message", "add one")
    if name is None:
        return next(iter(messages.values()))
    if name not in messages:
        raise NoSchemaError("", f"the schema has no message {name!r}, but {', '.join(messages)}", "name one of these")
    return messages[name]


def _compiled(text: str) -> bytes:
    with extra("protobuf"):
        import google.type.date_pb2  # noqa: PLC0415 - an extra
        import grpc_tools  # noqa: PLC0415 - an extra

    roots = [Path(grpc_tools.__file__).parent / "_proto", Path(google.type.date_pb2.__file__).parents[2]]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / _FILE).write_text(text, encoding="utf-8")
        command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{root}" for root in [folder, *roots])]
        command += ["--include_imports", "--descriptor_set_out", f"{folder}/set", f"{folder}/{_FILE}"]
        # In a separate process: the compiler writes its messages to the process's standard error.
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S_MAX, check=False)
        if done.returncode:
            said = done.stderr.strip().replace(f"{folder}/", "")
            remedy = "correct it; only Google's well-known types can be imported"
            raise NoSchemaError("", f"the schema is not a Protobuf schema: {said}", remedy)
        return (Path(folder) / "set").read_bytes()


def message_index(message: Descriptor) -> int:
    """Index of a top-level message in its file, for Confluent's wire format."""
    return list(message.file.message_types_by_name).index(message.name)


def protobuf_encoder(kind: StructType, message: Descriptor, path: str = "") -> Message:
    """The encoder of a struct as a message; refuses a message that cannot represent some values of the type."""
    columns = {each.name: each.dataType for each in kind.fields}
    fields: list[tuple[str, Encoder]] = []
    for described in sorted(message.fields, key=lambda each: each.number):
        inner = joined_path(path, described.name)
        # A field missing in the value is omitted, as a field without a value is.
        if described.name in columns:
            fields.append((described.name, _field(columns.pop(described.name), described, inner)))
    if columns:
        remedy = "add it to the schema, or leave it out of the value"
        rule = "the value has this field, but the message does not"
        raise NoSchemaError(joined_path(path, next(iter(columns))), rule, remedy)
    return Message(fields=tuple(fields))


def _field(kind: DataType, described: FieldDescriptor, path: str) -> Encoder:
    number, message = described.number, described.message_type
    if message is not None and message.GetOptions().map_entry:
        if not isinstance(kind, MapType):
            raise _mismatch(kind, "a map", path)
        check_keys(kind, path)
        keys, values = (message.fields_by_name[name] for name in ("key", "value"))
        return Map(path, number, _single(kind.keyType, keys, path), _single(kind.valueType, values, path))
    if described.is_repeated:
        if not isinstance(kind, ArrayType):
            raise _mismatch(kind, "repeated", path)
        return Repeated(path, number, _single(kind.elementType, described, path), packed=described.is_packed)
    if described.containing_oneof is not None and len(described.containing_oneof.fields) > 1:
        raise NoSchemaError(path, "it is one of several in a oneof", "choose a schema without oneof")
    return Single(path, number, _single(kind, described, path), presence=described.has_presence)


def _single(kind: DataType, described: FieldDescriptor, path: str) -> ValueType:
    declared = _type_name(described)
    if isinstance(kind, StructType):
        message = described.message_type
        if message is None or declared in (TIMESTAMP, DATE):
            raise _mismatch(kind, declared, path)
        return protobuf_encoder(kind, message, path)
    allowed = () if isinstance(kind, (ArrayType, MapType)) else types_of(kind, path)
    if declared not in allowed:
        raise _mismatch(kind, declared, path, allowed)
    return declared


def _type_name(described: FieldDescriptor) -> str:
    if described.message_type is not None:
        return str(described.message_type.full_name)
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto  # noqa: PLC0415 - an extra

    return FieldDescriptorProto.Type.DESCRIPTOR.values_by_number[described.type].name.removeprefix("TYPE_").lower()


def _mismatch(kind: DataType, declared: str, path: str, allowed: Sequence[str] = ()) -> NoSchemaError:
    expected = f", or declare it as {' or '.join(allowed)}" if allowed else ""
    rule = f"the batch has {kind.simpleString()}, the schema has {declared}"
    return NoSchemaError(path, rule, f"convert the expression{expected}")

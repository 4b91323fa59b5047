"""The Avro schema of a Spark type, and the encoder of a Spark type for a schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType

from spark_2pc_sink.extras import extra
from spark_2pc_sink.serialisation.avro_encoder import (
    Absent,
    Array,
    AvroBytes,
    AvroEncoder,
    AvroInteger,
    AvroMap,
    AvroRecord,
    Decimal,
    Fixed,
    Optional,
    Required,
)
from spark_2pc_sink.serialisation.columns import NoSchemaError
from spark_2pc_sink.wire.batch_format import encode_varint

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: The Avro types that hold all values of a Spark type, that of a derived schema first: (type, logical type).
TYPES: Final[Mapping[str, tuple[tuple[str, str | None], ...]]] = {
    "BooleanType": (("boolean", None),),
    "ByteType": (("int", None), ("long", None)),
    "ShortType": (("int", None), ("long", None)),
    "IntegerType": (("int", None), ("long", None)),
    "LongType": (("long", None),),
    "FloatType": (("float", None), ("double", None)),
    "DoubleType": (("double", None),),
    "StringType": (("string", None),),
    "VarcharType": (("string", None),),
    "CharType": (("string", None),),
    "BinaryType": (("bytes", None),),
    "DateType": (("int", "date"),),
    "TimestampType": (("long", "timestamp-micros"),),
    "TimestampNTZType": (("long", "local-timestamp-micros"),),
}
_NUMPY: Final = {"boolean": "u1", "float": "<f4", "double": "<f8"}


def derived_schema(kind: DataType, name: str, *, nullable: bool = False) -> Any:
    """The schema of a type, as a JSON value; a record has the namespace before the last point of the name."""
    schema = _derived(kind, name, "")
    return ["null", schema] if nullable else schema


def _derived(kind: DataType, name: str, path: str) -> Any:
    """``name`` is that of a record here; it is the namespace of nested records, so that their names are unique."""
    if isinstance(kind, StructType):
        namespace, _, short = name.rpartition(".")
        named = {"name": short, "namespace": namespace} if namespace else {"name": short}
        return {"type": "record", **named, "fields": _fields(kind, name, path)}
    if isinstance(kind, ArrayType):
        return {"type": "array", "items": _or_null(kind.elementType, name, path, nullable=kind.containsNull)}
    if isinstance(kind, MapType):
        _check_keys(kind, path)
        return {"type": "map", "values": _or_null(kind.valueType, name, path, nullable=kind.valueContainsNull)}
    if isinstance(kind, DecimalType):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    avro, logical = _types_of(kind, path)[0]
    return avro if logical is None else {"type": avro, "logicalType": logical}


def _fields(kind: StructType, name: str, path: str) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = []
    for field in kind.fields:
        inner = _joined(path, field.name)
        if not _NAME.fullmatch(field.name):
            raise NoSchemaError(inner, "Avro allows letters, digits and _ in a name")
        schema = _or_null(field.dataType, f"{name}.{field.name}", inner, nullable=field.nullable)
        fields.append({"name": field.name, "type": schema} | ({"default": None} if field.nullable else {}))
    return fields


def _or_null(kind: DataType, name: str, path: str, *, nullable: bool) -> Any:
    schema = _derived(kind, name, path)
    return ["null", schema] if nullable else schema


def parsed_schema(text: str) -> Any:
    """A schema with all its names resolved."""
    with extra("avro"):
        from fastavro.schema import SchemaParseException, UnknownType, expand_schema  # noqa: PLC0415 - an extra
    try:
        return expand_schema(json.loads(text))
    except (ValueError, SchemaParseException, UnknownType) as error:
        raise NoSchemaError("", f"it is not an Avro schema: {error}", "correct it") from error


def record_name(schema: Any) -> str | None:
    """The full name of a record's schema from `parsed_schema`; None for any other."""
    return schema["name"] if isinstance(schema, dict) and schema["type"] == "record" else None


def avro_encoder(kind: DataType, schema: Any, path: str = "") -> AvroEncoder:
    """The encoder of a Spark type for a schema from `parsed_schema`; refuses one that cannot represent some values."""
    if isinstance(schema, list):
        return _of_union(kind, schema, path)
    return Required(path, _of_type(kind, schema, path))


def _of_union(kind: DataType, schema: list[Any], path: str) -> AvroEncoder:
    others = [branch for branch in schema if not _is_null(branch)]
    if len(others) != 1 or len(schema) != 2:  # noqa: PLR2004 - null and one type
        raise NoSchemaError(path, "it is a union other than of null and one type", "choose one type")
    return Optional(_of_type(kind, others[0], path), null_first=_is_null(schema[0]))


def _of_type(kind: DataType, schema: Any, path: str) -> AvroEncoder:
    described = schema if isinstance(schema, dict) else {"type": schema}
    name, logical = described["type"], described.get("logicalType")
    if isinstance(kind, StructType) and name == "record":
        return _of_record(kind, described, path)
    if isinstance(kind, ArrayType) and name == "array":
        return Array(avro_encoder(kind.elementType, described["items"], path))
    if isinstance(kind, MapType) and name == "map":
        _check_keys(kind, path)
        return AvroMap(AvroBytes(path, text=True), avro_encoder(kind.valueType, described["values"], path))
    if isinstance(kind, DecimalType):
        return _of_decimal(kind, described, path)
    allowed = () if isinstance(kind, (StructType, ArrayType, MapType)) else _types_of(kind, path)
    if (name, logical) not in allowed:
        shown = name if logical is None else f"{name} ({logical})"
        remedy = f"convert the expression, or declare it as {_shown(kind, path)}"
        raise NoSchemaError(path, f"it is {kind.simpleString()}, and {shown} in the schema", remedy)
    if name in ("string", "bytes"):
        return AvroBytes(path, text=name == "string")
    return Fixed(_NUMPY[name]) if name in _NUMPY else AvroInteger()


def _of_record(kind: StructType, schema: Mapping[str, Any], path: str) -> AvroRecord:
    columns = {field.name: field.dataType for field in kind.fields}
    fields: list[tuple[str | None, AvroEncoder]] = []
    for field in schema["fields"]:
        name, inner = field["name"], _joined(path, field["name"])
        union = field["type"]
        if name in columns:
            fields.append((name, avro_encoder(columns.pop(name), union, inner)))
        elif isinstance(union, list) and any(map(_is_null, union)):
            fields.append((None, Absent(encode_varint([_is_null(branch) for branch in union].index(True)))))
        else:
            remedy = "add it to the value, or make it a union with null"
            raise NoSchemaError(inner, "the schema requires it, but the value has no such field", remedy)
    if columns:
        left = next(iter(columns))
        remedy = "add it to the schema, or leave it out of the value"
        raise NoSchemaError(_joined(path, left), "the value has this field, but the schema does not", remedy)
    return AvroRecord(tuple(fields))


def _of_decimal(kind: DecimalType, schema: Mapping[str, Any], path: str) -> Decimal:
    fits = (
        schema["type"] == "bytes"
        and schema.get("logicalType") == "decimal"
        and schema.get("scale", 0) == kind.scale
        and schema["precision"] >= kind.precision
    )
    if not fits:
        rule = f"it is {kind.simpleString()}, and {json.dumps(schema)} in the schema"
        remedy = "take a decimal in bytes with the same scale and no less precision, or convert the expression"
        raise NoSchemaError(path, rule, remedy)
    return Decimal()


def _types_of(kind: DataType, path: str) -> tuple[tuple[str, str | None], ...]:
    allowed = TYPES.get(type(kind).__name__)
    if allowed is None:
        raise NoSchemaError(path, f"Avro has no type for {kind.simpleString()}")
    return allowed


def _check_keys(kind: MapType, path: str) -> None:
    if not isinstance(kind.keyType, StringType):
        raise NoSchemaError(path, f"keys of an Avro map must be strings, not {kind.keyType.simpleString()}")


def _is_null(schema: Any) -> bool:
    return schema in ("null", {"type": "null"})


def _shown(kind: DataType, path: str) -> str:
    return json.dumps(_derived(kind, "Value", path))


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

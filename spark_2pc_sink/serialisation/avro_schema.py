"""The Avro schema of a Spark type, and the comparison of a given schema with a Spark type."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StringType, StructField, StructType

from spark_2pc_sink.extras import extra
from spark_2pc_sink.serialisation.serialiser import AvroEncoder, NoSchemaError, joined_path, null_branch

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


def derived_schema(kind: DataType, name: str, path: str = "", *, nullable: bool = False) -> Any:
    """The schema of a type, as a JSON value.

    A record has the namespace before the last point of the name. Nested records have the whole name as their namespace,
    so that their names are unique.
    """
    schema: Any
    if isinstance(kind, StructType):
        namespace, _, short = name.rpartition(".")
        named = {"name": short, "namespace": namespace} if namespace else {"name": short}
        schema = {"type": "record", **named, "fields": [_derived_field(field, name, path) for field in kind.fields]}
    elif isinstance(kind, ArrayType):
        items = derived_schema(kind.elementType, name, path, nullable=kind.containsNull)
        schema = {"type": "array", "items": items}
    elif isinstance(kind, MapType):
        _check_keys(kind, path)
        values = derived_schema(kind.valueType, name, path, nullable=kind.valueContainsNull)
        schema = {"type": "map", "values": values}
    elif isinstance(kind, DecimalType):
        schema = {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    else:
        avro, logical = _types_of(kind, path)[0]
        schema = avro if logical is None else {"type": avro, "logicalType": logical}
    return ["null", schema] if nullable else schema


def _derived_field(field: StructField, name: str, path: str) -> dict[str, Any]:
    inner = joined_path(path, field.name)
    if not _NAME.fullmatch(field.name):
        raise NoSchemaError(inner, "Avro allows letters, digits and _ in a name")
    schema = derived_schema(field.dataType, f"{name}.{field.name}", inner, nullable=field.nullable)
    return {"name": field.name, "type": schema} | ({"default": None} if field.nullable else {})


def parsed_schema(text: str) -> Any:
    """A schema with all its names resolved."""
    with extra("avro"):
        from fastavro.schema import SchemaParseException, UnknownType, expand_schema  # noqa: PLC0415 - an extra
    try:
        return expand_schema(json.loads(text))
    except (ValueError, SchemaParseException, UnknownType) as error:
        raise NoSchemaError("", f"the schema is not an Avro schema: {error}", "correct it") from error


def avro_encoder(kind: DataType, schema: Any) -> AvroEncoder:
    """The encoder of a Spark type by a schema from `parsed_schema`; refuses one that cannot represent some values."""
    _check_fits(kind, schema, "")
    return AvroEncoder(schema)


def _check_fits(kind: DataType, schema: Any, path: str) -> None:
    if isinstance(schema, list):
        others = [branch for place, branch in enumerate(schema) if place != null_branch(schema)]
        if len(others) != 1 or len(schema) != 2:  # noqa: PLR2004 - null and one type
            raise NoSchemaError(path, "the schema is a union other than of null and one type", "choose one type")
        [schema] = others
    described = schema if isinstance(schema, dict) else {"type": schema}
    name = described["type"]
    if isinstance(kind, StructType) and name == "record":
        _check_record(kind, described, path)
    elif isinstance(kind, ArrayType) and name == "array":
        _check_fits(kind.elementType, described["items"], path)
    elif isinstance(kind, MapType) and name == "map":
        _check_keys(kind, path)
        _check_fits(kind.valueType, described["values"], path)
    elif isinstance(kind, DecimalType):
        _check_decimal(kind, described, path)
    else:
        logical = described.get("logicalType")
        allowed = () if isinstance(kind, (StructType, ArrayType, MapType)) else _types_of(kind, path)
        if (name, logical) not in allowed:
            shown = name if logical is None else f"{name} ({logical})"
            remedy = f"convert the expression, or declare it as {json.dumps(derived_schema(kind, 'Value', path))}"
            raise NoSchemaError(path, f"the batch has {kind.simpleString()}, the schema has {shown}", remedy)


def _check_record(kind: StructType, schema: Mapping[str, Any], path: str) -> None:
    columns = {field.name: field.dataType for field in kind.fields}
    if len(columns) < len(kind.fields):
        raise NoSchemaError(path, "two fields of the value have one name", "rename one of them")
    for field in schema["fields"]:
        name, inner, union = field["name"], joined_path(path, field["name"]), field["type"]
        if name in columns:
            _check_fits(columns.pop(name), union, inner)
        elif not isinstance(union, list) or null_branch(union) is None:
            remedy = "add it to the value, or make it a union with null"
            raise NoSchemaError(inner, "the schema requires it, but the value has no such field", remedy)
    if columns:
        remedy = "add it to the schema, or leave it out of the value"
        rule = "the value has this field, but the schema does not"
        raise NoSchemaError(joined_path(path, next(iter(columns))), rule, remedy)


def _check_decimal(kind: DecimalType, schema: Mapping[str, Any], path: str) -> None:
    fits = (
        schema["type"] == "bytes"
        and schema.get("logicalType") == "decimal"
        and schema.get("scale", 0) == kind.scale
        and schema["precision"] >= kind.precision
    )
    if not fits:
        rule = f"the batch has {kind.simpleString()}, the schema has {json.dumps(schema)}"
        remedy = "take a decimal in bytes with the same scale and no less precision, or convert the expression"
        raise NoSchemaError(path, rule, remedy)


def _types_of(kind: DataType, path: str) -> tuple[tuple[str, str | None], ...]:
    allowed = TYPES.get(type(kind).__name__)
    if allowed is None:
        raise NoSchemaError(path, f"Avro has no type for {kind.simpleString()}")
    return allowed


def _check_keys(kind: MapType, path: str) -> None:
    if not isinstance(kind.keyType, StringType):
        raise NoSchemaError(path, f"keys of an Avro map must be strings, not {kind.keyType.simpleString()}")

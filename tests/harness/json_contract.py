"""The JSON of ``spark-2pc``, read only where it is of the form that the package documents."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from spark_2pc_sink.cli.output import json_schema


def read_output(text: str) -> dict[str, Any]:
    """What a command printed with ``--json``."""
    found: dict[str, Any] = json.loads(text)
    _validator().validate(found)
    return found


@cache
def _validator() -> Draft202012Validator:
    schema = json.loads(json_schema())
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(_closed(schema), format_checker=Draft202012Validator.FORMAT_CHECKER)


def _closed(schema: Any) -> Any:
    """The schema for the program of today: readers may meet fields that they do not know, and this one has none.

    An object that ``properties`` describe has no others. What a command adds beside the first four is seen at the top.
    """
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("unevaluatedProperties", False)
    return closed

"""The page of what commands print with --json."""

from __future__ import annotations

import json
from typing import Any, Final

from spark_2pc_sink.cli.output import json_schema
from tools.reference_pages.markdown import code, table

_PAGE: Final = """\
# JSON of the commands

`make reference-pages` makes this page of the JSON Schema that `spark-2pc --json-schema` prints. A test compares it.
[The command line](../command-line.md#json) says what may be added without notice.

{about}

## Every command

{every}

{parts}
"""


def json_page() -> str:
    """The page as Markdown."""
    schema = json.loads(json_schema())
    commands = {branch["then"]["$ref"].rpartition("/")[2] for branch in schema["allOf"] if "$ref" in branch["then"]}
    parts = sorted(schema["$defs"].items(), key=lambda part: part[0] not in commands)
    shown = (_part(name, part, command=name in commands) for name, part in parts if "properties" in part)
    return _PAGE.format(about=schema["description"], every=_properties(schema), parts="\n\n".join(shown))


def _part(name: str, part: dict[str, Any], *, command: bool) -> str:
    if name == "ended_without_error":
        return f"## `{name}`\n\n{part['description']} It is a condition, and no object."
    title = f"`spark-2pc {name.replace('_', ' ')}`" if command else f"`{name}`"
    return f"## {title}\n\n{part['description']}\n\n{_properties(part)}"


def _properties(part: dict[str, Any]) -> str:
    rows = ((code(name), _type(field), field.get("description", "")) for name, field in part["properties"].items())
    return table(("name", "value", "meaning"), rows)


def _type(field: dict[str, Any]) -> str:
    """What values a field has."""
    if "$ref" in field:
        return code(field["$ref"].rpartition("/")[2])
    if "const" in field:
        return code(json.dumps(field["const"]))
    if "enum" in field:
        return ", ".join(code(json.dumps(value).strip('"')) for value in field["enum"])
    if "anyOf" in field or "oneOf" in field:
        return " or ".join(_type(each) for each in field.get("anyOf") or field["oneOf"])
    types = field.get("type", "any value")
    names = types if isinstance(types, list) else [types]
    items = f" of {_type(field['items'])}" if "items" in field else ""
    return " or ".join(names) + items

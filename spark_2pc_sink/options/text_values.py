"""The value of an option as a text: in an environment variable, on a command line, or as ``${NAME}`` in a file."""

from __future__ import annotations

import json
from dataclasses import Field
from typing import Any

from spark_2pc_sink.options.kafka_values import as_boolean, as_number
from spark_2pc_sink.options.settings import refusal, setting_of
from spark_2pc_sink.options.text_checks import shown

#: Parts of the types of options with more than a single value.
_STRUCTURED = ("Mapping[", "Sequence[", "list[", "tuple[")


def value_of_text(item: Field[Any], text: str) -> Any:
    """Convert a text to the option's type; a text that is not a number, a switch or a list is kept.

    Args:
        item: the option's declaration.
        text: a number, ``true`` or ``false``, comma-separated names, or JSON for a mapping or tables.

    Raises:
        ConfigurationError: the text is invalid. A secret is not shown.
    """
    kind = setting_of(item).given or str(item.type)
    if kind.startswith("int"):
        return as_number(item.name, text)
    if kind.startswith("bool"):
        return as_boolean(item.name, text, true=("true",), false=("false",))
    if not any(word in kind for word in _STRUCTURED):
        return text
    if "str]" in kind and not kind.startswith("Mapping") and not text.lstrip().startswith("["):
        return [name.strip() for name in text.split(",")]
    return _value_of_json(item, text, mapping=kind.startswith("Mapping"))


def _value_of_json(item: Field[Any], text: str, *, mapping: bool) -> Any:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise refusal(item, shown(item.name, text), f"its text is JSON: {error}", "write JSON") from None
    if isinstance(value, dict if mapping else list):
        return value
    rule, remedy = ("an object", '{"order_id": "id"}') if mapping else ("a list", '["order_id"]')
    raise refusal(item, shown(item.name, text), f"its text is JSON, {rule}", f"write for example {remedy}")

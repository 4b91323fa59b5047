"""The outputs of a sink as tables of a file: ``[[writes]]`` with ``kind = "records"`` or ``kind = "rows"``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.settings import nearest
from spark_2pc_sink.options.text_checks import shown

_KINDS: Final[dict[str, type[Records | Rows]]] = {"records": Records, "rows": Rows}
_EXAMPLE: Final = 'write [[writes]] and below it kind = "records", topic = "orders"'


def outputs_of_tables(given: object) -> tuple[Records | Rows, ...]:
    """Each table as the output that it describes.

    Raises:
        ConfigurationError: it is not a list of tables, a ``kind`` is missing or unknown, or an option is refused.
    """
    if not isinstance(given, list):
        raise ConfigurationError(
            option="writes", value=shown("writes", given), rule="it is a list of tables", remedy=_EXAMPLE
        )
    return tuple(_output(table, number) for number, table in enumerate(given, start=1))


def _output(table: object, number: int) -> Records | Rows:
    if not isinstance(table, Mapping):
        raise ConfigurationError(
            option="writes", value=shown("writes", table), rule="it is a list of tables", remedy=_EXAMPLE
        )
    options = dict(table)
    kind = options.pop("kind", None)
    if kind not in _KINDS:
        remedy = nearest(kind, _KINDS) if isinstance(kind, str) else _EXAMPLE
        rule = f'the kind of each output is "records" or "rows", and that of number {number} is not'
        raise ConfigurationError(option="writes", value=kind, rule=rule, remedy=remedy)
    return _KINDS[kind](**options)

"""The page docs/reference/options.md, made of the declarations: ``python -m spark_2pc_sink.options.reference_page``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, Field, dataclass
from typing import Any, Final

from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.recovery import RecoveryOptions, StatusOptions
from spark_2pc_sink.options.settings import options_of, setting_of
from spark_2pc_sink.options.sink import SinkOptions

_PAGE: Final = """\
# Options

The source code declares each option once. `python -m spark_2pc_sink.options.reference_page` prints this page from these
declarations, and a test compares them with the page and with the signatures of `DualWriteSink`, `recover` and
`status`.

Every option is checked before anything is connected to. A wrong one raises `ConfigurationError`. The error names the
option, the rule and the remedy.

## `DualWriteSink(...)`

All options are keywords.

{}

## `Records(...)` and `Rows(...)`

Each stands in `writes=[...]`, for a topic or a table. The first option of each may be given without its name.

`Records`:

{}

`Rows`:

{}

## `recover(...)`

All options are keywords. `recover` takes those of the table below, and as the sink does: {}.

{}

## `status(...)`

All options are keywords. `status` changes nothing. It takes those of the table below, and as the sink does: `kafka`,
`database`, and those that name tables (`state_schema`, `state_table`, `history_table`, `history_batches`). Its
`transactional_id` may be left out: it then looks at every sink.

{}

## Kafka properties: `kafka={{...}}`

For `DualWriteSink`, `TransactionalWriter`, `recover`, `status` and `TransactionTool`. Names of librdkafka and of Java
are both taken. A number may be given as its text. Java's `sasl.jaas.config`, `ssl.truststore.type` and
`ssl.keystore.type` are read too. A property that the sink decides by itself (`acks`, `enable.idempotence`,
`transactional.id`, serializers) is refused with the reason.

{}
"""
_HEAD: Final = "| option | type | default | meaning |\n|---|---|---|---|"


@dataclass(frozen=True)
class OptionRow:
    """One option, as a reader of the documentation needs it.

    Attributes:
        names: the keyword, or the names of a Kafka property, the preferred one first.
        type: as a user passes it, in Python's notation.
        default: in Python's notation; None for a required option.
        range: the smallest and the largest number with their unit, or ''.
        why: what it does, and the reason for the default.
    """

    names: tuple[str, ...]
    type: str
    default: str | None
    range: str
    why: str

    def __str__(self) -> str:
        names = " or ".join(f"`{name}`" for name in self.names)
        shown = self.type.replace("|", r"\|")
        default = "required" if self.default is None else f"`{self.default}`"
        return f"| {names} | `{shown}`{self.range and ', ' + self.range} | {default} | {self.why} |"


def reference(options: type[Any]) -> tuple[OptionRow, ...]:
    """The options of a class."""
    return tuple(map(_row, options_of(options)))


def _row(item: Field[Any]) -> OptionRow:
    about = setting_of(item)
    bounds = "" if about.at_least is None else f"{about.at_least} to {about.at_most} {about.unit}".strip()
    # The only switch among Kafka's properties is a text there.
    default = "https" if item.default is True and about.properties else item.default
    return OptionRow(
        names=about.properties or (item.name,),
        type=about.given or str(item.type),
        default=None if default is MISSING else repr(default),
        range=bounds,
        why=about.why,
    )


def options_page() -> str:
    """The page as Markdown."""
    sink = reference(SinkOptions)
    recovery = reference(RecoveryOptions)
    shared = ", ".join(f"`{row.names[0]}`" for row in recovery if row in sink)
    own = [row for row in recovery if row not in sink]
    outputs, others = (reference(Records), reference(Rows)), (own, reference(StatusOptions), reference(KafkaOptions))
    before, behind = map(_tables, ((sink, *outputs), others))
    return _PAGE.format(*before, shared, *behind)


def _tables(options: Sequence[Sequence[OptionRow]]) -> list[str]:
    return ["\n".join([_HEAD, *map(str, rows)]) for rows in options]


if __name__ == "__main__":
    print(options_page(), end="")

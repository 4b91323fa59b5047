"""The page docs/reference/options.md, made of the declarations: ``python -m spark_2pc_sink.options.reference_page``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, Field, dataclass
from typing import Any, Final

from spark_2pc_sink.options.kafka import KafkaOptions
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.recovery import RecoveryOptions, StatusOptions
from spark_2pc_sink.options.service import ServiceOptions
from spark_2pc_sink.options.settings import options_of, setting_of
from spark_2pc_sink.options.sink import SinkOptions

_PAGE: Final = """\
# Options

The source code declares each option once. `python -m spark_2pc_sink.options.reference_page` prints this page from these
declarations, and a test compares them with the page and with the signatures of `DualWriteSink`, `DualWrite`,
`recover` and `status`.

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

## `DualWrite(...)` and `AsyncDualWrite(...)`

All options are keywords. They take those of the table below, and as the sink does: {}.

{}

## `recover(...)`

All options are keywords. `recover` takes those of the table below, and as the sink does: {}.

{}

## `status(...)`

All options are keywords. `status` changes nothing. It takes those of the table below, and as the sink does: `kafka`,
`database`, `database_password`, `password_command`, and those that name tables (`state_schema`, `state_table`,
`history_table`, `history_batches`). Its `transactional_id` may be left out: it then looks at every sink.

{}

## Kafka properties: `kafka={{...}}`

For `DualWriteSink`, `DualWrite`, `TransactionalWriter`, `recover`, `status` and `TransactionTool`. Names of librdkafka
and of Java are both taken. A number may be given as its text. Java's `sasl.jaas.config`, `ssl.truststore.type` and
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


def service_reference() -> tuple[OptionRow, ...]:
    """The options of `DualWrite`: what a person decides about one of its ids is said to ``spark-2pc recover``."""
    return tuple(row for row in reference(ServiceOptions) if row.names[0] not in ("adopt", "accept_loss", "reason"))


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
    service_shared, service = _beside(sink, service_reference())
    recovery_shared, recovery = _beside(sink, reference(RecoveryOptions))
    return _PAGE.format(
        _table(sink),
        _table(reference(Records)),
        _table(reference(Rows)),
        service_shared,
        _table(service),
        recovery_shared,
        _table(recovery),
        _table(reference(StatusOptions)),
        _table(reference(KafkaOptions)),
    )


def _beside(sink: tuple[OptionRow, ...], rows: tuple[OptionRow, ...]) -> tuple[str, list[OptionRow]]:
    """The names of those that the sink has too, and the others."""
    return ", ".join(f"`{row.names[0]}`" for row in rows if row in sink), [row for row in rows if row not in sink]


def _table(rows: Iterable[OptionRow]) -> str:
    return "\n".join([_HEAD, *map(str, rows)])


if __name__ == "__main__":
    print(options_page(), end="")

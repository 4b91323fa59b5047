"""What is made from the declarations of options: the page, and the signatures of the public calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass
from functools import partial
from typing import Any, Final

from spark_2pc_sink.options import (
    CommonOptions,
    KafkaOptions,
    Records,
    RecoveryOptions,
    Rows,
    ServiceOptions,
    SinkOptions,
    StatusOptions,
)
from spark_2pc_sink.options.common import READER_OPTIONS
from spark_2pc_sink.options.outputs import with_names
from spark_2pc_sink.options.settings import Theme, kind_of, options_of, setting_of, shown_name

_PAGE: Final = """\
# Options

The source code declares each option once. This page, the signatures and `help(DualWriteSink)` are made from the
declarations.

Every option is checked before anything is connected to. A wrong one raises `ConfigurationError`. The error names the
option, the rule and the remedy. [Configuration](../configuration.md) describes options in files and in the environment.

## `DualWriteSink(...)`

All options are keywords. Only `transactional_id`, `kafka`, `database` and a target are required: `table`, or `writes`.

{sink}

## `Records(...)` and `Rows(...)`

They are the elements of `writes=[...]`: one for each topic or table. The first option of each may be given without its
name. `Records` also takes these options of the sink: {records_shared}. `Rows` takes these: {rows_shared}.

{records}

{rows}

## `DualWrite(...)` and `AsyncDualWrite(...)`

All options are keywords. They also take these options of the sink: {service_shared}.

{service}

## `recover(...)`

All options are keywords. `recover` also takes these options of the sink: {recovery_shared}.

{recovery}

## `status(...)`

All options are keywords. `status` changes nothing. It also takes these options of the sink: {status_shared}.
Without `transactional_id` it reports on every sink.

{status}

## Kafka properties: `kafka={{...}}`

For `DualWriteSink`, `DualWrite`, `TransactionalWriter`, `recover`, `status` and `TransactionTool`. The names of
librdkafka and of Java are both accepted. A number may be given as text. Java's `sasl.jaas.config`,
`ssl.truststore.type` and `ssl.keystore.type` are read too. A property that the sink sets itself (`acks`,
`enable.idempotence`, `transactional.id`, serializers) is refused with the reason.

{properties}
"""


@dataclass(frozen=True)
class OptionRow:
    """One option, as documented.

    Attributes:
        names: the keyword, or the names of a Kafka property, the preferred one first.
        type: the user's type, in Python notation.
        default: in Python notation; None for a required option.
        range: the smallest and the largest number with their unit, or ''.
        why: what it does, and the reason for the default.
        since: first version of the package that has it.
        group: the text of one of `Theme`.
    """

    names: tuple[str, ...]
    type: str
    default: str | None
    range: str
    why: str
    since: str
    group: str

    def entry(self, heading: str, owner: str = "") -> str:
        """The option's entry: a heading, which is its anchor, its facts, and its meaning."""
        names = " or ".join(f"`{owner}{name}`" for name in self.names)
        default = "required" if self.default is None else f"default `{self.default}`"
        shown_range = f" ({self.range})" if self.range else ""
        return (
            f"{heading} {names}\n\n`{self.type}`{shown_range}, {default}. Since {self.since}.\n\n{_sentence(self.why)}"
        )

    @property
    def link(self) -> str:
        """A link to the entry of an option of the sink or a Kafka property."""
        return f"[`{self.names[0]}`](#{_anchor(' or '.join(self.names))})"


def reference(options: type[Any]) -> tuple[OptionRow, ...]:
    """The options of a class."""
    return tuple(map(_row, options_of(options)))


def service_reference() -> tuple[OptionRow, ...]:
    """The options of `DualWrite`; decisions about one of its ids are options of ``spark-2pc recover``."""
    return tuple(row for row in reference(ServiceOptions) if row.group != Theme.CONTINUE.value)


def _row(item: Field[Any]) -> OptionRow:
    about = setting_of(item)
    bounds = "" if about.bounds is None else f"{about.bounds[0]} to {about.bounds[1]} {about.unit}".strip()
    name = item.name if about.sink else shown_name(item)
    # The only switch among the Kafka properties is a text there.
    default = "https" if item.default is True and about.properties else item.default
    return OptionRow(
        names=about.properties or (name,),
        type=kind_of(item),
        default=None if default is MISSING else repr(default),
        range=bounds,
        why=with_names(about.why, long=False),
        since=about.since,
        group=about.group.value,
    )


# --- the page ------------------------------------------------------------------------------------------------------


def options_page() -> str:
    """The page as Markdown."""
    sink = reference(SinkOptions)
    records_shared, records = _beside(sink, reference(Records))
    rows_shared, rows = _beside(sink, reference(Rows))
    service_shared, service = _beside(sink, service_reference())
    recovery_shared, recovery = _beside(sink, reference(RecoveryOptions))
    return _PAGE.format(
        sink=_groups(sink),
        records_shared=records_shared,
        rows_shared=rows_shared,
        records=_entries(records, "Records."),
        rows=_entries(rows, "Rows."),
        service_shared=service_shared,
        service=_entries(service, "DualWrite."),
        recovery_shared=recovery_shared,
        recovery=_entries(recovery, "recover."),
        status_shared=", ".join(row.link for row in sink if row.names[0] in {"kafka", "database", *READER_OPTIONS}),
        status=_entries(reference(StatusOptions), "status."),
        properties=_groups(reference(KafkaOptions)),
    )


def _beside(sink: tuple[OptionRow, ...], rows: tuple[OptionRow, ...]) -> tuple[str, list[OptionRow]]:
    """Links to the options that the sink has too, and the other options."""
    return ", ".join(row.link for row in rows if row in sink), [row for row in rows if row not in sink]


def _groups(rows: Iterable[OptionRow]) -> str:
    """A list of links by group, and then the entries."""
    listed = list(rows)
    groups = {group.value: [row for row in listed if row.group == group.value] for group in Theme}
    found = {title: options for title, options in groups.items() if title and options}
    index = "\n".join(f"- {title}: {', '.join(row.link for row in options)}" for title, options in found.items())
    sections = [
        f"### {title}\n\n" + "\n\n".join(row.entry("####") for row in options) for title, options in found.items()
    ]
    return "\n\n".join([index, *sections])


def _entries(rows: Iterable[OptionRow], owner: str) -> str:
    return "\n\n".join(row.entry("###", owner) for row in rows)


def _anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _sentence(text: str) -> str:
    text = text.replace("<", r"\<")  # else <topic> is HTML
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


# --- signatures ----------------------------------------------------------------------------------------------------


def _read(*more: str) -> list[Field[Any]]:
    """Options of a call that only reads the database."""
    return [item for item in options_of(CommonOptions) if item.name in (*READER_OPTIONS, *more)]


#: Each public call: its function, the line after which its options are written, and these.
_CALLS: Final[Mapping[str, Sequence[tuple[str, str, Callable[[], list[Field[Any]]]]]]] = {
    "spark_2pc_sink/sink/sink.py": [("__init__", "*,", lambda: options_of(SinkOptions))],
    "spark_2pc_sink/service/service.py": [
        (
            "__init__",
            "*,",
            lambda: [item for item in options_of(ServiceOptions) if setting_of(item).group is not Theme.CONTINUE],
        )
    ],
    "spark_2pc_sink/recovery/api.py": [
        ("recover", "*,", lambda: options_of(RecoveryOptions)),
        ("status", "transactional_id: str | None = None,", lambda: [*options_of(StatusOptions), *_read()]),
        (
            "history",
            "actions: bool = True,",
            lambda: _read("connect_timeout_s", "lock_timeout_ms", "statement_timeout_ms"),
        ),
    ],
    "spark_2pc_sink/verification/api.py": [
        (
            "verify",
            "wait_ms: int = 10_000,",
            lambda: _read("connect_timeout_s", "connect_deadline_ms", "lock_timeout_ms", "statement_timeout_ms"),
        )
    ],
}


def with_signatures(path: str, source: str) -> str:
    """A source file with the signatures of its public calls as the declarations have them."""
    for function, line, options in _CALLS[path]:
        after = rf"\bdef {function}\((?:.*\n)*?(?P<indent> +){re.escape(line)}\n"
        region = re.compile(rf"(?P<head>{after})(?:.*\n)*?(?P<end> *\) ->)")
        made = region.subn(partial(_signature, options()), source, count=1)
        if not made[1]:
            message = f"{path} has no {function} with the line {line}"
            raise ValueError(message)
        source = made[0]
    return source


def _signature(options: Iterable[Field[Any]], found: re.Match[str]) -> str:
    lines = "".join(f"{found['indent']}{_parameter(item)}\n" for item in options)
    return f"{found['head']}{lines}{found['end']}"


def _parameter(item: Field[Any]) -> str:
    kind = kind_of(item).replace("'", '"')
    if item.default is MISSING:
        return f"{item.name}: {kind},"
    default = repr(item.default)
    if isinstance(item.default, str):
        default = json.dumps(item.default)
    elif isinstance(item.default, int) and not isinstance(item.default, bool):
        default = f"{item.default:_}"
    return f"{item.name}: {kind} = {default},"


#: The files with a signature: from the root.
SIGNATURES: Final = {path: partial(with_signatures, path) for path in _CALLS}

"""Generates docs/reference/options.md from the declarations: ``python -m spark_2pc_sink.options.reference_page``."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
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

The source code declares each option once, and this page is made from the declarations, as is `help(DualWriteSink)`.

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

All options are keywords. `status` changes nothing. It also takes these options of the sink: [`kafka`](#kafka),
[`database`](#database), [`database_password`](#database_password), [`password_command`](#password_command), and those
that name tables ([`state_schema`](#state_schema), [`state_table`](#state_table), [`history_table`](#history_table),
[`history_batches`](#history_batches)). Without `transactional_id` it reports on every sink.

{status}

## Kafka properties: `kafka={{...}}`

For `DualWriteSink`, `DualWrite`, `TransactionalWriter`, `recover`, `status` and `TransactionTool`. The names of
librdkafka and of Java are both accepted. A number may be given as text. Java's `sasl.jaas.config`,
`ssl.truststore.type` and `ssl.keystore.type` are read too. A property that the sink sets itself (`acks`,
`enable.idempotence`, `transactional.id`, serializers) is refused with the reason.

{properties}
"""
#: Reader's tasks, and the options for each.
_SINK_GROUPS: Final[Mapping[str, str]] = {
    "Name the sink and connect it": "transactional_id kafka database database_password password_command require_tls "
    "accept_database",
    "Choose what goes to Kafka": "topic key value headers partition",
    "Encode with a schema registry": "key_format value_format value_schema value_schema_name "
    "value_subject_name_strategy schema_registry",
    "Choose what goes to PostgreSQL": "table columns create_table primary_key schema_evolution",
    "Update and delete rows": "mode upsert_keys upsert_order_by upsert_superseded upsert_late_rows delete_when "
    "tombstones update_columns upsert_where unchanged_when",
    "Write several topics and tables": "writes",
    "Handle bad rows": "bad_rows max_bad_rows dead_letter_table dead_letter_topic",
    "Run your own code with a batch": "on_batch on_decide",
    "Tell other tools": "openlineage_namespace",
    "Continue after a restart that needs a decision": "adopt accept_loss accept_replay reason query_name",
    "Keep state and history": "state_schema state_table history_table history_batches",
    "Tune batches": "batch_attempts_max driver_port driver_port_range",
    "Set time limits": "decision_margin_ms connect_timeout_s connect_deadline_ms claim_lock_timeout_ms "
    "claim_deadline_ms lock_timeout_ms statement_timeout_ms idle_in_transaction_timeout_ms commit_timeout_ms "
    "settle_deadline_ms",
}
_KAFKA_GROUPS: Final[Mapping[str, str]] = {
    "Connect": "bootstrap.servers client.id socket.connection.setup.timeout.ms reconnect.backoff.ms "
    "reconnect.backoff.max.ms metadata.max.age.ms connections.max.idle.ms",
    "Encrypt": "security.protocol ssl.ca.location ssl.certificate.location ssl.key.location ssl.key.password "
    "ssl.crl.location ssl.endpoint.identification.algorithm",
    "Log in": "sasl.mechanism sasl.username sasl.password sasl.kerberos.service.name oauth_cb sasl.oauthbearer.config "
    "sasl.oauthbearer.method sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.client.id "
    "sasl.oauthbearer.client.secret sasl.oauthbearer.scope sasl.oauthbearer.extensions https.ca.location",
    "Size and compress requests": "batch.size max.request.size receive.message.max.bytes "
    "max.in.flight.requests.per.connection compression.type compression.zstd.level compression.gzip.level",
    "Limit waiting and retries": "request.timeout.ms delivery.timeout.ms max.block.ms retry.backoff.ms "
    "retry.backoff.max.ms transaction.timeout.ms",
}
#: Title for options without a group; a test verifies that there are none.
UNGROUPED: Final = "Other options"
_HELP_WIDTH: Final = 100


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
    """

    names: tuple[str, ...]
    type: str
    default: str | None
    range: str
    why: str
    since: str

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
    return tuple(row for row in reference(ServiceOptions) if row.names[0] not in ("adopt", "accept_loss", "reason"))


def grouped(rows: Iterable[OptionRow], groups: Mapping[str, str] = _SINK_GROUPS) -> dict[str, list[OptionRow]]:
    """The options grouped by the reader's tasks; those without a group under `UNGROUPED`.

    Args:
        rows: the options.
        groups: the names of a group's options, by its title; unknown names are ignored.
    """
    waiting = {row.names[0]: row for row in rows}
    found = {title: [waiting.pop(name) for name in names.split() if name in waiting] for title, names in groups.items()}
    found[UNGROUPED] = list(waiting.values())
    return {title: options for title, options in found.items() if options}


def with_options(kind: type[Any]) -> type[Any]:
    """Add all options of the sink, by groups, to the docstring of a class; `help` shows them."""
    if kind.__doc__ is not None:  # python -OO removes docstrings
        parts = [part for title, rows in grouped(reference(SinkOptions)).items() for part in _help_of(title, rows)]
        kind.__doc__ = f"{inspect.cleandoc(kind.__doc__)}\n\n" + "\n\n".join(parts) + "\n"
    return kind


def _help_of(title: str, rows: Iterable[OptionRow]) -> Iterator[str]:
    yield f"**{title}**"
    for row in rows:
        default = "required" if row.default is None else f"default ``{row.default}``"
        text = f"- ``{row.names[0]}``, {default}: {row.why}."
        yield textwrap.fill(text, _HELP_WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _row(item: Field[Any]) -> OptionRow:
    about = setting_of(item)
    bounds = "" if about.at_least is None else f"{about.at_least} to {about.at_most} {about.unit}".strip()
    # The only switch among the Kafka properties is a text there.
    default = "https" if item.default is True and about.properties else item.default
    return OptionRow(
        names=about.properties or (item.name,),
        type=about.given or str(item.type),
        default=None if default is MISSING else repr(default),
        range=bounds,
        why=about.why,
        since=about.since,
    )


def options_page() -> str:
    """The page as Markdown."""
    sink = reference(SinkOptions)
    records_shared, records = _beside(sink, reference(Records))
    rows_shared, rows = _beside(sink, reference(Rows))
    service_shared, service = _beside(sink, service_reference())
    recovery_shared, recovery = _beside(sink, reference(RecoveryOptions))
    return _PAGE.format(
        sink=_groups(sink, _SINK_GROUPS),
        records_shared=records_shared,
        rows_shared=rows_shared,
        records=_entries(records, "Records."),
        rows=_entries(rows, "Rows."),
        service_shared=service_shared,
        service=_entries(service, "DualWrite."),
        recovery_shared=recovery_shared,
        recovery=_entries(recovery, "recover."),
        status=_entries(reference(StatusOptions), "status."),
        properties=_groups(reference(KafkaOptions), _KAFKA_GROUPS),
    )


def _beside(sink: tuple[OptionRow, ...], rows: tuple[OptionRow, ...]) -> tuple[str, list[OptionRow]]:
    """Links to the options that the sink has too, and the other options."""
    return ", ".join(row.link for row in rows if row in sink), [row for row in rows if row not in sink]


def _groups(rows: Iterable[OptionRow], groups: Mapping[str, str]) -> str:
    """A list of links by group, and then the entries."""
    found = grouped(rows, groups)
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


if __name__ == "__main__":
    print(options_page(), end="")

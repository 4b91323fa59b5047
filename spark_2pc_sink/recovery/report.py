"""Reports of recovery and status, as fields for programs and as text for people, and the commands in them.

Printed commands are complete with the sink's name and its connections, and without a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

from jdbc_state import DECIDED, OWED, StateRow
from jdbc_state.preparing import as_identifier
from jdbc_state.sessions import Liveness
from spark_2pc_sink.choices import EFFECTS, NO_FACTS, UNCHANGED, Facts, HaltCause, Problem, Symptom, remedies
from spark_2pc_sink.choices.choice import flags
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.ids import PreparedTxnState, check_transactional_id
from spark_2pc_sink.options import CommonOptions, KafkaOptions, RecoveryOptions
from spark_2pc_sink.options.common import READER_FLAGS
from spark_2pc_sink.options.database import without_secrets
from spark_2pc_sink.options.names import parse_identifier
from spark_2pc_sink.options.settings import options_of, setting_of
from spark_2pc_sink.plural import counted, first_of
from spark_2pc_sink.recipe.resolve import KafkaView, RowStatus, RowView

#: Partitions that a line names; a batch may have hundreds.
_PLACES_MAX: Final = 6
_PARTITION: Final = re.compile(r".+-[0-9]+", re.ASCII)


def view_of(row: StateRow) -> RowView:
    """The part of a state row that `resolve` decides by."""
    return RowView(
        status=RowStatus(row.status),
        prepared=PreparedTxnState(row.prepared_transaction_state),
        settled=PreparedTxnState(row.settled),
        cluster_id=row.cluster_id,
    )


def shown(row: StateRow) -> str:
    batch = "no batch" if row.batch_id is None else f"batch {row.batch_id}"
    return f"{batch}, {view_of(row)}"


def batch_line(row: StateRow) -> str:
    if row.batch_id is None:
        return "none yet"
    since = "" if row.decided_at is None else f", decided {row.decided_at:%Y-%m-%d %H:%M:%S %Z}"
    places = [f"{name} {first}..{last}" for name, (first, last) in sorted(row.kafka_offsets.items())]
    records = f"; {', '.join(first_of(places, _PLACES_MAX))}" if places else ""
    return f"{row.batch_id}: {counted(row.row_count, 'row')}, {counted(row.record_count, 'record')}{since}{records}"


def owed_reason(row: StateRow) -> str:
    since = "" if row.decided_at is None else f" since {row.decided_at:%Y-%m-%d %H:%M:%S %Z}"
    return (
        f"Kafka is owed batch {row.batch_id}: the table has its {counted(row.row_count, 'row')}{since}, and Kafka "
        f"aborted its {counted(row.record_count, 'record')}"
    )


def problem_of(row: StateRow) -> str:
    """Why the row is invalid, '' if it is valid: a person may have written it, or a later version."""
    try:
        check_transactional_id(row.transactional_id)
        view_of(row)
    except ConfigurationError as error:
        return f"{error.option} {error.value!r}: {error.rule}"
    except ValueError:
        return f"status {row.status!r} must be one of {', '.join(status.value for status in RowStatus)}"
    bad = [name for name in row.kafka_offsets if not _PARTITION.fullmatch(name)]
    return f"kafka_offsets name {bad[0]!r}, which must be topic-partition" if bad else ""


#: What a recovery can do:
#: ``rebuild_row`` rebuilds a lost state row from its history; ``take_open`` records an open transaction as the decision
#: of the batch that the operator has named; ``commit`` and ``abort`` end the transaction in Kafka; ``note_done`` and
#: ``note_owed`` record how it had ended; ``accept_loss`` continues without batches that the operator has named as lost;
#: ``drop`` gives up the Kafka half of a batch; ``accept_replay`` allows Spark's replay of a batch to be sent with any
#: content; ``resend`` sends a service's records that Kafka lacks, from its kept records; ``wait`` waits for the
#: transaction to end, and is only ever planned.
ActionKind = Literal[
    "rebuild_row",
    "take_open",
    "commit",
    "abort",
    "note_done",
    "note_owed",
    "accept_loss",
    "drop",
    "accept_replay",
    "resend",
    "wait",
]

#: Overall condition in a report:
#: ``fine`` nothing is in doubt; ``at_work`` the driver is running and its transaction is open, not decided;
#: ``in_doubt`` a person or a recovery must act; ``owed`` the database has a batch that Kafka has aborted; ``elsewhere``
#: the row belongs to another Kafka cluster; ``not_known`` the id is unknown; ``unclear`` the answer depends on the
#: database, which was not read.
Condition = Literal["fine", "at_work", "in_doubt", "owed", "elsewhere", "not_known", "unclear"]

_LIFE: Final = {True: "running", False: "no driver is running", None: "unknown whether one is running"}
_HEALTHY: Final[frozenset[Condition]] = frozenset({"fine", "at_work"})
_OTHERWISE: Final[dict[Condition, str]] = {
    "elsewhere": "belongs to another Kafka cluster",
    "not_known": "UNKNOWN, the state table has no row for this id",
    "unclear": "unclear, the database was not read",
}
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60))


@dataclass(frozen=True)
class Action:
    kind: ActionKind
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, kw_only=True)
class RecoveryReport:
    """What a recovery found and did. Programs read the fields; ``str(report)`` is for people.

    Attributes:
        transactional_id: the sink's id.
        settled: True when nothing is in doubt any more.
        known: False if no state row has this id: the sink has never run, or this is the wrong database. None if the
            database was not read.
        dry_run: True if nothing was claimed or changed: `actions` would be done.
        before: the state row as the claim returned it; None if there is none, or it is lost.
        row: the state row afterwards; in a dry run the current or rebuilt row. It has the batch id, the status, the
            prepared state, the counts of rows and records, and the offsets of each topic partition.
        kafka: the coordinator's first answer.
        actions: what was done, in order; empty if nothing was in doubt.
        cause: why it has no safe automatic answer, if that is so.
        driver: whether the driver with the newest claim is alive, by its database sessions; None if not checked.
        prepared_s: seconds for which Kafka has had a transaction open, or prepared, that the database has not decided;
            None if there is none. Measured from the coordinator's clock to the local one.
        elsewhere: True if the row belongs to a Kafka cluster other than the one that was asked.
        reason: for people, why the last verdict was reached.
        remedies: for people, what they can do if it is not settled.
        facts: what is known about the incident, for its choices.
    """

    transactional_id: str
    settled: bool
    known: bool | None = True
    dry_run: bool = False
    before: StateRow | None = None
    row: StateRow | None = None
    kafka: KafkaView | None = None
    actions: tuple[Action, ...] = ()
    cause: HaltCause | None = None
    driver: Liveness | None = None
    prepared_s: float | None = None
    elsewhere: bool = False
    reason: str = ""
    remedies: tuple[str, ...] = ()
    facts: Facts = field(default=NO_FACTS, repr=False)

    @property
    def problem(self) -> Problem:
        """The problem, as the table of choices names it."""
        if self.elsewhere:
            return Symptom.ELSEWHERE
        if self.cause is not None:
            return self.cause
        if self.settled or not self.known:
            return Symptom.NOTHING_WRONG if self.known else Symptom.NOT_KNOWN
        if self.driver_may_live:
            return Symptom.DRIVER_ALIVE
        if self.row is not None and self.row.status == OWED and not self.actions:
            return Symptom.OWED
        return Symptom.LOST_ROW if self.before is None else Symptom.IN_DOUBT

    @property
    def driver_may_live(self) -> bool:
        """Whether the driver is or may be alive: `recover` then leaves the sink alone, unless told to take over.

        A driver without a visible database session may be alive if its row was changed a short time ago.
        """
        if self.driver is None:
            return False
        if self.driver.alive is None:
            return self.age_s is not None and self.age_s < RecoveryOptions.takeover_grace_s
        return self.driver.alive

    @property
    def incident(self) -> Facts:
        """The facts, with the batch of the row and the planned actions."""
        effects = [EFFECTS[action.kind] for action in self.actions if action.kind in EFFECTS]
        kafka, database = (
            "; ".join(dict.fromkeys(effect[side] for effect in effects if effect[side] != UNCHANGED)) or UNCHANGED
            for side in (0, 1)
        )
        return replace(
            self.facts,
            batch=self.row.batch_id if self.facts.batch is None and self.row is not None else self.facts.batch,
            planned=(kafka, database) if self.actions else NO_FACTS.planned,
            safe=len(effects) == len(self.actions),
        )

    def with_remedies(self, sink: str) -> RecoveryReport:
        """The report with what a person can do; ``sink`` are the words that name the sink in commands."""
        return replace(self, remedies=remedies(self.problem, self.incident, sink))

    @property
    def condition(self) -> Condition:
        if self.elsewhere:
            return "elsewhere"
        if self.known is None:
            return "unclear"
        if self.settled:
            return "fine" if self.known else "not_known"
        if self.cause is None and self.row is not None and self.row.status == OWED:
            return "owed"
        # A row that was lost, or that has a decision, is not a batch in progress.
        at_work = self.cause is None and self.before is not None and self.in_doubt_s is None
        return "at_work" if at_work and self.driver is not None and self.driver.alive else "in_doubt"

    @property
    def next_batch(self) -> int | None:
        """The batch that the sink writes next; None if unknown, because the last one is in doubt."""
        if self.row is None or self.row.status == DECIDED:
            return None
        if self.row.batch_id is None:
            return 0
        return self.row.batch_id if self.row.status == OWED else self.row.batch_id + 1

    @property
    def age_s(self) -> float | None:
        """Seconds since the state row was changed, by the database's clock, if nothing was claimed.

        In mid-batch a healthy job may be in doubt for a moment.
        """
        return self.row.age_s if self.row is not None and self.dry_run else None

    @property
    def in_doubt_s(self) -> float | None:
        """Seconds for which the database has had a batch that Kafka lacks, by the same clock; None if there is none.

        Unlike `age_s` it grows while a job keeps starting and failing.
        """
        return None if self.row is None else self.row.in_doubt_s

    @property
    def waits_s(self) -> float | None:
        """Seconds for which one side has waited for the other: `in_doubt_s`, or else `prepared_s`."""
        return self.prepared_s if self.in_doubt_s is None else self.in_doubt_s

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON. All names are always present, with null for missing values; see docs/reference/json.md.

        ``reason`` and ``remedies`` are texts for people, which programs must not parse.
        """
        kafka, driver = self.kafka, self.driver
        producer, session = kafka and kafka.producer, driver and driver.session
        as_they_are = ("transactional_id", "condition", "settled", "known", "elsewhere", "dry_run", "next_batch")
        return {
            **{name: getattr(self, name) for name in (*as_they_are, "age_s", "in_doubt_s", "prepared_s")},
            "cause": None if self.cause is None else self.cause.value,
            "actions": [action.kind for action in self.actions],
            "before": _row_fields(self.before),
            "row": _row_fields(self.row),
            "kafka": kafka
            and {
                "state": kafka.state.value,
                "producer_id": producer and producer.producer_id,
                "producer_epoch": producer and producer.epoch,
                "transaction_version": kafka.transaction_version,
                "cluster_id": kafka.cluster_id,
            },
            "driver": driver
            and {
                "alive": driver.alive,
                "pid": session and session.pid,
                "host": session and (session.address or None),
                "role": session and session.role,
                "claim": self.row and self.row.generation,
                "since": self.row and self.row.claimed_at.isoformat(),
            },
            "reason": self.reason,
            "remedies": list(self.remedies),
        }

    def __str__(self) -> str:
        now = "no state row" if self.row is None else shown(self.row)
        database = shown(self.before) if self.before is not None else "no state row"
        if self.before is None and self.row is not None:
            database += f"; {now}"
        # What the numbers are by which database and Kafka identify transactions.
        shown_id = "" if self.row is None else self.row.prepared_transaction_state
        if not shown_id and self.kafka is not None and self.kafka.producer is not None:
            shown_id = str(self.kafka.producer)
        producer, _, epoch = shown_id.partition(":")
        names = f"            {shown_id} is the Kafka transaction with producer id {producer}, epoch {epoch}"
        lines = [
            f"{self.transactional_id}: {self.headline}",
            *([f"  reason:   {self.reason}"] if self.reason and self.condition not in _HEALTHY else []),
            f"  database: {database}",
            f"  Kafka:    {'not asked' if self.kafka is None else self.kafka}",
            *([names] if shown_id else []),
            *([f"  batch:    {batch_line(self.row)}"] if self.dry_run and self.row is not None else []),
            *([f"  changed:  {duration(self.age_s)} ago"] if self.age_s is not None else []),
            *([f"  driver:   {_LIFE[self.driver.alive]} ({self.driver.detail})"] if self.driver is not None else []),
            *([f"  in doubt: for {duration(self.in_doubt_s)}"] if self.in_doubt_s is not None else []),
            *([f"  open:     for {duration(self.prepared_s)}, not decided"] if self.prepared_s is not None else []),
            *(f"  - {action}" for action in self.actions),
            *(["  - recovery would stop: a person must decide"] if self.dry_run and self.cause is not None else []),
            *([f"  now:      {now}"] if not self.dry_run and now != database else []),
            *(f"  to do:    {remedy}" for remedy in self.remedies if not self.settled),
        ]
        return "\n".join(lines)

    @property
    def headline(self) -> str:
        """The overall condition, in one line for people."""
        condition, batch = self.condition, None if self.row is None else self.row.batch_id
        since = "" if self.waits_s is None else f" for {age(self.waits_s)}"
        if condition in _HEALTHY:
            return self._well(batch)
        if condition == "owed":
            return f"Kafka lacks batch {batch}{since}: the database has it, and Kafka aborted it"
        return self._doubt(batch, since) if condition == "in_doubt" else _OTHERWISE[condition]

    def _well(self, batch: int | None) -> str:
        if self.kafka is None:
            return "nothing is in doubt in the database; Kafka was not read"
        touched = "" if self.age_s is None else f", {age(self.age_s)} ago"
        # A batch whose Kafka half was given up has no digest.
        given_up = self.row is not None and self.row.record_count and not self.row.digest
        last = (
            "no batch yet" if batch is None else f"batch {batch} {'settled' if given_up else 'on both sides'}{touched}"
        )
        if self.condition == "at_work":
            return f"healthy, {last}; the next batch is in progress"
        return f"{'settled now' if self.actions and not self.dry_run else 'healthy'}, {last}"

    def _doubt(self, batch: int | None, since: str) -> str:
        if self.cause is not None:
            return f"STOPPED{since}, a person must decide ({self.cause.value})"
        if self.row is not None and self.before is None:
            return "IN DOUBT, the state row is lost"
        if self.row is None or self.row.status != DECIDED:
            return f"IN DOUBT{since}, Kafka has an open transaction that the database has not decided"
        doubt = f"the database has batch {batch}, and Kafka has not confirmed it"
        alive = self.driver is not None and self.driver.alive
        return f"batch {batch} is in progress{since}: {doubt}" if alive else f"IN DOUBT{since}, {doubt}"


def age(seconds: float) -> str:
    """Seconds in the largest unit of which there are some, such as ``3 min``."""
    whole = int(seconds)
    unit, length = next(((unit, length) for unit, length in _UNITS if whole >= length), ("s", 1))
    return f"{whole // length} {unit}"


def duration(seconds: float) -> str:
    """Seconds as ``h:mm:ss``, preceded by days if there are any."""
    days, rest = divmod(int(seconds), 86_400)
    hours, rest = divmod(rest, 3_600)
    return f"{f'{days}d ' if days else ''}{hours}:{rest // 60:02}:{rest % 60:02}"


def _row_fields(row: StateRow | None) -> dict[str, Any] | None:
    if row is None:
        return None
    left_out = {"transactional_id", "age_s", "decided_age_s", "rebuilt_from"}
    values = {name: None if value == "" else value for name, value in vars(row).items() if name not in left_out}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


@dataclass(frozen=True)
class NamedConnection:
    """Both sides as words of a command."""

    #: The flags, for a shell; '' if the environment has all values.
    words: str
    #: Whether they, or the environment, name a database.
    database: bool


#: How the command line has named both sides, if a command prints. Printed commands then use the same words, with the
#: same file or variable for secrets.
_AS_GIVEN: ContextVar[NamedConnection | None] = ContextVar("connection as given", default=None)


@contextmanager
def flags_as_given(connection: NamedConnection) -> Iterator[None]:
    """In the block, commands name both sides in these words, and not by the options."""
    before = _AS_GIVEN.set(connection)
    try:
        yield
    finally:
        _AS_GIVEN.reset(before)


def sink_flags(options: CommonOptions) -> str:
    """Flags for a sink and both sides, without passwords; they name the flag for a file of brokers' credentials."""
    # PostgreSQL's client reads the password from PGPASSWORD or ~/.pgpass, or the command calls ``password_command``.
    sink = flags({"transactional_id": options.transactional_id})
    given = _AS_GIVEN.get()
    if given is not None:
        return " ".join([*sink, given.words] if given.words else sink)
    named = {"database": without_secrets(options.database)}
    for item in options_of(CommonOptions):
        value = getattr(options, item.name)
        if item.name in READER_FLAGS and value != item.default:
            named[item.name] = as_identifier(value) if setting_of(item).parse is parse_identifier else value
    servers, *secured = _kafka(options.kafka)
    return " ".join([*sink, servers, *flags(named), *secured])


def kafka_connection(kafka: KafkaOptions) -> NamedConnection:
    """The flags of a cluster, for commands that need no database."""
    return _AS_GIVEN.get() or NamedConnection(" ".join(_kafka(kafka)), database=False)


def _kafka(kafka: KafkaOptions) -> list[str]:
    secured = [] if kafka.security_protocol == "PLAINTEXT" else ["--command-config FILE"]
    return [*flags({"bootstrap_server": ",".join(kafka.bootstrap_servers)}), *secured]


#: Order of a summary: fine sinks are first, as most are.
_SUMMED_UP: Final[tuple[Condition, ...]] = ("fine", "at_work", "in_doubt", "owed", "unclear", "not_known", "elsewhere")
#: Conditions that need a person, which exit code 3 reports.
IN_DOUBT: Final[frozenset[Condition]] = frozenset({"in_doubt", "owed"})


@dataclass(frozen=True)
class UnreadableSink:
    transactional_id: str
    side: Literal["database", "kafka"]
    problem: str


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """Result of `status`. Programs read the fields; `summary` is for people.

    Attributes:
        sinks: one report for each sink, by transactional id.
        unreadable: sinks with invalid data. If only Kafka's is invalid, they are also among ``sinks``, as the database
            shows them.
        kafka_problem: why Kafka could not be read; then the reports have only what the database knows. '' if it could.
        database_problem: why the database could not be read; then ``sinks`` are the transactions that Kafka shows. ''
            if it could.
        note: if there are no sinks, what was found instead. '' if there are some.
    """

    sinks: tuple[RecoveryReport, ...] = ()
    unreadable: tuple[UnreadableSink, ...] = ()
    kafka_problem: str = ""
    database_problem: str = ""
    note: str = ""

    @property
    def in_doubt(self) -> tuple[RecoveryReport, ...]:
        """The sinks that need a person: in doubt for a reason other than a batch in progress, or owed.

        Sinks of other clusters are not included.
        """
        return tuple(report for report in self.sinks if report.condition in IN_DOUBT)

    @property
    def complete(self) -> bool:
        """True if both sides were read, and all data was valid."""
        return not (self.unreadable or self.kafka_problem or self.database_problem)

    @property
    def summary(self) -> str:
        """One line: the number of sinks, by condition, and the age of the oldest of those that need a person."""
        parts = []
        for condition in _SUMMED_UP:
            those = [report for report in self.sinks if report.condition == condition]
            ages = [report.waits_s for report in those if report.waits_s is not None and condition in IN_DOUBT]
            oldest = f" (for {duration(max(ages))})" if ages else ""
            word = "healthy" if condition == "fine" else condition.replace("_", " ")
            parts += [f"{len(those)} {word}{oldest}"] if those else []
        parts += [f"{len(self.unreadable)} unreadable"] if self.unreadable else []
        ids = {sink.transactional_id for sink in self.sinks} | {row.transactional_id for row in self.unreadable}
        return f"{counted(len(ids), 'sink')}{': ' if parts else ''}{', '.join(parts)}"

    def as_json(self) -> dict[str, Any]:
        """The fields as JSON; see docs/reference/json.md. ``summary`` and ``note`` are texts for people."""
        return {
            "summary": self.summary,
            "sinks": [report.as_json() for report in self.sinks],
            "in_doubt": [report.transactional_id for report in self.in_doubt],
            "unreadable": [dict(vars(each)) for each in self.unreadable],
            "kafka_problem": self.kafka_problem or None,
            "database_problem": self.database_problem or None,
            "note": self.note or None,
        }

"""Survey of one or many sinks on both sides within one time-out, even if one side does not answer.

Each side is read in its own thread. A thread that hangs (an unresolved host name, a port that accepts and does not
answer) is abandoned at the time-out, and the other side's answer is still shown.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError as WaitedTooLongError
from contextlib import closing
from contextvars import copy_context
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, Final, TypeVar

from jdbc_state import SqlStateStore, StateRow, StoreSettings
from jdbc_state.errors import StateStoreError
from jdbc_state.sessions import Liveness
from jdbc_state.sink_log import sink_log
from jdbc_state.survey import Survey
from spark_2pc_sink.choices import HaltCause
from spark_2pc_sink.clock import Deadline, SystemClock
from spark_2pc_sink.errors import ConfigurationError, KafkaError, KafkaTimeoutError, RemoteProtocolError
from spark_2pc_sink.ids import ENDING_STATES, TransactionState
from spark_2pc_sink.kafka.cluster import Cluster
from spark_2pc_sink.kafka.coordinator_calls import TransactionDescription, describe_all
from spark_2pc_sink.kafka.transaction_client import TransactionClient
from spark_2pc_sink.kafka.transaction_queries import TransactionQueries
from spark_2pc_sink.options import CommonOptions, KafkaOptions
from spark_2pc_sink.plural import first_of
from spark_2pc_sink.recipe.resolve import KafkaView, RowStatus
from spark_2pc_sink.recovery.diagnosis import Diagnosis, open_s, with_choices
from spark_2pc_sink.recovery.report import RecoveryReport, StatusReport, UnreadableSink, owed_reason, problem_of, shown

#: Percentage of the time-out for the database; the rest is for asking Kafka about ids that only it knows.
_DATABASE_PERCENT: Final = 60
#: The same until Kafka's own time-out: its reason must arrive before the survey stops waiting.
_KAFKA_PERCENT: Final = 90
#: libpq's minimum for a connection.
_CONNECT_S_MIN: Final = 2
#: How many transactions without a row a note names.
_NAMED_MAX: Final = 5

_KAFKA_REFUSALS: Final = (KafkaError, KafkaTimeoutError, RemoteProtocolError)

_Answer = TypeVar("_Answer")
_UNSEEN: Final = "Kafka was not read"


class TimedCluster(Cluster):
    """A cluster whose requests share one deadline."""

    def __init__(self, options: KafkaOptions, end: Deadline) -> None:
        super().__init__(options)
        self._end = end

    def deadline(self, limit_ms: int | None = None, *, backoff_ms: int | None = None) -> Deadline:
        wanted_ms = self.options.max_block_ms if limit_ms is None else limit_ms
        return super().deadline(min(wanted_ms, int(self._end.remaining_s * 1000)), backoff_ms=backoff_ms)


class SinkSurvey:
    """One look at the sinks of a database and a cluster; the transactional id in ``options`` is not used."""

    def __init__(
        self, options: CommonOptions, *, transactional_id: str | None, timeout_s: int, match: str | None = None
    ) -> None:
        self._options = options
        self._only = transactional_id
        self._match = match
        self._timeout_s = timeout_s
        self._clock = SystemClock()
        self._end = self._until(100)
        self._store = SqlStateStore(options.database, self._store_settings())
        #: Findings that used both sides, while the Kafka thread is still running.
        self._reports: dict[str, RecoveryReport] = {}
        self._unreadable: dict[str, UnreadableSink] = {}
        self._note = ""

    def run(self) -> StatusReport:
        """Read both sides, and combine the answers at the time-out."""
        end_of_database = self._until(_DATABASE_PERCENT)
        survey = _in_thread("database of a status", self._read_database)
        asking = _in_thread("Kafka of a status", lambda: self._ask_kafka(survey, end_of_database))
        database_problem = _problem_of(survey, end_of_database, "the database", (StateStoreError,))
        kafka_problem = _problem_of(asking, self._end, "Kafka", _KAFKA_REFUSALS)
        reports, unreadable, note = dict(self._reports), dict(self._unreadable), self._note
        if not database_problem:
            found = survey.result()
            rows, invalid = self._requested(found)
            for name in rows.keys() - reports.keys():
                reports[name] = by_the_database(rows[name], driver=found.drivers.get(name))
            unreadable |= invalid
            if not (reports or unreadable):
                note = self._nothing_there(found) + note
        return StatusReport(
            sinks=tuple(reports[name] for name in sorted(reports)),
            unreadable=tuple(unreadable[name] for name in sorted(unreadable)),
            kafka_problem=kafka_problem,
            database_problem=database_problem,
            note=note,
        )

    def _read_database(self) -> Survey:
        with closing(self._store):
            return self._store.survey(self._only)

    def _store_settings(self) -> StoreSettings:
        share_ms = self._timeout_s * 10 * _DATABASE_PERCENT
        given = self._options.store_settings()
        return replace(
            given,
            connect_timeout_s=max(_CONNECT_S_MIN, min(given.connect_timeout_s, share_ms // 1000)),
            connect_deadline_ms=0,
            claim_lock_timeout_ms=min(given.claim_lock_timeout_ms, share_ms // 2),
            commit_timeout_ms=share_ms,
        )

    def _requested(self, survey: Survey) -> tuple[dict[str, StateRow], dict[str, UnreadableSink]]:
        """The requested sinks by id: their rows, or what stands for a lost one; and the invalid ones."""
        rows, invalid = {}, {bad.transactional_id: bad.problem for bad in survey.unreadable}
        for row in (*survey.rows, *survey.lost):
            if problem := problem_of(row):
                invalid[row.transactional_id] = problem
            else:
                rows[row.transactional_id] = row
        return (
            {name: row for name, row in rows.items() if self._is_requested(name)},
            {name: UnreadableSink(name, "database", why) for name, why in invalid.items() if self._is_requested(name)},
        )

    def _is_requested(self, transactional_id: str) -> bool:
        return self._match is None or fnmatchcase(transactional_id, self._match)

    def _nothing_there(self, survey: Survey) -> str:
        table = f"{self._options.state_schema}.{self._options.state_table} in {self._store.database.label}"
        if self._match is not None and (survey.rows or survey.lost or survey.unreadable):
            return f"no sink in table {table} has an id that matches {self._match!r}"
        state = "and its history are empty" if survey.table_exists else "does not exist"
        return (
            f"table {table} {state}: no sink has run with it, or the sinks use another table (state_schema, "
            "state_table) or database"
        )

    def _ask_kafka(self, survey: Future[Survey], end_of_database: Deadline) -> None:
        end = self._until(_KAFKA_PERCENT)
        with TimedCluster(self._options.kafka, end) as cluster:
            cluster.features()
            try:
                found = survey.result(end_of_database.remaining_s)
            except (StateStoreError, WaitedTooLongError):
                # The reason is reported by the wait for the database.
                self._survey_kafka_alone(cluster)
                return
            self._survey_both(cluster, found, end)

    def _survey_both(self, cluster: Cluster, survey: Survey, end: Deadline) -> None:
        features = cluster.features()
        rows, unreadable = self._requested(survey)
        asked = [name for name, row in rows.items() if row.cluster_id in (None, features.cluster_id)]
        if not (rows or unreadable) and self._only is not None:
            asked = [self._only]
        described = describe_all(cluster, asked, cluster.deadline())
        for name in asked:
            driver = survey.drivers.get(name)
            self._survey_one(self._diagnosis(cluster, name, end), rows.get(name), described[name], driver)
        for name in rows.keys() - {*asked}:
            unasked = KafkaView(TransactionState.UNKNOWN, None, features.transaction_version, features.cluster_id)
            report = self._diagnosis(cluster, name, self._end).judge(rows[name], unasked)
            self._reports[name] = replace(report, kafka=None)
        if not (asked or unreadable or rows):
            # Open transactions without a row: a sink's row may be lost with its history.
            open_ids = list(filter(self._is_requested, TransactionQueries(cluster).open_ids()))
            names = first_of(open_ids, _NAMED_MAX)
            self._note = f". Kafka has open transactions of {', '.join(names)}" if names else ""

    def _survey_one(
        self,
        diagnosis: Diagnosis,
        row: StateRow | None,
        described: TransactionDescription | KafkaError | KafkaTimeoutError,
        driver: Liveness | None,
    ) -> None:
        name = diagnosis.options.transactional_id
        try:
            if isinstance(described, Exception):
                raise described
            report = replace(diagnosis.judge(row, diagnosis.view_of(described)), driver=driver)
            if report.cause is HaltCause.DATABASE_BEHIND and report.driver_may_live:
                # The row was read before Kafka, and a running driver may have written a batch in between.
                try:
                    with closing(self._store):
                        report = replace(diagnosis.dry_run(), driver=driver)
                except StateStoreError as error:
                    sink_log(__name__, name).warning("both sides were not read a second time: %s", error)
        except _KAFKA_REFUSALS as error:
            self._unreadable[name] = UnreadableSink(name, "kafka", str(error))
            if row is not None:
                self._reports[name] = by_the_database(row, driver=driver)
            return
        self._reports[name] = with_choices(report, diagnosis.options)

    def _survey_kafka_alone(self, cluster: Cluster) -> None:
        ids = TransactionQueries(cluster).open_ids() if self._only is None else [self._only]
        for name, described in describe_all(cluster, filter(self._is_requested, ids), cluster.deadline()).items():
            try:
                if isinstance(described, Exception):
                    raise described
                view = self._diagnosis(cluster, name, self._end).view_of(described)
            except (*_KAFKA_REFUSALS, ConfigurationError) as error:
                # A configuration error: the id is not valid for a sink.
                self._unreadable[name] = UnreadableSink(name, "kafka", str(error))
            else:
                self._reports[name] = by_kafka(name, view)

    def _diagnosis(self, cluster: Cluster, name: str, end: Deadline) -> Diagnosis:
        limit_ms = min(self._options.settle_deadline_ms, max(1, int(end.remaining_s * 1000)))
        options = replace(self._options, transactional_id=name, settle_deadline_ms=limit_ms)
        client = TransactionClient(cluster, name, options.kafka)
        return Diagnosis(options=options, kafka=client, store=self._store, clock=self._clock)

    def _until(self, percent: int) -> Deadline:
        return Deadline(self._clock, self._timeout_s * 10 * percent)


def _in_thread(name: str, ask: Callable[[], _Answer]) -> Future[_Answer]:
    """Ask in a daemon thread, which is not waited for."""
    future: Future[_Answer] = Future()

    def run() -> None:
        try:
            future.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is waited for
            future.set_exception(error)

    # The caller's context applies there too, such as the names of both sides in commands for people.
    threading.Thread(target=copy_context().run, args=(run,), name=name, daemon=True).start()
    return future


def _problem_of(future: Future[Any], end: Deadline, side: str, refusals: tuple[type[Exception], ...]) -> str:
    """Why a side has not answered; '' if it has."""
    try:
        future.result(end.remaining_s)
    except WaitedTooLongError:
        return f"{side} did not answer within {end.limit_ms / 1000:g} s"
    except refusals as error:
        return str(error)
    return ""


def by_the_database(row: StateRow, *, driver: Liveness | None) -> RecoveryReport:
    """The report on a sink if Kafka could not be read."""
    status, lost = RowStatus(row.status), row.rebuilt_from is not None
    if lost:
        reason = f"the state row is lost; the newest line of its history has {shown(row)}. {_UNSEEN}"
    elif status is RowStatus.DECIDED:
        reason = f"the database has decided batch {row.batch_id}. {_UNSEEN}, so it is unknown whether it has committed"
    elif status is RowStatus.OWED:
        reason = f"{owed_reason(row)}. {_UNSEEN}"
    else:
        reason = f"nothing is in doubt in the state row. {_UNSEEN}, so an open transaction would go unnoticed"
    return RecoveryReport(
        transactional_id=row.transactional_id,
        settled=not lost and status in {RowStatus.NONE, RowStatus.DONE},
        dry_run=True,
        before=None if lost else row,
        row=row,
        driver=driver,
        reason=reason,
    )


def by_kafka(transactional_id: str, kafka: KafkaView) -> RecoveryReport:
    """The report on a transactional id if the database could not be read."""
    shows = "is ending a" if kafka.state in ENDING_STATES else "has no open"
    if kafka.state is TransactionState.ONGOING:
        shows = "has an open"
    return RecoveryReport(
        transactional_id=transactional_id,
        settled=False,
        known=None,
        dry_run=True,
        kafka=kafka,
        prepared_s=open_s(kafka),
        reason=f"Kafka {shows} transaction of this id. The database was not read, so it is unknown whether it has "
        "decided",
    )

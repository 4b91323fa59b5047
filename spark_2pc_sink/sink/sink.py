"""``DualWriteSink``: the object that a user passes to ``foreachBatch``; and which sinks the queries have called."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Final, Literal, ParamSpec, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType
from sqlalchemy import Connection, make_url

from jdbc_state.sink_log import FIELD, log_for_sink, sink_log
from spark_2pc_sink.causes import in_words
from spark_2pc_sink.choices import Facts, HaltCause, HaltError
from spark_2pc_sink.errors import BatchAttemptsExhaustedError, ConfigurationError, DualWriteError, LocalProtocolError
from spark_2pc_sink.options import Records, Rows, SinkOptions, checks_keywords
from spark_2pc_sink.options.settings import options_of, refused, setting_of, with_options
from spark_2pc_sink.options.sources import PREFIX, SourcedOptions, read_environment, read_toml_file
from spark_2pc_sink.sink.check.check import check_sink
from spark_2pc_sink.sink.check.findings import CheckReport
from spark_2pc_sink.sink.check.spark_side import rows_with
from spark_2pc_sink.sink.driver.batch_values import RunIds
from spark_2pc_sink.sink.driver.on_decide import DecidingBatch
from spark_2pc_sink.sink.job.calling_query import Backfill, CallingQuery, ConnectQuery, check_call, check_frame
from spark_2pc_sink.sink.job.classic_query import ClassicQuery
from spark_2pc_sink.sink.job.session_facts import install_log_filter, is_connect
from spark_2pc_sink.sink.query_run import QueryRun
from spark_2pc_sink.sink.report import BatchReport

_log = sink_log(__name__)

P = ParamSpec("P")
R = TypeVar("R")


def _raising_once(method: Callable[P, R]) -> Callable[P, R]:
    """Log the error that ends a call in one line, and raise it without its frames and causes.

    Spark prints the traceback of each call four times. Errors raised on purpose state cause and remedy; the log has
    their frames at DEBUG, and those of unforeseen errors at ERROR.
    """

    @wraps(method)
    def once(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return method(*args, **keywords)
        except DualWriteError as error:
            sink: Any = args[0]
            log = sink_log(__name__, sink._options.transactional_id)  # noqa: SLF001 - a method of this class
            log.debug("traceback of the following error", exc_info=True)
            cause = error.__cause__ if isinstance(error, BatchAttemptsExhaustedError) else None
            told = None if isinstance(cause, (DualWriteError, PySparkException)) else cause
            log.error("%s", in_words(error), exc_info=told)  # noqa: TRY400 - what was foreseen needs no traceback
            # Still accessible to programs there.
            error.__context__ = error.__cause__ or error.__context__
            raise error.with_traceback(None) from None

    return once


def _checking_arguments(method: Callable[P, R]) -> Callable[P, R]:
    """Report a call of a method of batch and id as `check_call` does, where Python would report a missing argument."""

    @wraps(method)
    def checked(*args: P.args, **keywords: P.kwargs) -> R:
        check_call(*args[1:], **keywords)
        return method(*args, **keywords)

    return checked


@with_options(SinkOptions)
class DualWriteSink:
    """Writes each micro-batch of a streaming query to Kafka and PostgreSQL, exactly once to both.

    Pass it to ``writeStream.foreachBatch(sink)``. It can be pickled. One object may be used by one query at a time,
    with sequential calls. A reader of the topic with isolation.level=read_committed and a reader of the table see the
    same rows, each once, even after crashes (KIP-939, "Normal processing recipe").

    Raises:
        ConfigurationError: an option is unknown, has a bad value, or contradicts another. No connection was made.

    All options are keywords. docs/reference/options.md has their types and ranges too.
    """

    _options: SinkOptions
    _run: QueryRun | None
    _started_in: str | None

    @checks_keywords
    def __init__(
        self,
        *,
        transactional_id: str,
        kafka: Mapping[str, str | int | Callable[[str], Any]],
        database: str,
        database_password: Callable[[], str] | None = None,
        password_command: str | None = None,
        require_tls: bool = False,
        accept_database: str | None = None,
        topic: str | None = None,
        key: str | None = None,
        value: str | None = None,
        headers: str | None = None,
        partition: str | None = None,
        key_format: Literal["raw", "avro", "protobuf"] = "raw",
        value_format: Literal["json", "avro", "protobuf"] = "json",
        value_schema: str | None = None,
        value_schema_name: str | None = None,
        value_subject_name_strategy: Literal["topic", "record", "topic_record"] = "topic",
        schema_registry: Mapping[str, str | int | bool] | None = None,
        table: str | None = None,
        columns: Mapping[str, str] | None = None,
        create_table: bool = False,
        primary_key: list[str] | tuple[str, ...] = (),
        schema_evolution: Literal["strict", "add_columns"] = "strict",
        mode: Literal["append", "upsert", "insert_ignore"] = "append",
        upsert_keys: list[str] | tuple[str, ...] = (),
        upsert_order_by: str | None = None,
        upsert_late_rows: Literal["replace", "keep_newer"] = "replace",
        delete_when: str | None = None,
        update_columns: list[str] | tuple[str, ...] | None = None,
        upsert_where: str | None = None,
        unchanged_when: Mapping[str, str] | None = None,
        upsert_superseded: Literal["send_first", "leave_out"] = "send_first",
        tombstones: bool = False,
        writes: Sequence[Records | Rows] = (),
        bad_rows: Literal["fail", "dead_letter"] = "fail",
        max_bad_rows: float | str = 100,
        dead_letter_table: str | None = None,
        dead_letter_topic: str | None = None,
        on_batch: Callable[[BatchReport], object] | None = None,
        on_decide: Callable[[Connection, DecidingBatch], object] | list[str] | tuple[str, ...] | None = None,
        openlineage_namespace: str | None = None,
        adopt: bool = False,
        accept_loss: str | None = None,
        reason: str | None = None,
        accept_replay: int | None = None,
        query_name: str | None = None,
        state_schema: str = "public",
        state_table: str = "kafka_transaction_state",
        history_table: str | None = None,
        history_batches: int = 1_000,
        batch_attempts_max: int = 3,
        driver_port: int = 0,
        driver_port_range: int = 16,
        connect_timeout_s: int = 10,
        connect_deadline_ms: int = 30_000,
        claim_lock_timeout_ms: int = 2_000,
        claim_deadline_ms: int = 30_000,
        lock_timeout_ms: int = 30_000,
        statement_timeout_ms: int = 600_000,
        idle_in_transaction_timeout_ms: int = 60_000,
        commit_timeout_ms: int = 60_000,
        settle_deadline_ms: int = 120_000,
        decision_margin_ms: int = 10_000,
    ) -> None:
        options = SinkOptions.parse(**{name: value for name, value in locals().items() if name != "self"})
        DualWriteSink.__setstate__(self, {"_options": options, "_started_in": None})

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], **more: Any) -> DualWriteSink:
        """A sink with the options of a TOML file, which ``spark-2pc --config`` reads too. See docs/configuration.md.

        Args:
            path: path of the file, read here, on the driver.
            more: options that a file cannot contain, such as ``on_batch``, or overrides of its options.

        Raises:
            ConfigurationError: the file cannot be read, or one of its options is refused; the error names the file.
        """
        return cls._given_by(read_toml_file(path), more)

    @classmethod
    def from_env(cls, prefix: str = PREFIX, **more: Any) -> DualWriteSink:
        """A sink with options from the environment, such as ``SPARK_2PC_TABLE``. See docs/configuration.md.

        Args:
            prefix: prefix of the variables.
            more: as in `from_toml`.

        Raises:
            ConfigurationError: a variable with the prefix is not an option, or an option is refused; the error names
                the variable.
        """
        return cls._given_by(read_environment(os.environ, prefix=prefix), more)

    @classmethod
    def _given_by(cls, found: SourcedOptions, more: dict[str, Any]) -> DualWriteSink:
        with found.named_in_errors(but=more):
            return cls(**{**found.keywords, **more})

    @_raising_once
    @_checking_arguments
    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write one micro-batch; Spark calls this.

        Raises:
            ConfigurationError: not called with (DataFrame, batch_id), e.g. passed to foreach(), not foreachBatch().
            LocalProtocolError: another thread has been inside a call on this sink for more than ``claim_deadline_ms``.
            DualWriteError: see `spark_2pc_sink.errors`; the query fails with it, and a restart goes on from there.
        """
        with self._alone(f"write batch {batch_id} to"):
            self._write(batch, batch_id, explicit_id=False)

    @_raising_once
    def write(self, df: DataFrame, *, batch_id: int) -> BatchReport:
        """Write a batch DataFrame exactly once under its id: for backfills.

        The same frame under the same id is written once, however often this is called and even after crashes. A
        restarted backfill may begin again with any id that it has written; each is compared with what both sides have,
        and skipped.

        Args:
            df: the rows. It must return the same rows when it is evaluated again.
            batch_id: a number chosen by you, from 0 on. Ids must ascend, and may have gaps.

        Returns:
            What was written; ``placement`` says whether it was skipped.

        Raises:
            ConfigurationError: a stream, a bad id, or one that the sink has passed without recording it.
            LocalProtocolError: another thread has been inside a call on this sink for more than ``claim_deadline_ms``.
            DualWriteError: see `spark_2pc_sink.errors`; the next call, or the next start, goes on from there.
        """
        check_frame(df, batch_id)
        with self._alone(f"write batch {batch_id} to"):
            return self._write(df, batch_id, explicit_id=True)

    def check(self, schema: StructType | str | None = None) -> CheckReport:
        """Check what the first batch would encounter; writes no row and no record. See docs/check.md.

        Executors are tested if there is an active Spark session.

        Args:
            schema: schema of a batch, or SQL columns: 'order_id BIGINT, total DOUBLE'. Expressions and types are
                compared with the table, using the active Spark session. None: they are not.

        Raises:
            ConfigurationError: there is no Spark session, or the text is not a valid schema.
        """
        rows = None if schema is None else rows_with(schema)
        return check_sink(self._options, rows, spark=SparkSession.getActiveSession())

    def close(self) -> None:
        """Close the newest run's connections. Call it in a process that continues after its query has ended.

        Another call of the sink starts a new run.

        Raises:
            LocalProtocolError: a thread has been inside a call on this sink for more than ``claim_deadline_ms``.
        """
        with self._alone("close the sink of"):
            run, self._run = self._run, None
            if run is not None:
                run.close()

    @contextmanager
    def _alone(self, operation: str) -> Iterator[None]:
        """Keep two calls apart: the later one would consider the other failed, claim again, and supersede it.

        The other call may be of a stopped query. Spark does not wait for the Python side, which soon notices.
        """
        wait_ms = self._options.claim_deadline_ms
        if not self._calls.acquire(timeout=wait_ms / 1000):
            raise LocalProtocolError(
                operation=f"{operation} {self._options.transactional_id!r}",
                state=f"busy in another thread for {wait_ms} ms",
                rule="calls must not overlap; give each parallel writer its own sink and transactional_id",
            )
        try:
            with log_for_sink(self._options.transactional_id):
                yield
        finally:
            self._calls.release()

    def _write(self, batch: DataFrame, batch_id: int, *, explicit_id: bool) -> BatchReport:
        run, spark = self._run, batch.sparkSession
        query: CallingQuery
        if run is not None and run.query.explicit_batch_ids == explicit_id and run.query.is_current_run(spark):
            query = run.query
        else:
            if explicit_id:
                query = Backfill(self._options.transactional_id)
            elif is_connect(spark):
                query = ConnectQuery.of(spark, self._options.query_name, self._started_in)
            else:
                query = ClassicQuery.of(spark)
            sinks_of_runs.check_in(query.ids, self._options, is_active=query.is_active)
        with sinks_of_runs.call(query.ids, self._options.transactional_id, batch_id):
            report = self._run_of(query, batch).write(batch, batch_id)
        # Formatted only if it is logged; begins with the id.
        _log.logger.info("%s", report, extra={FIELD: report.transactional_id})
        if self._options.on_batch is not None:
            self._options.on_batch(report)
        return report

    def __getstate__(self) -> dict[str, Any]:
        # Spark Connect pickles the sink where the stream is started, and passes the copy no information about the
        # query. It then logs the request that contains it.
        install_log_filter()
        return {"_options": self._options, "_started_in": self._started_in or ConnectQuery.session_here()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._options = state["_options"]
        self._started_in = state["_started_in"]
        self._run = None
        self._calls = threading.Lock()

    def __repr__(self) -> str:
        given = self._options.given()
        told = " ".join(f"{name}={given[name]!r}" for name in ("topic", "table") if name in given)
        if self._options.writes:
            told = f"writes={list(map(str, self._options.writes))}"
        return f"<DualWriteSink {self._options.transactional_id!r} {told}>"

    def _run_of(self, query: CallingQuery, batch: DataFrame) -> QueryRun:
        """The run of the query, which begins with its first batch: refuse unsafe configurations, then recover.

        If a run is refused, the previous one stays in place.
        """
        if self._run is not None and self._run.query is query:
            return self._run
        started = QueryRun(self._options, query, batch.sparkSession)
        try:
            started.start(batch)
        except BaseException:
            started.close()
            raise
        if self._run is not None:
            self._run.close()
        self._run = started
        return started


#: Halt causes that the next batch sees if the function skipped a batch.
_MISSING: Final = frozenset({HaltCause.GAP, HaltCause.NOT_THE_FIRST_BATCH, HaltCause.NOT_HANDED_OVER})


@dataclass
class _Known:
    """First sink seen for an id in a run, and the run's latest call of it."""

    run_id: str
    written: Mapping[str, object]
    #: Batch of the latest call; None before the first one.
    batch_id: int | None = None
    #: The latest call's error; None if both sides have the batch.
    error: str | None = None
    #: Options were refused, so no data was written: a user who corrects them in the same process may go on.
    refused: bool = False

    def explain(self, halt: HaltError, batch_id: int) -> HaltError:
        """The halt of the next call in the same run, with this call as its reason if it caused it."""
        if self.batch_id is None:
            return halt
        if self.error is not None and batch_id > self.batch_id and halt.cause in _MISSING:
            reason = (
                f"your function continued after an error that the sink raised in batch {self.batch_id}, so Spark has "
                f"recorded that batch as finished: {self.error}. Let the sink's exceptions end the query"
            )
            return replace(halt, cause=HaltCause.NOT_HANDED_OVER, reason=reason, remedies=())
        if self.error is None and batch_id == self.batch_id and halt.cause is HaltCause.REPLAY_DIFFERS:
            reason = (
                f"your function has called the sink twice for batch {batch_id} in this run, the second time with "
                "different rows, none of which were written"
            )
            facts = Facts(batch=batch_id, known=frozenset({"called twice"}))
            return replace(halt, reason=reason, facts=facts, remedies=())
        return halt


class SinksOfRuns:
    """Remembers, for each query and transactional id, the newest run and what its sink writes. Thread-safe.

    No two sinks of a query may share a transactional id: the second would find each batch done by the first, and write
    no rows, without an error. Sinks are distinguished by what they write, not by object: a job may create its sink
    again in every call, and Spark may pass it a pickled copy.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], _Known] = {}
        self._lock = threading.Lock()

    def check_in(self, run: RunIds, options: SinkOptions, *, is_active: Callable[[str], bool]) -> None:
        """Record that a run calls a sink; refuse a different one with this transactional id."""
        written = what_is_written(options)
        identity = (run.query_id, options.transactional_id)
        with self._lock:
            known = self._known.get(identity)
            if known is None:
                self._known = {key: kept for key, kept in self._known.items() if is_active(key[0])}
            elif known.run_id == run.run_id:
                if known.written != written and not known.refused:
                    raise _another(options.transactional_id, known.written, written)
                known.written = written
                return
            self._known[identity] = _Known(run.run_id, written)

    @contextmanager
    def call(self, run: RunIds, transactional_id: str, batch_id: int) -> Iterator[None]:
        """One call of a sink: its outcome is recorded, and the previous call may explain a halt."""
        with self._lock:
            known = self._known.get((run.query_id, transactional_id))
            if known is None or known.run_id != run.run_id:
                # Spark has stopped this run, and a newer one has begun.
                known = _Known(run.run_id, {})
            before = known.batch_id
            went_on = known.error is not None and before != batch_id
        error: str | None = None
        refused = False
        try:
            yield
        except BaseException as failure:
            refused = isinstance(failure, ConfigurationError)
            error = f"{type(failure).__name__}: {failure}"
            if isinstance(failure, HaltError) and (explained := known.explain(failure, batch_id)) is not failure:
                raise explained from failure
            raise
        finally:
            # A halt does not hide the error that caused it.
            if error is None or not went_on:
                with self._lock:
                    known.refused = refused and (before is None or known.refused)
                    known.batch_id, known.error = batch_id, error
        if went_on:
            sink_log(__name__, transactional_id).error(
                "your function continued after an error of the sink in batch %d: both sides have that batch, but "
                "the next one may be lost; let the sink's exceptions end the query",
                before,
            )


def what_is_written(options: SinkOptions) -> dict[str, object]:
    """The options that tell two sinks apart, without user name and password in the database URL.

    Functions are excluded: a sink created in every call has new ones, and no two of these are equal.
    """
    given = options.given()
    names = [item.name for item in options_of(type(options)) if item.name in given and not setting_of(item).operational]
    written = {name: None if callable(given[name]) else given[name] for name in names}
    address = make_url(options.database)
    return written | {"database": f"{address.host}:{address.port}/{address.database}"}


def _another(transactional_id: str, known: Mapping[str, object], written: Mapping[str, object]) -> ConfigurationError:
    differ = [
        f"{name}={known[name]!r} there, {written[name]!r} here" for name in written if known[name] != written[name]
    ]
    rule = (
        f"this run of the query has called a different sink with this id, with {'; '.join(differ)}; if two sinks "
        "share an id, the second finds every batch done by the first and writes nothing"
    )
    remedy = "give each sink a transactional_id of its own; to change what one sink writes, stop the query and start "
    return refused("transactional_id", transactional_id, rule, f"{remedy}it with the change")


#: The record of this driver process.
sinks_of_runs: Final = SinksOfRuns()

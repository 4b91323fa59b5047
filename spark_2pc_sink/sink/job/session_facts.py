"""The Spark session of a batch: facts and services beyond its DataFrames.

Classic Spark runs the driver's JVM next to this process and provides all facts. A session of Spark Connect is a
client of a server: it has DataFrames and settings, and neither a SparkContext nor plans.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.util import inheritable_thread_target

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.errors import ConfigurationError, DualWriteError
from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.sink.stream.listener import StreamEndpoint

#: Py4J's modules that log calls and answers, and the logger of Spark Connect.
_PY4J: Final = ("py4j.clientserver", "py4j.java_gateway")
_CONNECT_LOG: Final = "pyspark.sql.connect.logging"
#: An argument of bytes, ``j`` and Base64 (``py4j.protocol.BYTES_TYPE``). A pickle that contains a secret is longer.
_BASE64: Final = re.compile(r"j[A-Za-z0-9+/]{32,}=*")
#: A function, or a whole request if compressed: a bytes field in protobuf's text format.
_FIELD: Final = re.compile(r'\b(command|data): "((?:[^"\\]|\\.){32,})"')


class _Withhold(logging.Filter):
    """Replaces bytes by their sizes in the log of Spark's clients, and drops errors that the sink has logged.

    At DEBUG Py4J logs each call to Spark's Java side with all its arguments, and the client of Spark Connect each
    request. These include pickled functions, whose contents, secrets included, can be decoded.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], DualWriteError):
            return False
        # A record that cannot be formatted is left to the handlers, which report it.
        with suppress(TypeError, ValueError):
            text = record.getMessage()
            shown = _BASE64.sub(lambda found: f"j({len(found[0]) - 1} characters of Base64)", text)
            shown = _FIELD.sub(lambda found: f"{found[1]}: ({len(found[2])} characters of bytes)", shown)
            if shown != text:
                record.msg, record.args = shown, None
        return True


_FILTER: Final = _Withhold()


def install_log_filter() -> None:
    """Attach the filter; idempotent."""
    # Spark creates its own logger class when it is imported: do not create a standard logger before that.
    for name in (*_PY4J, *({_CONNECT_LOG} & sys.modules.keys())):
        logging.getLogger(name).addFilter(_FILTER)


#: Aggregates that Spark calls non-deterministic because they depend on row order. A stream may well use them: if a
#: replay orders rows differently, the digest detects it.
_ORDER_DEPENDENT: Final = frozenset(
    {"AggregateExpression", "AnyValue", "CollectList", "CollectSet", "First", "Last", "ListAgg"}
)
#: Functions of the file that a task reads, and the equivalent columns of a file source, the same in each row.
_OF_FILES: Final = {
    "input_file_name()": "_metadata.file_path",
    "input_file_block_start()": "_metadata.file_block_start",
    "input_file_block_length()": "_metadata.file_block_length",
}


def elements_of(sequence: Any) -> Iterator[Any]:
    """The elements of a Scala Seq."""
    return (sequence.apply(index) for index in range(sequence.size()))


def refuse_unrepeatable(where: str, plan: Any) -> None:
    """Refuse a plan with rand(), uuid() or the like."""
    culprit = _culprit_in_plan(plan)
    if culprit is not None:
        raise _unrepeatable(where, culprit)


def _unrepeatable(where: str, culprit: str) -> ConfigurationError:
    remedy = (
        "derive the value from the data: hash(columns) in place of rand() or uuid(), a column that the source sets in "
        "place of the current time"
    )
    if culprit in _OF_FILES:
        remedy = f"select {_OF_FILES[culprit]} where the stream is read: it is the same in every replay"
    rule = "its result changes each time it is evaluated, so a replayed batch would have different rows"
    return refused(where, culprit, rule, remedy)


def _culprit_in_plan(plan: Any) -> str | None:
    """The first expression of a plan that differs from one evaluation to the next."""
    if plan.deterministic():
        return None
    culprits = map(_culprit, elements_of(plan.expressions()))
    return next(filter(None, chain(culprits, map(_culprit_in_plan, elements_of(plan.children())))), None)


def _culprit(expression: Any) -> str | None:
    if expression.deterministic():
        return None
    inner = next(filter(None, map(_culprit, elements_of(expression.children()))), None)
    if inner is not None or expression.getClass().getSimpleName() in _ORDER_DEPENDENT:
        return inner
    return str(expression.toString())


_DESCRIPTION: Final = "spark.job.description"
_SPECULATION: Final = "spark.speculation"
_LOOPBACK: Final = "127.0.0.1"
#: If one of these is true, Spark encrypts traffic between its processes, and so must the sink.
_ENCRYPTING: Final = ("spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled")
#: Set by Spark for the Python process next to the server in which foreachBatch's function runs.
WORKER_URL: Final = "SPARK_CONNECT_LOCAL_URL"
#: Spark splits a range into as many partitions as tasks can run at a time, and at most one per number.
_MANY: Final = 100_000


class SessionFacts:
    """Facts of one Spark session, and services for its jobs; by itself, what a client of Spark Connect can do."""

    def __init__(self, spark: SparkSession, transactional_id: str) -> None:
        self._spark = spark
        self._log = sink_log(__name__, transactional_id)
        self._tasks_at_once: int | None = None
        self._warned = False

    def check_speculation(self) -> None:
        """Refuse a setting that would let two attempts of a task write."""
        if self._speculation().lower() == "true":
            rule = "a speculative copy of a task would write its records a second time"
            raise refused("spark.speculation", "true", rule, "set spark.speculation=false for this application")

    def _speculation(self) -> str:
        """The application's setting, which its scheduler follows; a client sees only its value at the start."""
        return str(self._spark.conf.get(_SPECULATION, "false"))

    def tasks_at_once(self) -> int:
        """Determined once by a client, because it takes a tiny job."""
        if self._tasks_at_once is None:
            partitions = self._spark.range(_MANY).selectExpr("spark_partition_id() AS partition")
            self._tasks_at_once = partitions.distinct().count()
        return self._tasks_at_once

    def application(self) -> str:
        """Spark's id of the application; '' if unknown."""
        return ""

    def executors(self) -> frozenset[str] | None:
        """The addresses of all current executors, including the driver's; None if unknown."""
        return None

    def settings_of(self, spark: SparkSession) -> str | None:
        """All settings that were ever set in a session, as one text; None if unknown."""
        del spark
        return None

    def check_repeatable(self, frame: DataFrame, where: str) -> None:
        """Refuse a frame that may differ when it is evaluated again. Clients cannot see plans, which is logged once."""
        del frame, where
        if not self._warned:
            self._warned = True
            self._log.warning(
                "Spark Connect shows no plans, so these are not checked: rand(), uuid(), current_timestamp() and the "
                "like in the stream, its function or the sink's expressions; with them a replayed batch has different "
                "rows, and is refused"
            )

    def inheriting(self, function: Callable[[], None]) -> Callable[[], None]:
        """Wrap the function for another thread: its jobs belong to the query on whose thread this is called."""
        return function

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        """Describe each job of the block by ``text`` in Spark's UI; of Spark Connect, by a tag."""
        tag = text.replace(",", ";")
        self._spark.addTag(tag)
        try:
            yield
        finally:
            self._spark.removeTag(tag)


class ClassicSession(SessionFacts):
    def __init__(self, spark: SparkSession, transactional_id: str) -> None:
        super().__init__(spark, transactional_id)
        jvm: Any = spark._jvm  # noqa: SLF001 - plans are not public in PySpark
        trees = jvm.org.apache.spark.sql.catalyst.trees
        self._current_like = getattr(getattr(trees, "TreePattern$"), "MODULE$").CURRENT_LIKE()

    def _speculation(self) -> str:
        # getConf() would copy every setting, each by calls to the JVM: 30 ms.
        context: Any = self._spark.sparkContext._jsc  # noqa: SLF001 - as above
        return str(context.sc().conf().get(_SPECULATION, "false"))

    def tasks_at_once(self) -> int:
        """Read each time, because executors join and leave."""
        return int(self._spark.sparkContext.defaultParallelism)

    def application(self) -> str:
        return str(self._spark.sparkContext.applicationId)

    def executors(self) -> frozenset[str] | None:
        context: Any = self._spark.sparkContext._jsc  # noqa: SLF001 - PySpark has no such question
        return frozenset(context.sc().getExecutorMemoryStatus().keys().mkString(",").split(","))

    def settings_of(self, spark: SparkSession) -> str | None:
        return str(spark._jsparkSession.sessionState().conf().settings().toString())  # noqa: SLF001 - PySpark has no such question

    def check_repeatable(self, frame: DataFrame, where: str) -> None:
        analyzed = frame._jdf.queryExecution().analyzed()  # noqa: SLF001 - plans are not public in PySpark
        if analyzed.containsPattern(self._current_like):
            # Spark fixes the current time per batch in the stream's own plan, but not in expressions added to it.
            raise _unrepeatable(where, "the current date or time")
        refuse_unrepeatable(where, analyzed)

    def inheriting(self, function: Callable[[], None]) -> Callable[[], None]:
        """With the job group of the query, by which Spark cancels its jobs."""
        inherited: Callable[[], None] = inheritable_thread_target(self._spark)(function)
        return inherited

    @contextmanager
    def described(self, text: str) -> Iterator[None]:
        """The job group stays the query's own: Spark uses it to cancel a query's jobs."""
        context = self._spark.sparkContext
        before: Any = context.getLocalProperty(_DESCRIPTION)
        context.setLocalProperty(_DESCRIPTION, text)
        try:
            yield
        finally:
            context.setLocalProperty(_DESCRIPTION, before)


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def session_facts(spark: SparkSession, transactional_id: str) -> SessionFacts:
    return (SessionFacts if is_connect(spark) else ClassicSession)(spark, transactional_id)


def beside_server() -> bool:
    """True in the Python process next to a Spark Connect server in which foreachBatch's function runs."""
    return WORKER_URL in os.environ


def has_executors(spark: SparkSession) -> bool:
    """True if tasks may run on other machines, according to Spark's master."""
    master = str(spark.conf.get("spark.master", ""))
    return master != "local" and not master.startswith("local[")


def local_workers_python(spark: SparkSession) -> str:
    """Path of the Python of a local master's workers if it may be another than the driver's; '' if it is the same.

    Spark starts the command in PYSPARK_PYTHON, or ``python3`` from PATH: without an activated environment, that is
    another Python than the one that runs the job.
    """
    if is_connect(spark) or has_executors(spark):
        return ""
    named = str(spark.sparkContext.pythonExec)
    found = Path(shutil.which(named) or named)
    # A virtual environment's Python is a link to the one that it was made with: the folder tells them apart.
    ours = Path(sys.executable)
    same = found.resolve() == ours.resolve() and found.parent.resolve() == ours.parent.resolve()
    return "" if same else str(found)


def has_other_python(spark: SparkSession) -> bool:
    """True if tasks run in processes that may use a different Python than the driver."""
    return has_executors(spark) or bool(local_workers_python(spark))


def stream_endpoint(spark: SparkSession, options: SinkOptions) -> StreamEndpoint:
    """Where this process listens for the tasks' output.

    Tasks know the driver's host from spark.driver.host. With a master local[n] they run on this machine, and no other
    host can connect. A client of Spark Connect is elsewhere: it reports the address from which it reaches the server.
    """
    first = options.driver_port
    ports = tuple(range(first, first + options.driver_port_range)) if first else (0,)
    here = not is_connect(spark) or beside_server()
    if here and not has_executors(spark):
        return StreamEndpoint(_LOOPBACK, _LOOPBACK, ports)
    host = str(spark.conf.get("spark.driver.host", None) or socket.gethostname())
    bind_host = str(spark.conf.get("spark.driver.bindAddress", None) or host)
    if not here:
        host = bind_host = _own_address(host)
    encrypted = any(str(spark.conf.get(name, "false")).lower() == "true" for name in _ENCRYPTING)
    return StreamEndpoint(bind_host, host, ports, encrypted=encrypted)


def _own_address(peer: str) -> str:
    """This machine's address on the route to another one; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 1))
        except OSError:
            return socket.gethostname()
        return str(probe.getsockname()[0])

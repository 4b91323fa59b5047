"""Exactly-once dual writes from PySpark Structured Streaming to Kafka and PostgreSQL.

A micro-batch is written to Kafka in one transaction and to PostgreSQL in another. The database transaction also
writes one row that names the Kafka transaction, so its COMMIT decides for both. If the job dies in between, the sink
reads that row on restart and commits (or resends) the Kafka half. This is the dual-write recipe of KIP-939, as a
``foreachBatch`` sink.

**Guarantee.** Once the sink is at rest, a reader of the topic with isolation.level=read_committed and a reader of the
table see the same rows, each once.

``ARCHITECTURE.md`` has the rooms and the way of a batch through them, ``docs/design/glossary.md`` the words.

**Public names.** A stable name keeps its meaning until the next major version; options, fields and members may be added
to it. A provisional name may change in a minor version, and the changelog says so. The classes of `errors` and
`producer.TransactionalWriter` are stable; `transactions.TransactionTool` and `testing` are provisional. Others are
private.

================= =========== =====================================================================================
DualWriteSink     stable      the object for ``foreachBatch``
Records           stable      a topic of a sink with several outputs
Rows              stable      a table of a sink with several outputs
DualWrite         stable      the same for a service without Spark: a session of SQLAlchemy's and Kafka
AsyncDualWrite    provisional the same on an event loop
BatchReport       stable      the figures of one batch, for ``on_batch``
DecidingBatch     provisional a batch that is being decided, for ``on_decide``
DualWriteError    stable      the root of all errors, see `spark_2pc_sink.errors`
HaltError         stable      the two sides disagree, and a person has to decide
HaltCause         stable      why, for programs
PreparedTxnState  stable      the text form of a prepared transaction (KIP-939)
recover           stable      settles the batch that a dead driver has left
status            stable      shows both sides, and changes nothing
RecoveryReport    stable      the result of `recover`, and of `status` for each sink
StatusReport      stable      the result of `status`
CheckReport       stable      the result of `DualWriteSink.check`
verify            stable      compares what readers of both sides see, and changes nothing
VerifyReport      stable      the result of it
history           stable      lists batches, and who did what to a sink, when and why
HistoryReport     stable      its result
run_until_stopped provisional waits for a query, drains it on SIGTERM, and returns an exit code
OperatorDecision  stable      the answer of a person to a `HaltError`
__version__       stable      of this package
================= =========== =====================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spark_2pc_sink.errors import DualWriteError, HaltCause, HaltError
    from spark_2pc_sink.ids import PreparedTxnState
    from spark_2pc_sink.options import OperatorDecision, Records, Rows
    from spark_2pc_sink.recovery.api import HistoryReport, history, recover, status
    from spark_2pc_sink.recovery.report import RecoveryReport, StatusReport
    from spark_2pc_sink.service.async_dual_write import AsyncDualWrite
    from spark_2pc_sink.service.dual_write import DualWrite
    from spark_2pc_sink.sink.check.findings import CheckReport
    from spark_2pc_sink.sink.driver.on_decide import DecidingBatch
    from spark_2pc_sink.sink.job_end import run_until_stopped
    from spark_2pc_sink.sink.report import BatchReport
    from spark_2pc_sink.sink.sink import DualWriteSink
    from spark_2pc_sink.verification.api import verify
    from spark_2pc_sink.verification.report import VerifyReport

__all__ = [
    "AsyncDualWrite",
    "BatchReport",
    "CheckReport",
    "DecidingBatch",
    "DualWrite",
    "DualWriteError",
    "DualWriteSink",
    "HaltCause",
    "HaltError",
    "HistoryReport",
    "OperatorDecision",
    "PreparedTxnState",
    "Records",
    "RecoveryReport",
    "Rows",
    "StatusReport",
    "VerifyReport",
    "__version__",
    "history",
    "recover",
    "run_until_stopped",
    "status",
    "verify",
]

#: Read by pyproject.toml. Defined here because an executor may get the package as a zip, without its metadata.
__version__: Final = "1.0.0"

# Loaded on demand: a program that only recovers needs no Spark, and a coordinator no SQLAlchemy.
_HOMES = {
    **dict.fromkeys(("DualWriteError", "HaltCause", "HaltError"), "errors"),
    **dict.fromkeys(("OperatorDecision", "Records", "Rows"), "options"),
    **dict.fromkeys(("HistoryReport", "history", "recover", "status"), "recovery.api"),
    **dict.fromkeys(("RecoveryReport", "StatusReport"), "recovery.report"),
    "AsyncDualWrite": "service.async_dual_write",
    "BatchReport": "sink.report",
    "CheckReport": "sink.check.findings",
    "DecidingBatch": "sink.driver.on_decide",
    "DualWrite": "service.dual_write",
    "DualWriteSink": "sink.sink",
    "PreparedTxnState": "ids",
    "VerifyReport": "verification.report",
    "run_until_stopped": "sink.job_end",
    "verify": "verification.api",
}


if not TYPE_CHECKING:  # type checkers would otherwise accept every name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

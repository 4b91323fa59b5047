"""What can be chosen at a choice point in place of going on."""

from __future__ import annotations

from functools import cache
from itertools import compress
from typing import Final

# Of the driver that stands at the choice point. A crash after a request is the same as one before the next.
CRASH: Final = "crash"
#: The driver dies while its tasks run: what they had not sent yet arrives later, or never.
CRASH_TASKS_LIVE: Final = "crash-tasks-live"
#: The driver dies, and the checkpoint is set back by the last batch that Spark has recorded in it: that batch, and what
#: follows it, is planned anew, with other rows. Twice in a row is two batches.
CHECKPOINT_BACK: Final = "checkpoint-back"
#: The driver stands still; another one is started in its place. It goes on when that one has ended, or earlier.
SECOND_DRIVER: Final = "second-driver"
#: The driver stands still while a person runs ``spark-2pc recover``.
OPERATOR: Final = "operator"
#: The driver stands still while a job of another query is started with the same transactional id.
INTRUDER: Final = "intruder"
#: The driver stands still, and another one that stood still goes on.
SWITCH: Final = "switch"

# Of the request.
LOSE_REQUEST: Final = "lose-request"
LOSE_REPLY: Final = "lose-reply"
#: The reply was lost, and the client has sent the same request again.
RESEND: Final = "resend"
#: Given up by the client, and carried out later.
DELAY: Final = "delay"
#: Carried out now, and once more later.
LATE_COPY: Final = "late-copy"
#: COMMIT hangs in the server after the client has given up; it may be carried out later.
HANG: Final = "hang"
#: The task fails, and Spark runs it again.
TASK_FAILS: Final = "task-fails"

# Of the surroundings; the driver's request still comes after it.
BROKER_CRASH: Final = "broker-crash"
#: The broker answers this request before it has written the markers that it owes, or after the first of them.
SLOW_MARKERS: Final = "slow-markers"
ONE_MARKER: Final = "one-marker"
#: Everything stands still for longer than the transaction may last.
TIMEOUT: Final = "timeout"
#: Nothing happens for eight days, so that the coordinator forgets the id (transactional.id.expiration.ms).
EXPIRY: Final = "expiry"
FORCE_TERMINATE: Final = "force-terminate"
DATABASE_CUT: Final = "database-cut"
#: The database fails over to a standby that lacks the last commit of a batch and all that came after it.
ASYNC_FAILOVER: Final = "async-failover"
#: The same, and the standby lacks the last write of the state row only, whatever that was.
ASYNC_FAILOVER_NOTE: Final = "async-failover-note"
#: A request that was delayed arrives; a COMMIT that hung is carried out.
ARRIVE: Final = "arrive"

#: Kinds of request.
KAFKA: Final = "kafka"
PRODUCE: Final = "produce"
SQL: Final = "sql"
COMMIT: Final = "commit"
SPARK: Final = "spark"

#: What can abort a transaction in Kafka that the database has decided, or will decide. Without one of them, no batch
#: needs to be sent again.
ABORTING: Final = frozenset({TIMEOUT, FORCE_TERMINATE, SECOND_DRIVER, OPERATOR, DELAY, LATE_COPY})

#: After one of these the two sides may differ: not promised to be mended, only to be noticed.
LOSING: Final = frozenset({ASYNC_FAILOVER, ASYNC_FAILOVER_NOTE})

#: The kinds of which all pairs are run in every profile: who dies, when, and what only one side knows.
CORE: Final = frozenset(
    {CRASH, LOSE_REPLY, HANG, BROKER_CRASH, TIMEOUT, DATABASE_CUT, SECOND_DRIVER, SWITCH, ASYNC_FAILOVER}
)

_OF_REQUEST: Final[dict[str, tuple[str, ...]]] = {
    KAFKA: (LOSE_REQUEST, LOSE_REPLY, RESEND, DELAY, LATE_COPY),
    PRODUCE: (LOSE_REQUEST, LOSE_REPLY, RESEND, DELAY, LATE_COPY, CRASH_TASKS_LIVE, TASK_FAILS),
    SQL: (LOSE_REQUEST, LOSE_REPLY),
    COMMIT: (LOSE_REQUEST, LOSE_REPLY, HANG),
    SPARK: (),
}


#: What is possible at some of the requests only.
CONDITIONAL: Final = (
    SECOND_DRIVER,
    OPERATOR,
    INTRUDER,
    SWITCH,
    TIMEOUT,
    EXPIRY,
    SLOW_MARKERS,
    ONE_MARKER,
    DATABASE_CUT,
    ARRIVE,
    ASYNC_FAILOVER,
    ASYNC_FAILOVER_NOTE,
    CHECKPOINT_BACK,
)


@cache
def offered(kind: str, possible: tuple[bool, ...]) -> tuple[str, ...]:
    """The options where a request of this kind is about to be sent, and these of `CONDITIONAL` are possible."""
    return (CRASH, *_OF_REQUEST[kind], BROKER_CRASH, FORCE_TERMINATE, *compress(CONDITIONAL, possible))

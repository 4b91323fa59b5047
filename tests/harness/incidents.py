"""Incidents on real servers: each halt cause, and each symptom without a halt, made of a job that was well.

An incident is what an operator is woken for: a job that has stopped, both sides as they are then, and what is known to
settle it. RUNBOOK.md has a section for each; ``tests/integration/incidents`` walks through all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import Producer

from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.testing import read_topic
from tests.harness.damage import Backup, delete_log, lose_row, remake_topic
from tests.harness.driver_config import Row
from tests.harness.driver_job import Job, make_rows
from tests.harness.driver_process import DriverProcess, Outcome
from tests.harness.providers import Broker

#: At the time of each incident two of these batches or more are still to come.
SIZES: Final = (10, 10, 10, 10, 10)
#: The batch that an incident is about, where it need not be the topic's first one.
BATCH: Final = 1
_CHANGED: Final = make_rows(BATCH, 9)


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A job that somebody has to look after.

    Attributes:
        job: with what a command line needs: servers, transactional id, topic and table.
        name: of the incident; a value of `HaltCause`, or the symptom.
        section: of RUNBOOK.md; it has the name of the incident but for few.
        runbook_code: exit code of ``spark-2pc runbook``; 3 where the job has still to be started.
        cause: of the halt, None where none is met.
        halt: how the job's start failed; None where nobody has tried.
        driver: that lives and stands still; None where the driver is dead.
        words: what the placeholders of RUNBOOK.md stand for here: the batch N, the batches FIRST..LAST.
        starts: the job that is started then, where it is not the one that has stopped.
        kafka: rows of batches that the topic has in the end in place of the input's.
        accepted: what a person has accepted and history names, where the sides differ from each other or the input.
        at_servers: what the page tells a person to do to topic and table before the start.
    """

    job: Job
    name: str = ""
    section: str = ""
    status_code: int = 3
    runbook_code: int = 0
    cause: HaltCause | None = None
    halt: Outcome | None = None
    driver: DriverProcess | None = None
    words: Mapping[str, str] = field(default_factory=dict)
    starts: Job | None = None
    kafka: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    table: Mapping[int, Sequence[Row]] = field(default_factory=dict)
    accepted: str | None = None
    at_servers: Callable[[], None] | None = None

    def start_again(self, options: Mapping[str, Any]) -> None:
        """Start the job, or let its driver go on, and wait until it has written every batch of the input."""
        if self.at_servers is not None:
            self.at_servers()
        if self.driver is not None:
            self.driver.go_on()
            self.job.finished(self.driver)
        else:
            (self.starts or self.job).run(**options)

    def check_end(self) -> None:
        """Both sides hold the input, each row once, but for the batches about which a person has decided."""
        job = self.starts or self.job
        rows = {**job.input(), **self.table}
        job.check(self.kafka, table=[row for batch in sorted(rows) for row in rows[batch]])


#: Makes an incident of a job that was created with `SIZES` and not run yet, and of another Kafka cluster than its own.
Make = Callable[[Job, Callable[[], Broker]], Incident]
INCIDENTS: dict[str, Make] = {}


def _incident(**fields: Any) -> Callable[[Callable[[Job], Incident]], None]:
    """Register an incident under the name of its function, with fields that are the same wherever it is made."""

    def register(maker: Callable[[Job], Incident]) -> None:
        _register(maker.__name__, lambda job, _: replace(maker(job), **fields))

    return register


def _register(name: str, make: Make) -> None:
    cause = HaltCause(name) if name in {each.value for each in HaltCause} else None

    def named(job: Job, second_cluster: Callable[[], Broker]) -> Incident:
        made = make(job, second_cluster)
        return replace(made, name=name, section=made.section or name, cause=cause)

    INCIDENTS[name] = named


def _owe(job: Job) -> None:
    """Kafka has aborted what the database has decided, and somebody has noted that."""
    job.kill_at("step:DECIDE", batch=BATCH)
    job.terminate()


# --- symptoms without a halt --------------------------------------------------------------------------------------


@_incident()
def in_doubt(job: Job) -> Incident:
    """The driver died right after its decision: the database has a batch that Kafka holds open."""
    job.kill_at("step:DECIDE", batch=BATCH)
    return Incident(job=job)


@_incident(section="in_doubt")
def prepared(job: Job) -> Incident:
    """The driver died right before its decision: Kafka holds a batch open that nobody has decided."""
    job.kill_at("step:PREPARE", batch=BATCH)
    return Incident(job=job)


@_incident()
def lost_row(job: Job) -> Incident:
    """The state row of a decided batch was deleted, and its history was not."""
    job.kill_at("step:DECIDE", batch=BATCH)
    lose_row(job, history=False)
    return Incident(job=job)


@_incident(runbook_code=3, words={"N": str(BATCH)})
def owed(job: Job) -> Incident:
    """Kafka has aborted a decided batch: the next start sends it again."""
    _owe(job)
    return Incident(job=job)


@_incident(runbook_code=3)
def driver_alive(job: Job) -> Incident:
    """A batch takes long: something is in doubt, and the driver lives."""
    return Incident(job=job, driver=job.stop_at("step:DECIDE", batch=BATCH))


# --- which cluster, which row -------------------------------------------------------------------------------------


def _other_cluster(job: Job, second_cluster: Callable[[], Broker]) -> Incident:
    """Kafka was replaced; the topic was mirrored when both sides had the same."""
    job.kill_at("step:NOTE", batch=BATCH)
    there = second_cluster()
    there.create_topic(job.topic, partitions=3)
    producer = Producer({"bootstrap.servers": there.bootstrap})
    for record in read_topic(job.broker.bootstrap, job.topic):
        producer.produce(job.topic, key=record.key, value=record.value, partition=record.partition)
    left = producer.flush(30)
    assert left == 0, f"{left} records were not mirrored"
    moved = job.on(there)
    return Incident(job=moved, status_code=4, halt=moved.fail())


_register("other_cluster", _other_cluster)


@_incident(runbook_code=3, words={"FIRST..LAST": "0"}, accepted="accept_loss")
def id_in_use(job: Job) -> Incident:
    """State row and history were deleted while nothing was open: Kafka knows the id, and the database does not."""
    job.kill_at("step:PLACE", batch=BATCH)
    lose_row(job, history=True)
    return Incident(job=job, halt=job.fail())


@_incident(words={"N": str(BATCH)}, accepted="open_transaction")
def open_transaction(job: Job) -> Incident:
    """State row and history were deleted while a decided batch was open: its rows are in the table."""
    job.kill_at("step:DECIDE", batch=BATCH)
    lose_row(job, history=True)
    return Incident(job=job, halt=job.fail(adopt=True))


@_incident(runbook_code=3, status_code=0)
def not_the_first_batch(job: Job) -> Incident:
    """The transactional id was changed in the job, and its checkpoint was not."""
    job.kill_at("step:NOTE", batch=BATCH)
    renamed = replace(job, transactional_id=f"{job.transactional_id}-renamed")
    return Incident(job=renamed, halt=renamed.fail(), starts=job)


# --- what the database has lost -----------------------------------------------------------------------------------


@_incident(words={"FIRST..LAST": "1..2"}, table={1: [], 2: []}, accepted="accept_loss")
def database_behind(job: Job) -> Incident:
    """A backup was restored: Kafka has two batches that the database lacks."""
    job.kill_at("step:NOTE", batch=0)
    backup = Backup.make(job, batches=1)
    job.kill_at("step:PLACE", batch=3)
    backup.restore()
    return Incident(job=job, halt=job.fail())


@_incident(words={"FIRST..LAST": "1"}, table={1: []}, accepted="accept_loss")
def commits_lost(job: Job) -> Incident:
    """A backup was restored under a driver that lives: its claim is among what was lost."""
    job.kill_at("step:NOTE", batch=0)
    backup = Backup.make(job, batches=1)
    driver = job.stop_at("step:NOTE", batch=BATCH)
    backup.restore()
    driver.go_on()
    return Incident(job=job, halt=driver.outcome())


# --- what Kafka has lost ------------------------------------------------------------------------------------------


@_incident(runbook_code=3, words={"N": "0"}, accepted="accept_replay")
def outcome_lost(job: Job) -> Incident:
    """The first batch was aborted after its decision, and the log that told so was deleted."""
    job.kill_at("step:DECIDE", batch=0)
    job.terminate()
    delete_log(job)
    return Incident(job=job, halt=job.fail())


@_incident(runbook_code=3, words={"N": "0"}, accepted="accept_replay")
def topic_remade(job: Job) -> Incident:
    """The topic was deleted and made anew while its first batch was decided and not completed."""
    job.kill_at("step:DECIDE", batch=0)
    remake_topic(job)
    return Incident(job=job, halt=job.fail())


@_incident(runbook_code=3, words={"N": str(BATCH)}, accepted="accept_replay")
def resend_differs(job: Job) -> Incident:
    """Kafka is owed a batch, and the source has other rows of it by now."""
    before = job.input()[BATCH]
    _owe(job)
    job.write_batch(BATCH, _CHANGED)
    return Incident(job=job, halt=job.fail(), table={BATCH: before})


@_incident(words={"N": str(BATCH)}, kafka={BATCH: []}, accepted="drop")
def other_batch_owed(job: Job) -> Incident:
    """Kafka is owed a batch, and the checkpoint is behind it already."""
    _owe(job)
    (job.checkpoint / str(BATCH)).touch()
    return Incident(job=job, halt=job.fail())


# --- what the job does --------------------------------------------------------------------------------------------

#: Neither side has the batch, and a person says that it may be so.
_LEFT_OUT: Final[dict[str, Any]] = {
    "runbook_code": 3,
    "status_code": 0,
    "words": {"FIRST..LAST": str(BATCH)},
    "kafka": {BATCH: []},
    "table": {BATCH: []},
    "accepted": "accept_loss",
}


@_incident(**_LEFT_OUT)
def gap(job: Job) -> Incident:
    """The checkpoint is ahead of both sides by one batch."""
    job.kill_at("step:PLACE", batch=BATCH)
    (job.checkpoint / str(BATCH)).touch()
    return Incident(job=job, halt=job.fail())


@_incident(runbook_code=3, status_code=0)
def batches_restarted(job: Job) -> Incident:
    """A pipeline was fully refreshed: its query, known by a name, begins with batch 0 again."""
    job.kill_at("step:NOTE", batch=BATCH)
    for finished in job.checkpoint.iterdir():
        finished.unlink()

    def empty_both() -> None:
        job.sql(f"TRUNCATE {job.table}")
        remake_topic(job)

    return Incident(job=job, halt=job.fail(), starts=replace(job, query_id="query-2"), at_servers=empty_both)


@_incident(**_LEFT_OUT)
def not_handed_over(job: Job) -> Incident:
    """The job's function has left a batch out that had rows."""
    return Incident(job=job, halt=replace(job, left_out=(BATCH,)).fail())


@_incident(runbook_code=3, status_code=0, words={"N": str(BATCH)}, accepted="accept_replay")
def replay_differs(job: Job) -> Incident:
    """Both sides have a batch that Spark replays, and the source has other rows of it by now."""
    before = job.input()[BATCH]
    job.kill_at("step:NOTE", batch=BATCH)
    job.write_batch(BATCH, _CHANGED)
    return Incident(job=job, halt=job.fail(), kafka={BATCH: before}, table={BATCH: before})

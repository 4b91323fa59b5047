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


@dataclass(frozen=True)
class Scene:
    """Where an incident is made.

    Args:
        job: created with `SIZES`, and not run yet.
        second_cluster: a Kafka cluster that is another one than the job's.
    """

    job: Job
    second_cluster: Callable[[], Broker]


INCIDENTS: dict[str, Callable[[Scene], Incident]] = {}


def _incident(maker: Callable[[Scene], Incident]) -> Callable[[Scene], Incident]:
    """Register an incident under the name of its function."""
    name = maker.__name__
    cause = HaltCause(name) if name in {each.value for each in HaltCause} else None

    def make(scene: Scene) -> Incident:
        made = maker(scene)
        return replace(made, name=name, section=made.section or name, cause=cause)

    INCIDENTS[name] = make
    return make


def _owe(job: Job) -> None:
    """Kafka has aborted what the database has decided, and somebody has noted that."""
    job.kill_at("step:DECIDE", batch=BATCH)
    job.terminate()


# --- symptoms without a halt --------------------------------------------------------------------------------------


@_incident
def in_doubt(scene: Scene) -> Incident:
    """The driver died right after its decision: the database has a batch that Kafka holds open."""
    scene.job.kill_at("step:DECIDE", batch=BATCH)
    return Incident(job=scene.job)


@_incident
def prepared(scene: Scene) -> Incident:
    """The driver died right before its decision: Kafka holds a batch open that nobody has decided."""
    scene.job.kill_at("step:PREPARE", batch=BATCH)
    return Incident(job=scene.job, section="in_doubt")


@_incident
def lost_row(scene: Scene) -> Incident:
    """The state row of a decided batch was deleted, and its history was not."""
    scene.job.kill_at("step:DECIDE", batch=BATCH)
    lose_row(scene.job, history=False)
    return Incident(job=scene.job)


@_incident
def owed(scene: Scene) -> Incident:
    """Kafka has aborted a decided batch: the next start sends it again."""
    _owe(scene.job)
    return Incident(job=scene.job, runbook_code=3, words={"N": str(BATCH)})


@_incident
def driver_alive(scene: Scene) -> Incident:
    """A batch takes long: something is in doubt, and the driver lives."""
    driver = scene.job.stop_at("step:DECIDE", batch=BATCH)
    return Incident(job=scene.job, runbook_code=3, driver=driver)


# --- which cluster, which row -------------------------------------------------------------------------------------


@_incident
def other_cluster(scene: Scene) -> Incident:
    """Kafka was replaced; the topic was mirrored when both sides had the same."""
    scene.job.kill_at("step:NOTE", batch=BATCH)
    there = scene.second_cluster()
    there.create_topic(scene.job.topic, partitions=3)
    _mirror(scene.job, there)
    moved = scene.job.on(there)
    return Incident(job=moved, status_code=4, halt=moved.fail())


@_incident
def id_in_use(scene: Scene) -> Incident:
    """State row and history were deleted while nothing was open: Kafka knows the id, and the database does not."""
    job = scene.job
    job.kill_at("step:PLACE", batch=BATCH)
    lose_row(job, history=True)
    return Incident(job=job, runbook_code=3, halt=job.fail(), words={"FIRST..LAST": "0"}, accepted="accept_loss")


@_incident
def open_transaction(scene: Scene) -> Incident:
    """State row and history were deleted while a decided batch was open: its rows are in the table."""
    job = scene.job
    job.kill_at("step:DECIDE", batch=BATCH)
    lose_row(job, history=True)
    return Incident(job=job, halt=job.fail(adopt=True), words={"N": str(BATCH)}, accepted="open_transaction")


@_incident
def not_the_first_batch(scene: Scene) -> Incident:
    """The transactional id was changed in the job, and its checkpoint was not."""
    scene.job.kill_at("step:NOTE", batch=BATCH)
    renamed = replace(scene.job, transactional_id=f"{scene.job.transactional_id}-renamed")
    return Incident(job=renamed, runbook_code=3, halt=renamed.fail(), status_code=0, starts=scene.job)


# --- what the database has lost -----------------------------------------------------------------------------------


@_incident
def database_behind(scene: Scene) -> Incident:
    """A backup was restored: Kafka has two batches that the database lacks."""
    job = scene.job
    job.kill_at("step:NOTE", batch=0)
    backup = Backup.make(job, batches=1)
    job.kill_at("step:PLACE", batch=3)
    backup.restore()
    return Incident(
        job=job, halt=job.fail(), words={"FIRST..LAST": "1..2"}, table={1: [], 2: []}, accepted="accept_loss"
    )


@_incident
def commits_lost(scene: Scene) -> Incident:
    """A backup was restored under a driver that lives: its claim is among what was lost."""
    job = scene.job
    job.kill_at("step:NOTE", batch=0)
    backup = Backup.make(job, batches=1)
    driver = job.stop_at("step:NOTE", batch=BATCH)
    backup.restore()
    driver.go_on()
    return Incident(job=job, halt=driver.outcome(), words={"FIRST..LAST": "1"}, table={1: []}, accepted="accept_loss")


# --- what Kafka has lost ------------------------------------------------------------------------------------------


@_incident
def outcome_lost(scene: Scene) -> Incident:
    """The first batch was aborted after its decision, and the log that told so was deleted."""
    job = scene.job
    job.kill_at("step:DECIDE", batch=0)
    job.terminate()
    delete_log(job)
    return Incident(job=job, runbook_code=3, halt=job.fail(), words={"N": "0"}, accepted="accept_replay")


@_incident
def topic_remade(scene: Scene) -> Incident:
    """The topic was deleted and made anew while its first batch was decided and not completed."""
    job = scene.job
    job.kill_at("step:DECIDE", batch=0)
    remake_topic(job)
    return Incident(job=job, runbook_code=3, halt=job.fail(), words={"N": "0"}, accepted="accept_replay")


@_incident
def resend_differs(scene: Scene) -> Incident:
    """Kafka is owed a batch, and the source has other rows of it by now."""
    job = scene.job
    before = job.input()[BATCH]
    _owe(job)
    job.write_batch(BATCH, _CHANGED)
    return Incident(
        job=job,
        runbook_code=3,
        halt=job.fail(),
        words={"N": str(BATCH)},
        table={BATCH: before},
        accepted="accept_replay",
    )


@_incident
def other_batch_owed(scene: Scene) -> Incident:
    """Kafka is owed a batch, and the checkpoint is behind it already."""
    job = scene.job
    _owe(job)
    (job.checkpoint / str(BATCH)).touch()
    return Incident(job=job, halt=job.fail(), words={"N": str(BATCH)}, kafka={BATCH: []}, accepted="drop")


# --- what the job does --------------------------------------------------------------------------------------------


@_incident
def gap(scene: Scene) -> Incident:
    """The checkpoint is ahead of both sides by one batch."""
    job = scene.job
    job.kill_at("step:PLACE", batch=BATCH)
    (job.checkpoint / str(BATCH)).touch()
    return _left_out(job, job.fail())


@_incident
def batches_restarted(scene: Scene) -> Incident:
    """A pipeline was fully refreshed: its query, known by a name, begins with batch 0 again."""
    job = scene.job
    job.kill_at("step:NOTE", batch=BATCH)
    for finished in job.checkpoint.iterdir():
        finished.unlink()

    def empty_both() -> None:
        job.sql(f"TRUNCATE {job.table}")
        remake_topic(job)

    starts = replace(job, query_id="query-2")
    return Incident(job=job, runbook_code=3, halt=job.fail(), status_code=0, starts=starts, at_servers=empty_both)


@_incident
def not_handed_over(scene: Scene) -> Incident:
    """The job's function has left a batch out that had rows."""
    return _left_out(scene.job, replace(scene.job, left_out=(BATCH,)).fail())


def _left_out(job: Job, halt: Outcome) -> Incident:
    """Neither side has the batch, and a person says that it may be so."""
    return Incident(
        job=job,
        runbook_code=3,
        halt=halt,
        status_code=0,
        words={"FIRST..LAST": str(BATCH)},
        kafka={BATCH: []},
        table={BATCH: []},
        accepted="accept_loss",
    )


@_incident
def replay_differs(scene: Scene) -> Incident:
    """Both sides have a batch that Spark replays, and the source has other rows of it by now."""
    job = scene.job
    before = job.input()[BATCH]
    job.kill_at("step:NOTE", batch=BATCH)
    job.write_batch(BATCH, _CHANGED)
    return Incident(
        job=job,
        runbook_code=3,
        halt=job.fail(),
        status_code=0,
        words={"N": str(BATCH)},
        kafka={BATCH: before},
        table={BATCH: before},
        accepted="accept_replay",
    )


def _mirror(job: Job, there: Broker) -> None:
    """Copy the committed records of the job's topic into the topic of the same name on another cluster."""
    producer = Producer({"bootstrap.servers": there.bootstrap})
    for record in read_topic(job.broker.bootstrap, job.topic):
        producer.produce(job.topic, key=record.key, value=record.value, partition=record.partition)
    left = producer.flush(30)
    assert left == 0, f"{left} records were not mirrored"

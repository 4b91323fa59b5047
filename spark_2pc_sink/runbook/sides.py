"""Kafka and the database for the dialogue: the public functions, and the picture of one sink that results from a look.

The picture has the observations from status, the job's error and the topics, and determines the problem. Some problems
occur only in a job, because they concern the batch that Spark has passed; the job's error names the cause, and a person
enters it. The state of both sides takes precedence over what a person enters.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

from jdbc_state import OWED
from spark_2pc_sink.choices import NO_FACTS, TABLE, Act, Choice, Facts, Problem, Symptom
from spark_2pc_sink.errors import DualWriteError, KafkaError, KafkaTimeoutError
from spark_2pc_sink.extras import MissingExtraError
from spark_2pc_sink.ids import TopicPartition, TransactionState
from spark_2pc_sink.options import KafkaOptions, RecoveryOptions, StatusOptions
from spark_2pc_sink.recovery.api import history, recover, status
from spark_2pc_sink.recovery.report import RecoveryReport, StatusReport, kafka_connection, sink_flags
from spark_2pc_sink.transactions import HangingTransaction, ListFilter, TransactionTool
from spark_2pc_sink.transactions.ending import with_cluster
from spark_2pc_sink.verification.api import verify
from spark_2pc_sink.verification.report import Verdict

#: How many lines of the table of actions are shown after an action: a claim, its outcome, and the decision.
WRITTEN_SHOWN: Final = 3
#: Other producers always have open transactions; one that lasts longer than this is worth a look.
OPEN_MS_MIN: Final = 60_000
#: Replaces the transactional id if all sinks were requested and none could be read.
EVERY_SINK: Final = "every sink"
_NOT_THE_JOBS: Final = (Symptom.ELSEWHERE, Symptom.NOT_KNOWN)


@dataclass(frozen=True)
class Readers:
    """What blocks read_committed consumers of a sink's topics: hanging transactions, and open ones of known owners."""

    hanging: tuple[HangingTransaction, ...] = ()
    owners: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Picture:
    transactional_id: str
    report: RecoveryReport | None = None
    kafka_problem: str = ""
    database_problem: str = ""
    unreadable: str = ""
    readers: Readers = Readers()
    told: Problem | None = None

    @property
    def facts(self) -> Facts:
        facts = NO_FACTS if self.report is None else self.report.incident
        places = ", ".join(f"{one.where} at offset {one.start_offset}" for one in self.readers.hanging)
        return replace(facts, places=places, owners=self.readers.owners)

    @property
    def problem(self) -> Problem:
        if self.database_problem:
            return Symptom.DATABASE_OUT_OF_REACH
        if self.kafka_problem:
            return Symptom.KAFKA_OUT_OF_REACH
        if self.unreadable:
            return Symptom.UNREADABLE
        shown = Symptom.NOT_KNOWN if self.report is None else self.report.problem
        if self.told is not None and self._is_told(shown, self.told):
            return self.told
        if shown is Symptom.NOTHING_WRONG and self.readers.hanging:
            return Symptom.HANGING_TRANSACTION
        return Symptom.READERS_BLOCKED if shown is Symptom.NOTHING_WRONG and self.readers.owners else shown

    def _is_told(self, shown: Problem, told: Problem) -> bool:
        """Whether both sides admit the problem that the job reports."""
        if TABLE[told].seen_as is not None:
            return shown is TABLE[told].seen_as
        report = self.report
        if report is None or report.cause is not None or report.actions or shown in _NOT_THE_JOBS:
            return False
        owed = report.row is not None and report.row.status == OWED
        return (owed or report.settled) and TABLE[told].job_only and owed == TABLE[told].about_owed

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The possible actions, the safest first; empty if there is no problem."""
        fitting = TABLE[self.problem].choices_for(self.facts)
        # If no sink could be read, another look would find sinks that this picture is not about.
        again = self.transactional_id != EVERY_SINK
        return tuple(choice for choice in fitting if again or choice.act is not Act.RECHECK)


@dataclass(frozen=True)
class Compared:
    verdict: Verdict
    text: str


class BothSides:
    """Kafka and the database, by keywords of `recover`; ``form`` has those of `verify` that make a record a row."""

    def __init__(
        self, connections: Mapping[str, Any], *, timeout_s: int = StatusOptions.timeout_s, **form: Any
    ) -> None:
        self._connections = connections
        self._kafka = connections["kafka"]
        self._timeout_s = timeout_s
        self._form = form

    def look(self, transactional_id: str | None) -> tuple[Picture, ...]:
        """Look at one sink, and for blocked consumers of its topics, or at all; nothing is claimed or changed."""
        found = status(transactional_id=transactional_id, timeout_s=self._timeout_s, **self._connections)
        pictures = pictures_of(found, transactional_id)
        return tuple(map(self._with_readers, pictures)) if transactional_id is not None else pictures

    def _with_readers(self, picture: Picture) -> Picture:
        report = picture.report
        if picture.kafka_problem or report is None or not report.settled or report.row is None:
            return picture
        topics = {*report.row.topic_ids, *(TopicPartition.parse(name).topic for name in report.row.kafka_offsets)}
        with TransactionTool(kafka=self._kafka) as tool:
            readers = find_blocking_transactions(tool, topics, transactional_id=picture.transactional_id)
        return replace(picture, readers=readers)

    def recover(self, transactional_id: str, **keywords: Any) -> RecoveryReport:
        return recover(transactional_id=transactional_id, **self._connections, **keywords)

    def abort_hanging(self, picture: Picture) -> list[str]:
        lines = []
        with TransactionTool(kafka=self._kafka) as tool:
            for one in picture.readers.hanging:
                done = tool.abort(one.topic, one.partition, start_offset=one.start_offset)
                lines.append(f"aborted the transaction at offset {done.start_offset} of {done.where}: {done.reason}")
        return lines

    def last_actions(self, transactional_id: str) -> list[str]:
        """The last actions on a sink, from the table of actions; one line each, the newest last."""
        database = {name: given for name, given in self._connections.items() if name != "kafka"}
        lines = history(transactional_id=transactional_id, batches=False, last=WRITTEN_SHOWN, **database).as_json()
        told = "{at} {action} by {os_user} on {host}"
        return [told.format(**line) + (f": {line['reason']}" if line["reason"] else "") for line in lines]

    def compare(self, transactional_id: str, *, open_transaction: bool) -> Compared:
        """Compare topic and table, as noted by the job's newest claim."""
        try:
            asked: dict[str, Any] = {"transactional_id": transactional_id, "open_transaction": open_transaction}
            found = verify(**asked, **self._form, **self._connections)
        except (DualWriteError, MissingExtraError) as error:
            # Earlier actions are valid, whether or not the comparison is possible.
            return Compared("inconclusive", f"topic and table of {transactional_id} could not be compared: {error}")
        return Compared(found.verdict, str(found))

    def sink_flags(self, transactional_id: str) -> str:
        return sink_flags(RecoveryOptions.parse(transactional_id=transactional_id, **self._connections))

    def with_cluster(self, step: str) -> str:
        """A manual step; an incomplete command about transactions gets the cluster's flags."""
        return with_cluster([step], kafka_connection(KafkaOptions.parse(self._kafka)))[0]

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)


def pictures_of(found: StatusReport, transactional_id: str | None) -> tuple[Picture, ...]:
    """The result of status, a picture for each sink; one without a report if no sink could be read."""
    every = [Picture(transactional_id=one.transactional_id, report=one) for one in found.sinks]
    every += [
        Picture(transactional_id=one.transactional_id, unreadable=f"{one.side}: {one.problem}")
        for one in found.unreadable
    ]
    if not every and (transactional_id is not None or found.kafka_problem or found.database_problem):
        every.append(Picture(transactional_id=transactional_id or EVERY_SINK))
    problems: dict[str, Any] = {"kafka_problem": found.kafka_problem, "database_problem": found.database_problem}
    return tuple(replace(picture, **problems) for picture in every)


def find_blocking_transactions(tool: TransactionTool, topics: AbstractSet[str], *, transactional_id: str) -> Readers:
    """Look for transactions of other producers that block consumers of some topics; changes nothing.

    read_committed consumers are blocked at the oldest open transaction of a partition. A hanging one never ends; one
    that its coordinator knows is ended by its owner, or by its timeout unless it has two-phase commit.
    """
    hanging: tuple[HangingTransaction, ...] = ()
    owners, problem = list[str](), ""
    try:
        for topic in sorted(topics):
            hanging += tool.find_hanging(topic=topic)
        wanted = ListFilter(states=(TransactionState.ONGOING.value,), running_longer_than_ms=OPEN_MS_MIN)
        others = [
            one.transactional_id for one in tool.list_transactions(wanted) if one.transactional_id != transactional_id
        ]
        owners += [name for name in others if topics & {each.topic for each in tool.describe(name).partitions}]
    except (KafkaError, KafkaTimeoutError) as error:
        # The sink itself was read; a failure to read the other transactions is reported, and is not fatal.
        problem = f"did not check whether readers are blocked: {error}"
    return Readers(hanging, tuple(owners), problem)

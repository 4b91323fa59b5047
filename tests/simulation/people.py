"""People at night: what a person can do to the database, the topic and the job, at any point, and after a halt.

The faults in `faults` come from outside, and of each the product must make the best. Those here are meant well: each is
an act that a message, the README or a manual names, at a moment when it may be right or wrong. The verdict is `green`
in `checkers`: whatever ends without an error must be right, but for what the ledger says that somebody has accepted.

A person who acts *at any point* has read nothing, and accepts only the batch that ``spark-2pc status`` shows him.
A person who *answers a halt* has read it, and accepts what it names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from jdbc_state import DECIDED, DONE, NONE, OWED
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import BatchRange
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recipe.resolve import OpenTransactionEnd
from tests.simulation import faults
from tests.simulation.broker import Record
from tests.simulation.drivers import DriverCrashedError, JobDriver, OperatorOptions, Person
from tests.simulation.schedule import GO
from tests.unit.fakes.coordinator import TRANSACTIONAL_ID

if TYPE_CHECKING:
    from spark_2pc_sink.errors import HaltError
    from tests.simulation.world import World

# In the database.
DELETE_ROW: Final = "delete-row"
DELETE_STATE: Final = "delete-row-and-history"
DELETE_HISTORY: Final = "delete-history"
#: The statuses that may be set by hand, as the message about another cluster tells.
SET_DONE: Final = "set-done"
SET_OWED: Final = "set-owed"
#: Table and state go back to what they were before one of the writes, by its number: ``backup-0`` is the oldest.
BACKUP: Final = "backup-"
BACKUPS_MAX: Final = 16

# In Kafka.
#: The topic is deleted, and made anew under its name.
REMAKE_TOPIC: Final = "remake-topic"
#: The same, and other applications have written to it at once: its logs are as long as they were.
REFILL_TOPIC: Final = "refill-topic"
REFILLED_TO: Final = 100
#: The topic is deleted, and made anew by somebody later: at any point, or when a job or a person has missed it.
DELETE_TOPIC: Final = "delete-topic"
CREATE_TOPIC: Final = "create-topic"
_DELETING: Final = (REMAKE_TOPIC, REFILL_TOPIC, DELETE_TOPIC)

# With ``spark-2pc recover --take-over``, while the driver stands still.
RECOVER_ADOPT: Final = "recover-adopt"
RECOVER_ACCEPT_LOSS: Final = "recover-accept-loss"
RECOVER_DROP: Final = "recover-drop"
RECOVER_ACCEPT_REPLAY: Final = "recover-accept-replay"
#: With a word on how the open transaction ends, and no look into the table. It counts where nothing else tells.
RECOVER_COMMIT_OPEN: Final = "recover-commit-open"
RECOVER_ABORT_OPEN: Final = "recover-abort-open"
_END_OPEN: Final = (RECOVER_COMMIT_OPEN, RECOVER_ABORT_OPEN)
RECOVER: Final = {
    RECOVER_ADOPT: OperatorOptions(adopt=True),
    RECOVER_ACCEPT_LOSS: OperatorOptions(adopt=True, accept_loss=BatchRange(0, 0)),
    RECOVER_DROP: OperatorOptions(decision=OperatorDecision.DROP),
    RECOVER_ACCEPT_REPLAY: OperatorOptions(decision=OperatorDecision.ACCEPT_REPLAY),
}

#: The driver dies, and from here on the job is started with an option that is meant for one start.
ADOPT_LEFT_ON: Final = "adopt-left-on"
ACCEPT_REPLAY_LEFT_ON: Final = "accept-replay-left-on"
LEFT_ON: Final = (ADOPT_LEFT_ON, ACCEPT_REPLAY_LEFT_ON)

#: All kinds.
KINDS: Final = frozenset(
    {DELETE_ROW, DELETE_STATE, DELETE_HISTORY, SET_DONE, SET_OWED, *_DELETING, CREATE_TOPIC}
    | {*RECOVER, *_END_OPEN, *LEFT_ON}
    | {f"{BACKUP}{number}" for number in range(BACKUPS_MAX)}
)

#: What the product mends by itself: after no more than this, everything holds that holds without people.
MENDED: Final = (DELETE_ROW, DELETE_HISTORY)

# In answer to a halt.
#: ``recover --adopt``, and then the job.
ADOPT: Final = "adopt"
#: The job is started with adopt=True, once.
ADOPT_JOB: Final = "adopt-job"
#: The same with the batches named as lost, as the message prints it.
ACCEPT_LOSS: Final = "accept-loss"
ACCEPT_LOSS_JOB: Final = "accept-loss-job"
#: What the message has asked for first: the table gets what Kafka has and it lacks. Then as `ACCEPT_LOSS_JOB`.
REPAIR: Final = "repair"
DROP: Final = "drop"
ACCEPT_REPLAY: Final = "accept-replay"
#: ``recover --adopt --open-transaction`` with what the table tells.
END_OPEN: Final = "end-open"
#: The job is started with accept_replay and the batch.
LEAVE_OUT: Final = "leave-out"

#: What is done where nobody chooses something else. The sound product comes here where Spark has planned a batch anew.
_USUAL: Final = {HaltCause.RESEND_DIFFERS: ACCEPT_REPLAY, HaltCause.REPLAY_DIFFERS: LEAVE_OUT}
#: What can be done instead, of all remedies that the message has.
_ANSWERS: Final[dict[HaltCause, tuple[str, ...]]] = {
    HaltCause.ID_IN_USE: (ADOPT, ADOPT_JOB),
    HaltCause.OPEN_TRANSACTION: (ADOPT, ADOPT_JOB, END_OPEN),
    HaltCause.DATABASE_BEHIND: (ADOPT, ADOPT_JOB, ACCEPT_LOSS, ACCEPT_LOSS_JOB, REPAIR),
    HaltCause.COMMITS_LOST: (ADOPT, ADOPT_JOB, ACCEPT_LOSS_JOB, REPAIR),
    HaltCause.OUTCOME_LOST: (DROP, ACCEPT_REPLAY),
    HaltCause.TOPIC_REMADE: (DROP, ACCEPT_REPLAY),
    HaltCause.NOT_THE_FIRST_BATCH: (ADOPT_JOB, ACCEPT_LOSS_JOB, REPAIR),
    HaltCause.GAP: (ADOPT_JOB, ACCEPT_LOSS_JOB, REPAIR),
    HaltCause.BATCHES_RESTARTED: (ADOPT_JOB, REPAIR),
    HaltCause.OTHER_BATCH_OWED: (DROP,),
    HaltCause.RESEND_DIFFERS: (DROP,),
}
#: Of these the message asks first to compare both sides.
_COMPARED: Final = (HaltCause.OUTCOME_LOST, HaltCause.TOPIC_REMADE)
#: Where a message prints the batches to be named.
_NAMED: Final = re.compile(r"accept[-_]loss[ =]'?([0-9.]*[0-9])")


#: The kinds of which all pairs are run: what is lost, who goes on all the same, and how a halt is answered.
CORE: Final = frozenset(
    {faults.CRASH, faults.CHECKPOINT_BACK, DELETE_STATE, REMAKE_TOPIC, RECOVER_ADOPT}
    | {ADOPT_LEFT_ON, f"{BACKUP}2", *(answer for answers in _ANSWERS.values() for answer in answers)}
)


class People:
    """Everybody who is allowed to do something here.

    Attributes:
        acted: whether anybody has done what no message had asked for, and the product does not mend.
        leftover_options: what every start of the job says from here on.
        logs_unread: whether somebody who looked for lost batches was not answered.
    """

    def __init__(self, world: World) -> None:
        self.acted = False
        self.leftover_options = OperatorOptions()
        self.logs_unread = False
        self._world = world
        #: The batch that was in doubt when its row was deleted; and when its history was deleted too.
        self._deleted: int | None = None
        self._forgotten: int | None = None
        self._history_deleted = False
        self._state_lost = False
        #: Who has said how the open transaction ends, and how.
        self._end_open: list[tuple[JobDriver, OpenTransactionEnd]] = []

    @property
    def nothing_is_left(self) -> bool:
        """Whether neither side can show what both had: state lost or set back, and its traces in Kafka deleted.

        Those are in the topic, and in what the coordinator keeps of the id for a week. Nobody can tell then, and what
        comes of it is not promised. Nor is it where a start that sees nothing wrong gets no answer from the logs.
        """
        taken = {fault for _, fault in self._world.choices.taken}
        lost = self._state_lost or any(fault.startswith(BACKUP) for fault in taken)
        return lost and (self.logs_unread or not taken.isdisjoint({*_DELETING, faults.EXPIRY}))

    # --- at any point ------------------------------------------------------------------------------------------

    def offered(self, *, more_drivers: bool, others_stopped: bool) -> tuple[str, ...]:
        """What can be done now.

        Args:
            others_stopped: another driver stands still. A backup that has its claim is then not restored: a driver that
                goes on between its look at Kafka and InitProducerId finds the claim, and not what was lost behind it.
        """
        database = self._world.database
        row = database.row
        at_rest = row is not None and database.locked_by() is None
        backups = min(len(database.backups), BACKUPS_MAX)
        return (
            *((CREATE_TOPIC,) if self._world.broker.topic_gone else _DELETING),
            *LEFT_ON,
            *((*RECOVER, *_END_OPEN) if more_drivers else ()),
            *((DELETE_ROW, DELETE_STATE) if at_rest else ()),
            *((DELETE_HISTORY,) if database.has_history else ()),
            *((SET_DONE, SET_OWED) if at_rest and row is not None and row.status == DECIDED else ()),
            *(f"{BACKUP}{number}" for number in range(backups) if not others_stopped),
        )

    def act(self, choice: str) -> None:
        self.acted |= choice not in MENDED
        world = self._world
        if choice in RECOVER:
            operator_options = RECOVER[choice]
            self._accept(operator_options.decision, self._in_doubt())
            self._give_up(operator_options.accept_loss)
            world.run_alongside(Person, operator_options)
        elif choice in _END_OPEN:
            self._say_how_it_ends(OpenTransactionEnd(world.next_batch if choice == RECOVER_COMMIT_OPEN else None))
        elif choice in LEFT_ON:
            self.leftover_options = self._said(choice).merged_with(self.leftover_options)
            raise DriverCrashedError
        elif choice in (*_DELETING, CREATE_TOPIC):
            self._change_topic(choice)
        else:
            self._change_database(choice)
        self._heed()

    def make_missing_topic(self) -> None:
        """Who starts the job has read that it failed, or would fail, for want of its topic."""
        broker = self._world.broker
        if broker.topic_missed:
            self._world.trace("recreated the topic")
            broker.create_topic()

    def _change_topic(self, choice: str) -> None:
        broker = self._world.broker
        if choice != CREATE_TOPIC:
            self._world.ledger.gone += broker.delete_topic()
        if choice != DELETE_TOPIC:
            broker.create_topic(first_offset=REFILLED_TO if choice == REFILL_TOPIC else 0)

    def _change_database(self, choice: str) -> None:
        database = self._world.database
        if choice in (DELETE_ROW, DELETE_STATE):
            self._deleted = self._in_doubt()
            database.delete_row()
            if choice == DELETE_STATE or (self._history_deleted and not database.has_history):
                self._forget()
        elif choice == DELETE_HISTORY:
            self._history_deleted = True
            database.delete_history()
            if database.row is None:
                self._forget()
        elif choice == SET_DONE:
            self._accept(OperatorDecision.DROP, self._in_doubt())
            database.set_status(DONE)
        elif choice == SET_OWED:
            self._send_again()
            database.set_status(OWED)
        else:
            database.restore(int(choice.removeprefix(BACKUP)))

    def _say_how_it_ends(self, word: OpenTransactionEnd) -> None:
        person = self._world.start(Person, OperatorOptions(adopt=True, open_transaction=word))
        self._end_open.append((person, word))
        self._heed()
        self._world.switch_to(person)

    def _heed(self) -> None:
        """While nothing else tells, the batch may end on one side only, as a person says who has not looked."""
        database = self._world.database
        row = database.row
        if database.has_history if row is None else row.status != NONE or row.settled:
            return
        for person, word in self._end_open:
            if person.outcome != "running":
                continue
            if word.batch_id is not None:
                # That, and all before it, are on both sides then, as far as anybody knows.
                for lacking in (self._world.ledger.not_in_table, self._world.ledger.not_in_kafka):
                    lacking.update(range(word.batch_id + 1))
            elif self._world.next_batch not in self._world.ledger.written_again:
                self._world.ledger.written_again[self._world.next_batch] += 1

    def _forget(self) -> None:
        self._state_lost = self.acted = True
        self._world.database.delete_history()
        self._forgotten = self._deleted
        if not self._world.broker.has_open:
            self.note_abort()

    def note_abort(self) -> None:
        """What Kafka has open was aborted. If it was decided, and its decision is deleted, only the table knows of it.

        Its rows are then written once more, and nobody can tell.
        """
        if self._forgotten is not None:
            self._world.ledger.written_again[self._forgotten] += 1

    def _said(self, option: str) -> OperatorOptions:
        """What is left on; a replay is accepted of the batch that the row has."""
        if option == ADOPT_LEFT_ON:
            return OperatorOptions(adopt=True)
        row = self._world.database.row
        batch_id = 0 if row is None or row.batch_id is None else row.batch_id
        self._world.ledger.left_out.add(batch_id)
        self._world.ledger.any_replay.add(batch_id)
        return OperatorOptions(accept_replay=batch_id)

    def _in_doubt(self) -> int | None:
        """The batch that ``spark-2pc status`` shows as one that Kafka may lack, also of a row that is lost."""
        row = self._world.database.read_standing(TRANSACTIONAL_ID)
        return row.batch_id if row is not None and row.status in (DECIDED, OWED) else None

    def _send_again(self) -> None:
        batch_id = self._in_doubt()
        if batch_id is not None:
            self._world.ledger.written_again[batch_id] += 1

    def _give_up(self, lost: BatchRange | None) -> None:
        if lost is not None:
            named = range(lost.first, lost.last + 1)
            self._world.ledger.not_in_table.update(named)
            # They are passed over, whatever comes under their ids.
            self._world.ledger.left_out.update(named)

    def _accept(self, decision: OperatorDecision | None, batch_id: int | None) -> None:
        if batch_id is None:
            return
        if decision is OperatorDecision.DROP:
            self._world.ledger.not_in_kafka.add(batch_id)
        elif decision is OperatorDecision.ACCEPT_REPLAY:
            self._world.ledger.any_replay.add(batch_id)

    # --- after a halt ------------------------------------------------------------------------------------------

    def answer(self, halt: HaltError, batch_id: int) -> JobDriver | None:
        """Who is started now that a driver has halted at this batch; None where nobody dares."""
        world = self._world
        chosen = world.choices.choose(options) if (options := self._answers(halt.cause)) else GO
        if chosen is GO:
            chosen = _USUAL.get(halt.cause, GO)
        if chosen in (DROP, ACCEPT_REPLAY):
            decision = OperatorDecision.DROP if chosen == DROP else OperatorDecision.ACCEPT_REPLAY
            self._accept(decision, self._in_doubt())
            return world.start(Person, OperatorOptions(decision=decision, batch_id=self._in_doubt()))
        if chosen == LEAVE_OUT:
            world.ledger.left_out.add(batch_id)
            return world.start(JobDriver, OperatorOptions(accept_replay=batch_id))
        if chosen == END_OPEN:
            return world.start(Person, OperatorOptions(adopt=True, open_transaction=self._looked_up()))
        if chosen == GO:
            return None
        if chosen in (ADOPT, ADOPT_JOB):
            return world.start(Person if chosen == ADOPT else JobDriver, OperatorOptions(adopt=True))
        return self._name_the_lost(halt, chosen)

    def _looked_up(self) -> OpenTransactionEnd:
        """How the open transaction has to end: are its rows in the table, as those of the next batch?"""
        batch_id = self._world.next_batch
        decided = any(record.batch_id == batch_id for record in self._world.database.contents())
        return OpenTransactionEnd(batch_id if decided else None)

    def _name_the_lost(self, halt: HaltError, chosen: str) -> JobDriver | None:
        printed = _NAMED.search("\n".join(halt.remedies))
        if printed is None:
            return None
        lost = BatchRange.parse(printed[1])
        listed = self._only_in_kafka()
        if chosen == REPAIR and listed:
            # Who has compared knows the ids, also where batches without records lie between them.
            self._world.database.add(listed)
            lost = BatchRange(lost.first, max(lost.last, *(record.batch_id for record in listed)))
        self._give_up(lost)
        ledger = self._world.ledger
        # Who has not goes on behind the ids that are printed: the message says that they may be later ones.
        later = {record.batch_id for record in listed if record.batch_id > lost.last}
        ledger.not_in_table |= later
        ledger.written_again.update(later)
        kind = Person if chosen == ACCEPT_LOSS else JobDriver
        return self._world.start(kind, OperatorOptions(adopt=True, accept_loss=lost))

    def _answers(self, cause: HaltCause) -> tuple[str, ...]:
        """What can be answered. Who was asked to compare first does not say that Kafka lacks what it has."""
        options = _ANSWERS.get(cause, ()) if self._world.profile.people or cause in _USUAL else ()
        if cause not in _COMPARED:
            return options
        # A comparison waits for a commit that has begun.
        self._world.broker.drain()
        batch_id = self._in_doubt()
        has = any(record.batch_id == batch_id for record, _ in self._world.broker.committed())
        return tuple(each for each in options if not (has and each == ACCEPT_REPLAY))

    def _only_in_kafka(self) -> tuple[Record, ...]:
        """What a comparison of both sides shows that the table lacks."""
        table = set(self._world.database.contents())
        return tuple(record for record, _ in self._world.broker.committed() if record not in table)

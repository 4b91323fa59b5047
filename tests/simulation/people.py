"""People at night: what a person can do to the database, the topic and the job, at any point, and after a halt.

The faults in `faults` come from outside, and of each the product must make the best. Those here are meant well: each is
an act that a message, the README or a manual names, at a moment when it may be right or wrong. The verdict is `green`
in `checkers`: whatever ends without an error must be right, but for what the `ledger` says that somebody has accepted.

A person who acts *at any point* has read nothing: his words accept only the batch that ``spark-2pc status`` shows him.
A person who *answers a halt* has read it, and accepts what it names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from jdbc_state import DECIDED, DONE, OWED
from spark_2pc_sink.errors import HaltCause
from spark_2pc_sink.ids import BatchRange
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recipe.open_transaction import OpenTransactionEnd
from tests.simulation import faults
from tests.simulation.actors import DriverCrashedError
from tests.simulation.drivers import JobDriver, Person, Words
from tests.simulation.record import Record
from tests.simulation.schedule import GO

if TYPE_CHECKING:
    from spark_2pc_sink.errors import HaltError
    from tests.simulation.world import World

# In the database.
DELETE_ROW: Final = "delete-row"
DELETE_STATE: Final = "delete-row-and-history"
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

# With ``spark-2pc recover --take-over``, while the driver stands still.
RECOVER_ADOPT: Final = "recover-adopt"
RECOVER_ACCEPT_LOSS: Final = "recover-accept-loss"
RECOVER_DROP: Final = "recover-drop"
RECOVER_ACCEPT_REPLAY: Final = "recover-accept-replay"
RECOVER: Final = {
    RECOVER_ADOPT: Words(adopt=True),
    RECOVER_ACCEPT_LOSS: Words(adopt=True, accept_loss=BatchRange(0, 0)),
    RECOVER_DROP: Words(decision=OperatorDecision.DROP),
    RECOVER_ACCEPT_REPLAY: Words(decision=OperatorDecision.ACCEPT_REPLAY),
}

#: The driver dies, and from here on the job is started with an option that is meant for one start.
ADOPT_LEFT_ON: Final = "adopt-left-on"
ACCEPT_REPLAY_LEFT_ON: Final = "accept-replay-left-on"
LEFT_ON: Final = (ADOPT_LEFT_ON, ACCEPT_REPLAY_LEFT_ON)

#: All kinds.
KINDS: Final = frozenset(
    {DELETE_ROW, DELETE_STATE, SET_DONE, SET_OWED, REMAKE_TOPIC, REFILL_TOPIC, *RECOVER, *LEFT_ON}
    | {f"{BACKUP}{number}" for number in range(BACKUPS_MAX)}
)

#: What the product mends by itself: after no more than this, everything holds that holds without people.
MENDED: Final = (DELETE_ROW,)

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

    Args:
        world: where they do it.

    Attributes:
        acted: whether anybody has done what no message had asked for, and the product does not mend.
        left_on: what every start of the job says from here on.
    """

    def __init__(self, world: World) -> None:
        self.acted = False
        self.left_on = Words()
        self._world = world
        #: The batch that was in doubt when its row and history were deleted.
        self._forgotten: int | None = None

    @property
    def nothing_is_left(self) -> bool:
        """Whether neither side can show what both had: state lost or set back, and its traces in Kafka deleted.

        Those are in the topic, and in what the coordinator keeps of the id for a week. Nobody can tell then, and what
        comes of it is not promised.
        """
        taken = {fault for _, fault in self._world.choices.taken}
        lost = DELETE_STATE in taken or any(fault.startswith(BACKUP) for fault in taken)
        return lost and not taken.isdisjoint({REMAKE_TOPIC, REFILL_TOPIC, faults.EXPIRY})

    # --- at any point ------------------------------------------------------------------------------------------

    def offered(self, *, more_drivers: bool, others_stopped: bool) -> tuple[str, ...]:
        """What can be done now.

        Args:
            more_drivers: one more may be started.
            others_stopped: another driver stands still. A backup that has its claim is then not restored: a driver that
                goes on between its look at Kafka and InitProducerId finds the claim, and not what was lost behind it.
        """
        database = self._world.database
        row = database.row
        at_rest = row is not None and database.locked_by() is None
        backups = min(len(database.backups), BACKUPS_MAX)
        return (
            REMAKE_TOPIC,
            REFILL_TOPIC,
            *LEFT_ON,
            *(RECOVER if more_drivers else ()),
            *((DELETE_ROW, DELETE_STATE) if at_rest else ()),
            *((SET_DONE, SET_OWED) if at_rest and row is not None and row.status == DECIDED else ()),
            *(f"{BACKUP}{number}" for number in range(backups) if not others_stopped),
        )

    def act(self, choice: str) -> None:
        """Do it.

        Raises:
            DriverCrashedError: the driver is started again, with other options.
        """
        self.acted |= choice not in MENDED
        world = self._world
        if choice in RECOVER:
            words = RECOVER[choice]
            self._accept(words.decision, self._in_doubt())
            self._give_up(words.accept_loss)
            world.run_beside(Person, words)
        elif choice in LEFT_ON:
            self.left_on = self._said(choice).beside(self.left_on)
            raise DriverCrashedError
        elif choice in (REMAKE_TOPIC, REFILL_TOPIC):
            first_offset = REFILLED_TO if choice == REFILL_TOPIC else 0
            world.ledger.gone += world.broker.remake_topic(first_offset=first_offset)
        elif choice in (DELETE_ROW, DELETE_STATE):
            in_doubt = self._in_doubt()
            world.database.delete_row()
            if choice == DELETE_STATE:
                self._forget(in_doubt)
        elif choice == SET_DONE:
            self._accept(OperatorDecision.DROP, self._in_doubt())
            world.database.set_status(DONE)
        elif choice == SET_OWED:
            self._send_again()
            world.database.set_status(OWED)
        else:
            world.database.restore(int(choice.removeprefix(BACKUP)))

    def _forget(self, batch_id: int | None) -> None:
        self._world.database.delete_history()
        self._forgotten = batch_id
        if not self._world.broker.has_open:
            self.note_abort()

    def note_abort(self) -> None:
        """What Kafka has open was aborted. If it was decided, and its decision is deleted, only the table knows of it.

        Its rows are then written once more, and nobody can tell.
        """
        if self._forgotten is not None:
            self._world.ledger.written_again[self._forgotten] += 1

    def _said(self, option: str) -> Words:
        """What is left on; a replay is accepted of the batch that the row has."""
        if option == ADOPT_LEFT_ON:
            return Words(adopt=True)
        row = self._world.database.row
        batch_id = 0 if row is None or row.batch_id is None else row.batch_id
        self._world.ledger.left_out.add(batch_id)
        self._world.ledger.any_replay.add(batch_id)
        return Words(accept_replay=batch_id)

    def _in_doubt(self) -> int | None:
        """The batch that ``spark-2pc status`` shows as one that Kafka may lack."""
        row = self._world.database.row
        return row.batch_id if row is not None and row.status in (DECIDED, OWED) else None

    def _send_again(self) -> None:
        batch_id = self._in_doubt()
        if batch_id is not None:
            self._world.ledger.written_again[batch_id] += 1

    def _give_up(self, lost: BatchRange | None) -> None:
        if lost is not None:
            self._world.ledger.not_in_table.update(range(lost.first, lost.last + 1))

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
            return world.start(Person, Words(decision=decision, batch_id=self._in_doubt()))
        if chosen == LEAVE_OUT:
            world.ledger.left_out.add(batch_id)
            return world.start(JobDriver, Words(accept_replay=batch_id))
        if chosen == END_OPEN:
            return world.start(Person, Words(adopt=True, open_transaction=self._looked_up()))
        if chosen == GO:
            return None
        if chosen in (ADOPT, ADOPT_JOB):
            return world.start(Person if chosen == ADOPT else JobDriver, Words(adopt=True))
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
        return self._world.start(kind, Words(adopt=True, accept_loss=lost))

    def _answers(self, cause: HaltCause) -> tuple[str, ...]:
        """What can be answered. Who was asked to compare first does not say that Kafka lacks what it has."""
        options = _ANSWERS.get(cause, ()) if self._world.profile.people or cause in _USUAL else ()
        batch_id = self._in_doubt()
        has = cause in _COMPARED and any(record.batch_id == batch_id for record, _ in self._world.broker.committed())
        return tuple(each for each in options if not (has and each == ACCEPT_REPLAY))

    def _only_in_kafka(self) -> tuple[Record, ...]:
        """What a comparison of both sides shows that the table lacks."""
        table = set(self._world.database.contents())
        return tuple(record for record, _ in self._world.broker.committed() if record not in table)

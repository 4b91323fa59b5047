"""The world of one schedule: both servers, the clock, Spark's commit log, the drivers, and whose turn it is.

Its ledger has what people accepted: which difference between the two sides is excused, batch by batch. What the product
did afterwards does not count. A person who drops batch 1 has accepted that Kafka lacks batch 1, and not that it lacks
batch 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from spark_2pc_sink.errors import DualWriteError, HaltCause, HaltError
from spark_2pc_sink.sink.driver.batch_values import TransactionTicket
from tests.simulation import faults, people
from tests.simulation.broker import TIMEOUT_MS, Record, SimBroker
from tests.simulation.database import SimDatabase
from tests.simulation.drivers import (
    DriverCrashedError,
    Intruder,
    JobDriver,
    NextStart,
    Operator,
    OperatorOptions,
    TaskFailedError,
)
from tests.simulation.people import People
from tests.simulation.schedule import GO, PROFILES, Choices, Profile

KAFKA = "Kafka"
TABLE = "table"


@dataclass
class Ledger:
    """The batches that persons have named, by what they accepted.

    Attributes:
        any_replay: Kafka may have another evaluation than the table (``recover --accept-replay``).
        left_out: both sides may have another evaluation than Spark has now (``accept_replay=True``, ``accept_loss``).
        not_in_kafka: Kafka may lack it (``--drop``, or a status set to done by hand).
        written_again: a side may have it so often once more (a status set to owed, batches that only *may* be named).
        gone: what readers of a topic had seen before a person deleted it.
    """

    any_replay: set[int] = field(default_factory=set)
    left_out: set[int] = field(default_factory=set)
    not_in_kafka: set[int] = field(default_factory=set)
    not_in_table: set[int] = field(default_factory=set)
    written_again: Counter[int] = field(default_factory=Counter)
    gone: list[tuple[Record, str]] = field(default_factory=list)

    def seen(self, record: Record) -> Record:
        """The record, without the evaluation that it comes from where any was accepted."""
        return replace(record, version=0) if record.batch_id in self.any_replay else record

    def may_lack(self, side: str, batch_id: int) -> bool:
        return batch_id in (self.not_in_kafka if side == KAFKA else self.not_in_table)

    def times_max(self, batch_id: int) -> int:
        return 1 + self.written_again[batch_id]


_T = TypeVar("_T")
#: Drivers and operators that faults may start beside the one that runs.
EXTRA_MAX: Final = 3
#: Restarts of the query before it counts as stuck: each fault can end one run, and a late request another.
STARTS_MAX: Final = 24
#: A batch came that has no place beside the state row.
_NO_PLACE: Final = (
    HaltCause.NOT_THE_FIRST_BATCH,
    HaltCause.GAP,
    HaltCause.BATCHES_RESTARTED,
    HaltCause.OTHER_BATCH_OWED,
)
#: Requests after the last fault. A run without faults makes about 30.
REQUESTS_MAX: Final = 200

_STARTED: Final[dict[str, type[JobDriver]]] = {
    faults.SECOND_DRIVER: JobDriver,
    faults.OPERATOR: Operator,
    faults.INTRUDER: Intruder,
}


class StuckError(Exception):
    """Faults are over, and the job does not come to an end."""


class World:
    """See the module. It is also the clock of every driver: time passes when somebody waits, or when it stands still.

    Args:
        profile: its name, or one of its own.
    """

    def __init__(self, profile: str | Profile, choices: Choices, *, tracing: bool = False) -> None:
        self.profile = PROFILES[profile] if isinstance(profile, str) else profile
        self.choices = choices
        self.broker = SimBroker(self.profile)
        self.database = SimDatabase()
        self.drivers: list[JobDriver] = []
        self.halts: list[HaltError] = []
        self.people = People(self)
        self.ledger = Ledger()
        self.errors: list[DualWriteError] = []
        #: Which attempts began with which pair.
        self.begun: dict[str, list[tuple[TransactionTicket, int]]] = {}
        self.traced: list[str] = []
        #: The request at the last choice point.
        self.request = ""
        self.next_batch = 0
        #: Of each batch how often Spark has planned it anew, because its checkpoint was set back.
        self.plans: Counter[int] = Counter()
        #: The checkpoint before it was set back, until Spark records a batch in the older one.
        self._newest: tuple[int, Counter[int]] | None = None
        self.tracing = tracing
        self._now_s = 0.0
        self._late: list[Callable[[], object]] = []
        self._stopped: list[JobDriver] = []
        self._running: JobDriver | None = None
        self._turn: JobDriver | None = None
        self._unanswered: tuple[HaltError, int] | None = None
        self._extra = 0
        #: The query was started once more after its end.
        self.looked = False
        self._evaluations: dict[int, int] = {}

    # --- the clock ---------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        self._now_s += max(seconds, 0.001)
        self.broker.now_ms = int(self._now_s * 1000)

    # --- what drivers do ---------------------------------------------------------------------------------------

    def io(
        self,
        kind: str,
        what: str,
        effect: Callable[[], _T],
        lost: Callable[[], Exception],
        *,
        hang: Callable[[], None] | None = None,
    ) -> _T:
        """One request of the running driver: a choice point, then the effect.

        Args:
            effect: the request as the server carries it out.
            lost: the error of a request or a reply that was lost.
        """
        while True:
            choice = self._choose(kind, what)
            if choice is GO:
                return effect()
            if choice == faults.RESEND:
                effect()
                return effect()
            if choice == faults.LATE_COPY:
                self._late.append(effect)
                return effect()
            if choice in (faults.SLOW_MARKERS, faults.ONE_MARKER):
                return self._answer_early(choice, effect)
            if choice in people.KINDS:
                self.people.act(choice)
            elif not self._surroundings(choice):
                self._fail(choice, effect, lost, hang)

    def begins(self, ticket: TransactionTicket, batch_id: int) -> None:
        """A transaction is about to begin with the pair of this ticket."""
        attempts = self.begun.setdefault(str(ticket.producer), [])
        # Each attempt has a ticket of its own, which may be equal to another one's.
        if not any(known is ticket for known, _ in attempts):
            attempts.append((ticket, batch_id))

    def evaluate(self, batch_id: int) -> tuple[Record, ...]:
        """The rows of a batch, as Spark computes them this time."""
        version = self._evaluations[batch_id] = self._evaluations.get(batch_id, -1) + 1
        version = version if self.profile.drifts else self.plans[batch_id]
        return tuple(
            Record(batch_id, partition, number, version)
            for partition, count in enumerate(self.profile.records_of(batch_id))
            for number in range(count)
        )

    def note_batch(self, batch_id: int) -> None:
        """Spark's commit log has the batch."""
        self.next_batch = max(self.next_batch, batch_id + 1)
        self._newest = None

    def note_halt(self, error: HaltError, batch_id: int) -> None:
        """A driver has halted at a batch. Where Spark is further by now, that driver's checkpoint was overtaken."""
        overtaken = error.cause in _NO_PLACE and batch_id < self.next_batch
        if not overtaken or self.lost_commits:
            self.halts.append(error)
            self._unanswered = error, batch_id

    def trace(self, text: str) -> None:
        """Keep some lines, where somebody will read it."""
        if self.tracing:
            self.traced += text.splitlines()

    @property
    def lost_commits(self) -> bool:
        """Whether the database has lost something that it had committed."""
        return any(fault in faults.LOSING for _, fault in self.choices.taken)

    # --- the scheduler -----------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Every batch is in Spark's commit log."""
        return self.next_batch == len(self.profile.batches)

    def run(self) -> None:
        """Run the job to its end, whatever happens; then let everything arrive that is still on its way."""
        try:
            for _ in range(STARTS_MAX):
                driver = self._next()
                if driver is None:
                    self._rest()
                    return
                self._run_until_all_stop(driver)
            raise StuckError(f"not finished after {STARTS_MAX} starts")
        finally:
            for each in self._stopped:
                each.actor.kill()

    def _next(self) -> JobDriver | None:
        """Who is started when nobody runs any more: the query again, or a person after a halt; None at the end."""
        unanswered, self._unanswered = self._unanswered, None
        if self.finished:
            return self._last_look() if self.profile.loses_commits or self.profile.people else None
        if unanswered is None or self._restore_checkpoint():
            self.people.make_missing_topic()
            return self.start(JobDriver)
        return self.people.answer(*unanswered)

    def _set_checkpoint_back(self) -> None:
        if self._newest is None:
            self._newest = self.next_batch, self.plans.copy()
        self.next_batch -= 1
        self.plans.update(range(self.next_batch, len(self.profile.batches)))

    def _restore_checkpoint(self) -> bool:
        """What the halt asks for first, where the checkpoint was set back; False where it was not."""
        if self._newest is None:
            return False
        (self.next_batch, self.plans), self._newest = self._newest, None
        self.trace("restored the newest checkpoint")
        return True

    def _last_look(self) -> JobDriver | None:
        """The job is through. What the database has lost since then, the next start notices, without more faults."""
        if self.looked or (self.halts and not self.profile.people):
            return None
        self.looked = True
        return self.start(NextStart)

    def _run_until_all_stop(self, driver: JobDriver) -> None:
        """Run it, whoever is started or goes on in its place, and in the end all that stood still."""
        following: JobDriver | None = driver
        while following is not None:
            self._running = following
            following.actor.resume()
            following, self._turn = self._turn, None
            if following is None and self._stopped:
                following = self._stopped.pop()
                self.trace(f"{following} continues")

    def start(self, kind: type[JobDriver], operator_options: OperatorOptions | None = None) -> JobDriver:
        """Start a driver or a person; the job also with the options that were left on."""
        operator_options = operator_options or OperatorOptions()
        if not issubclass(kind, Operator):
            operator_options = operator_options.merged_with(self.people.leftover_options)
        driver = kind(self, len(self.drivers) + 1, operator_options)
        self.drivers.append(driver)
        self.trace(f"{driver} starts{'' if operator_options == OperatorOptions() else f' with {operator_options}'}")
        return driver

    def run_alongside(self, kind: type[JobDriver], operator_options: OperatorOptions | None = None) -> None:
        """Pause the running driver while a new one runs."""
        self.switch_to(self.start(kind, operator_options))

    def switch_to(self, other: JobDriver) -> None:
        """Pause the running driver while this one runs."""
        self._extra += 1
        self._stop(other)

    def in_kafka(self) -> list[tuple[Record, str]]:
        """The committed records and their pairs, with those that readers had seen before their topic was deleted."""
        return self.ledger.gone + self.broker.committed()

    def _rest(self) -> None:
        while self._late:
            self._late.pop(0)()
        self.database.finish_hanging()
        self.broker.drain()

    # --- choices -----------------------------------------------------------------------------------------------

    def _choose(self, kind: str, what: str) -> str:
        options: Sequence[str] = ()
        if not self.looked and self.choices.wants_options:
            options = faults.offered(kind, self._possible(kind))
            if self.profile.people:
                options = (*options, *self._people_options())
        self.request = what
        position = len(self.choices.offered)
        if position - self.choices.last_taken > REQUESTS_MAX:
            raise StuckError(f"not finished {REQUESTS_MAX} requests after the last fault")
        choice = self.choices.choose(options)
        if self.tracing:
            self.trace(f"{position:4} {self._running}: {what}{'' if choice is GO else f' <-- {choice}'}")
        return choice

    def _possible(self, kind: str) -> tuple[bool, ...]:
        """As `faults.CONDITIONAL`."""
        broker, database, profile = self.broker, self.database, self.profile
        may_time_out, at_rest = broker.standing
        more_drivers = self._extra < EXTRA_MAX
        stopped = bool(self._stopped)
        markers = bool(broker.effects) and kind in (faults.KAFKA, faults.PRODUCE)
        loses = profile.loses_commits and database.before_batch is not None
        return (
            more_drivers,
            more_drivers,
            # Where people delete the row, or adopt it, another query may have it.
            more_drivers and database.owned and not profile.people,
            stopped,
            may_time_out,
            at_rest,
            markers,
            markers,
            database.has_sessions,
            bool(self._late) or database.hanging is not None,
            loses,
            loses,
            # Nobody else may be at work on the checkpoint.
            self.next_batch > 0 and not stopped and not profile.loses_commits,
        )

    def _people_options(self) -> tuple[str, ...]:
        return self.people.offered(more_drivers=self._extra < EXTRA_MAX, others_stopped=bool(self._stopped))

    def _answer_early(self, choice: str, effect: Callable[[], _T]) -> _T:
        broker = self.broker
        if choice == faults.ONE_MARKER:
            broker.write_one_marker()
        effects, broker.effects = broker.effects, type(broker.effects)()
        reply = effect()
        broker.effects.extendleft(reversed(effects))
        return reply

    def _surroundings(self, choice: str) -> bool:
        """Let something happen beside the request; False where the choice is about the request or its driver."""
        if choice == faults.BROKER_CRASH:
            self.broker.crash()
        elif choice == faults.TIMEOUT:
            self.sleep(2 * TIMEOUT_MS / 1000)
            self.broker.time_out()
            self.people.note_abort()
        elif choice == faults.EXPIRY:
            self.sleep(2 * self.profile.settings.transactional_id_expiration_ms / 1000)
            self.broker.expire()
        elif choice == faults.FORCE_TERMINATE:
            self.broker.force_terminate()
            self.people.note_abort()
        elif choice == faults.DATABASE_CUT:
            self.database.cut()
        elif choice in faults.LOSING:
            self._fail_over(choice)
        elif choice == faults.ARRIVE:
            self._arrive()
        elif choice in _STARTED:
            self.run_alongside(_STARTED[choice])
        elif choice == faults.SWITCH:
            self._stop(self._stopped.pop(0))
        else:
            return False
        return True

    def _fail_over(self, choice: str) -> None:
        database = self.database
        standby = database.before_batch if choice == faults.ASYNC_FAILOVER else database.before_write
        if standby is None:
            raise AssertionError("offered without a standby to fail over to")
        database.fail_over_to(standby)

    def _arrive(self) -> None:
        if self._late:
            self._late.pop(0)()
        else:
            self.database.finish_hanging()

    def _stop(self, follower: JobDriver) -> None:
        """The running driver stands still, and another goes on."""
        driver = self._running
        if driver is None:
            raise AssertionError("no driver is running")
        self._stopped.append(driver)
        self._turn = follower
        driver.actor.stop()
        if driver in self._stopped:
            raise AssertionError("the driver that continues is still in the queue")

    def _fail(
        self, choice: str, effect: Callable[[], object], lost: Callable[[], Exception], hang: Callable[[], None] | None
    ) -> None:
        """Let the request, or its driver, fail."""
        if choice == faults.CRASH:
            raise DriverCrashedError
        if choice == faults.CHECKPOINT_BACK:
            self._set_checkpoint_back()
            raise DriverCrashedError
        if choice == faults.CRASH_TASKS_LIVE:
            self._late.append(effect)
            raise DriverCrashedError
        if choice == faults.TASK_FAILS:
            effect()
            raise TaskFailedError
        if choice == faults.LOSE_REPLY:
            try:
                effect()
            except DualWriteError as error:
                self.trace(f"  the lost reply: {error!r}")
        elif choice == faults.DELAY:
            self._late.append(effect)
        elif choice == faults.HANG and hang is not None:
            hang()
        raise lost()

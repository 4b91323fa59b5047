"""Transactional ids of one process: which it holds, which are free, and which must be settled.

``name-0`` to ``name-(ids_max - 1)`` are shared by all processes of a service. A process takes an id by the claim of its
state row, only if no live process has it, and only if the row is unchanged since that was checked. If the claim is lost
nevertheless, the next decision is refused, and the id is dropped.

Ids left by a dead process are settled by another one, at its start and every `SURVEY_INTERVAL_S`. The id that was free
for longest is used next, so that the coordinator has written its end markers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from jdbc_state import StateRow
from jdbc_state.sink_log import sink_log
from jdbc_state.survey import Survey
from spark_2pc_sink.clock import Clock
from spark_2pc_sink.errors import (
    ClaimRefusedError,
    DualWriteError,
    HaltError,
    KafkaTimeoutError,
    LocalProtocolError,
    SupersededError,
)
from spark_2pc_sink.options import ServiceOptions
from spark_2pc_sink.options.settings import refused
from spark_2pc_sink.service.id_writer import ConnectedId, IdWriter

#: How often the keeper looks for ids to be noted or settled, in seconds; and for those left by dead processes.
NOTE_INTERVAL_S: Final = 1.0
SURVEY_INTERVAL_S: Final = 30.0


class IdPool:
    """Holds the ids of this process, and lends them; ``connect`` makes the connections of one id, and does no I/O."""

    def __init__(
        self,
        options: ServiceOptions,
        *,
        survey: Callable[[], Survey],
        connect: Callable[[str], ConnectedId],
        clock: Clock,
    ) -> None:
        self._options = options
        self._read_survey = survey
        self._connect = connect
        self._clock = clock
        self._log = sink_log(__name__, options.transactional_id)
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        # The keeper waits here: otherwise every returned id would wake it.
        self._to_settle = threading.Condition(lock)
        self._held: dict[str, ConnectedId] = {}
        self._free: deque[IdWriter] = deque()
        self._unsettled: deque[IdWriter] = deque()
        self._lent = 0
        #: Ids that this process has given up, because a person has to decide.
        self._halted = 0
        self._open = True
        self._keeper: threading.Thread | None = None
        self._surveyed_at_s = clock.now_s()

    @property
    def size(self) -> int:
        with self._changed:
            return len(self._held)

    def start(self) -> None:
        """Take ids, settle those left by dead processes, and start the keeper."""
        self._take(self._read_survey(), first=True)
        if not self._held:
            rule = f"every transactional id of {self._options.transactional_id!r} is held by another process"
            remedy = "raise ids_max, or lower ids of all processes"
            raise refused("ids_max", self._options.ids_max, rule, remedy)
        if len(self._held) < self._options.ids:
            self._log.warning(
                "took only %d of %d transactional ids, as other processes hold the rest; raise ids_max=%d",
                len(self._held),
                self._options.ids,
                self._options.ids_max,
            )
        self._keeper = threading.Thread(target=self._keep, name="spark_2pc_sink ids", daemon=True)
        self._keeper.start()

    def close(self, *, limit_s: float) -> None:
        """Write the pending notes, and close every connection, after waiting ``limit_s`` for ids that are lent."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
            self._to_settle.notify_all()
            self._changed.wait_for(lambda: self._lent == 0, limit_s)
        if self._keeper is not None:
            self._keeper.join(limit_s)
        with self._changed:
            handles, self._held = list(self._held.values()), {}
            self._free.clear()
            self._unsettled.clear()
        for handle in handles:
            was_settled = not handle.writer.unsettled
            self._note(handle.writer)
            if was_settled and handle.writer.unsettled:
                # Kafka has not completed its last transaction, and the id is not looked at again before the next start.
                self._recovered(handle.writer)
            handle.close()

    def acquire(self) -> IdWriter:
        """Lend the id that was free for longest, until `release`; KafkaTimeoutError after ``wait_for_id_ms``."""
        limit_ms = self._options.wait_for_id_ms
        with self._changed:
            self._changed.wait_for(lambda: self._free or not self._open, limit_ms / 1000)
            if not self._open:
                raise closed_error()
            if not self._free:
                held, name = len(self._held), self._options.transactional_id
                halted = f", {self._halted} need an operator (spark-2pc status)" if self._halted else ""
                raise KafkaTimeoutError(
                    operation=f"waiting for one of {held} transactional ids of {name!r}",
                    deadline_ms=limit_ms,
                    last_error=f"{self._lent} are in use, {held - self._lent} have to be settled first{halted}; raise "
                    "ids if that is usual",
                )
            self._lent += 1
            return self._free.popleft()

    def release(self, writer: IdWriter) -> None:
        """The transaction is over, or has failed: then the keeper settles the id."""
        with self._changed:
            self._lent -= 1
            self._put(writer)

    def _put(self, writer: IdWriter) -> None:
        """Let an id be lent, or be settled first."""
        with self._changed:
            if writer.unsettled:
                self._unsettled.append(writer)
                self._to_settle.notify()
            else:
                self._free.append(writer)
            self._changed.notify_all()

    def _keep(self) -> None:
        while True:
            with self._changed:
                self._to_settle.wait_for(lambda: self._unsettled or not self._open, NOTE_INTERVAL_S)
                if not self._open:
                    return
                unsettled = [self._unsettled.popleft() for _ in range(len(self._unsettled))]
            failed = [writer for writer in unsettled if not self._recovered(writer)]
            # Write the note that the next decision would write, if no decision has followed for a while.
            for writer in self._taken_out(lambda each: (each.unnoted_s or 0) > NOTE_INTERVAL_S):
                self._note(writer)
                self._put(writer)
            if self._clock.now_s() - self._surveyed_at_s > min(SURVEY_INTERVAL_S, self._options.takeover_grace_s / 2):
                self._surveyed_at_s = self._clock.now_s()
                try:
                    survey = self._read_survey()
                    self._touch(survey)
                    self._take(survey, first=False)
                except DualWriteError as error:
                    self._log.warning("could not search for ids of dead processes: %s", error)
            with self._changed:
                self._unsettled.extend(failed)
                if failed:
                    self._to_settle.wait_for(lambda: not self._open, NOTE_INTERVAL_S)

    def _recovered(self, writer: IdWriter) -> bool:
        """Settle one id; False if it must be retried."""
        try:
            writer.recover()
        except SupersededError as error:
            self._log.warning("another process has taken %s: %s", writer.transactional_id, error)
            self._drop(writer)
            return True
        except HaltError as error:
            # It is left for the operator, and for the start of the next process, which reports the same.
            self._log.error("stopped using %s: %s", writer.transactional_id, error)
            self._halted += 1
            self._drop(writer)
            return True
        except DualWriteError as error:
            self._log.warning("could not settle %s yet: %s", writer.transactional_id, error)
            return False
        except Exception:  # noqa: BLE001 - only the keeper settles ids, so it must continue
            self._log.exception("could not settle %s yet", writer.transactional_id)
            return False
        self._put(writer)
        return True

    def _drop(self, writer: IdWriter) -> None:
        with self._changed:
            handle = self._held.pop(writer.transactional_id, None)
        if handle is not None:
            handle.close()

    def _taken_out(self, chosen: Callable[[IdWriter], bool]) -> list[IdWriter]:
        """Take free ids out, so that they are not lent until they are put back."""
        with self._changed:
            found = [each for each in self._free if chosen(each)]
            for writer in found:
                self._free.remove(writer)
        return found

    def _note(self, writer: IdWriter) -> None:
        try:
            writer.note()
        except DualWriteError as error:
            self._log.warning("%s: could not note a commit in Kafka: %s", writer.transactional_id, error)
        except Exception:  # noqa: BLE001 - as in `_recovered`, which has it next
            self._log.exception("%s: could not note a commit in Kafka", writer.transactional_id)
            writer.unsettled = True

    def _touch(self, survey: Survey) -> None:
        """Renew the claim of ids unused for a while, if only the age of the row shows that this process lives."""
        old_s = self._options.takeover_grace_s / 4
        hidden = {name for name, driver in survey.drivers.items() if driver.alive is None}
        old = {row.transactional_id for row in survey.rows if row.age_s >= old_s} & hidden
        for writer in self._taken_out(lambda each: each.transactional_id in old):
            if not self._recovered(writer):
                self._put(writer)

    def _take(self, survey: Survey, *, first: bool) -> None:
        """Take the wanted number of ids: those left by dead processes before new ones."""
        found = list(self._found(survey))
        # Ids that were used come first.
        for transactional_id, row in sorted(found, key=lambda each: each[1] is None):
            if self.size < self._options.ids:
                self._hold(transactional_id, row, first=first)
            elif row is not None and row.run_id is not None:
                self._settle_for_others(transactional_id, row)

    def _found(self, survey: Survey) -> Iterator[tuple[str, StateRow | None]]:
        """The ids that no living process holds, with the state rows of those that were used."""
        rows = {row.transactional_id: row for row in (*survey.lost, *survey.rows)}
        unreadable = {each.transactional_id for each in survey.unreadable}
        for number in range(self._options.ids_max):
            transactional_id = self._options.id_of(number)
            row = rows.get(transactional_id)
            taken = transactional_id in self._held or transactional_id in unreadable
            if not taken and (row is None or not self._is_held(row, survey)):
                yield transactional_id, row

    def _is_held(self, row: StateRow, survey: Survey) -> bool:
        driver = survey.drivers.get(row.transactional_id)
        if row.run_id is None or driver is None:
            return False
        return row.age_s < self._options.takeover_grace_s if driver.alive is None else driver.alive

    def _hold(self, transactional_id: str, row: StateRow | None, *, first: bool) -> None:
        """Take one id, unless another process was faster."""
        handle = self._connect(transactional_id)
        try:
            handle.writer.recover(expected=row)
        except SupersededError:
            handle.close()
            return
        except DualWriteError:
            handle.close()
            if first:
                raise
            self._log.exception("could not take %s", transactional_id)
            return
        with self._changed:
            self._held[transactional_id] = handle
            self._put(handle.writer)

    def _settle_for_others(self, transactional_id: str, row: StateRow) -> None:
        """Settle an id of a dead process that this process does not need, and release it."""
        handle = self._connect(transactional_id)
        try:
            handle.writer.recover(expected=row)
            handle.release()
        except SupersededError:
            return
        except (HaltError, ClaimRefusedError) as error:
            self._log.error("could not settle %s: %s", transactional_id, error)
        finally:
            handle.close()


def closed_error() -> LocalProtocolError:
    return LocalProtocolError(operation="transaction", state="closed", rule="no transaction can begin after close()")

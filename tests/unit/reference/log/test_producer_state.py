"""What a partition leader lets producers append (KIP-98, KIP-360, KIP-890), case by case and against their history."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.codes import Code
from spark_2pc_sink.reference.log.producer_state import (
    EndMarker,
    ProducerStates,
    VerificationGuard,
    Writer,
)
from spark_2pc_sink.wire.batch_format import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader

PID = 7
SEQUENCE_LAST = 2**31 - 1


def header(
    epoch: int, sequence: int, count: int = 1, *, at: int = 0, transactional: bool = False, pid: int = PID, ms: int = 5
) -> BatchHeader:
    attributes = TRANSACTIONAL_BIT if transactional else 0
    return BatchHeader(at, 100, 0, 2, 0, attributes, count - 1, ms, ms, pid, epoch, sequence, count)


def control(epoch: int, *, at: int = 0, pid: int = PID, ms: int = 9) -> BatchHeader:
    return BatchHeader(at, 66, 0, 2, 0, TRANSACTIONAL_BIT | CONTROL_BIT, 0, ms, ms, pid, epoch, -1, 1)


def test_producers_expire_but_never_with_an_open_transaction() -> None:
    states = ProducerStates()
    for offset, batch in enumerate((header(0, 0, pid=1, ms=100), header(0, 0, pid=2, ms=101))):
        states.batch_written(batch._replace(base_offset=offset))
    states.batch_written(header(0, 0, at=2, transactional=True, pid=3))
    states.expire(1100, 1000)
    assert [entry.producer_id for entry in states.entries()] == [2, 3]


def test_a_guard_expires_too() -> None:
    states = ProducerStates()

    def ask(now_ms: int) -> VerificationGuard:
        guard = states.start_verification(Writer(PID, 0, 0), supports_epoch_bump=True, now_ms=now_ms)
        assert isinstance(guard, VerificationGuard)
        return guard

    guard = ask(100)
    states.expire(1099, 1000)
    assert ask(1099) is guard
    states.expire(1100, 1000)
    assert ask(1100) is not guard


# --- against the history ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """What happened to one producer id, in order: a batch, a marker, or a question to the coordinator."""

    kind: str
    epoch: int
    sequence: int = -1
    count: int = 0
    offset: int = -1
    transactional: bool = False
    bumps: bool = False
    guard: VerificationGuard | None = None
    coordinator: int = -1


class History:
    """The rules told again from everything that happened, without any state that is kept up to date."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def written(self) -> list[Event]:
        return [event for event in self.events if event.kind != "ask"]

    def epoch(self) -> int:
        return self.written()[-1].epoch if self.written() else -1

    def remembered(self) -> list[Event]:
        """Data batches since the epoch last changed, at most five."""
        run: list[Event] = []
        for event in reversed(self.written()):
            if event.epoch != self.epoch():
                break
            run.insert(0, event)
        return [event for event in run if event.kind == "data"][-5:]

    def open_since(self) -> int | None:
        start = None
        for event in self.written():
            if event.kind == "marker":
                start = None
            elif event.transactional and start is None:
                start = event.offset
        return start

    def coordinator(self) -> int:
        return max((event.coordinator for event in self.events), default=-1)

    def asked(self) -> list[Event]:
        """The questions that share the guard which is valid now; none where none is."""
        asks: list[Event] = []
        for event in self.events:
            latest = max((ask.epoch for ask in asks), default=-1)
            if event.kind == "ask":
                asks.append(event)
            elif event.kind == "marker" and asks and asks[0].bumps and latest == event.epoch:
                continue
            elif event.kind == "marker" or event.transactional:
                asks = []
        return asks

    def sequence_due(self, event: Event) -> bool:
        asks = self.asked()
        remembered = self.remembered()
        if asks:
            latest = max(ask.epoch for ask in asks)
            if asks[0].bumps and not remembered and event.sequence != 0:
                return False
            if event.sequence > min(ask.sequence for ask in asks if ask.epoch == latest):
                return False
        if not self.written():
            return True
        if event.epoch > self.epoch() or not remembered:
            return event.sequence == 0
        return event.sequence == (remembered[-1].sequence + remembered[-1].count) % 2**31

    def verdict(self, event: Event) -> Code:
        """What a batch must be answered that is no duplicate."""
        opened = self.open_since() is not None
        if event.epoch < self.epoch():
            return Code.INVALID_PRODUCER_EPOCH
        in_open = opened and event.epoch == self.epoch()
        guarded = event.guard is not None and event.guard in [ask.guard for ask in self.asked()]
        if event.transactional and not in_open and not guarded:
            return Code.INVALID_TXN_STATE
        if not self.sequence_due(event):
            return Code.OUT_OF_ORDER_SEQUENCE_NUMBER
        if opened and not event.transactional:
            return Code.INVALID_TXN_STATE
        return Code.NONE


EPOCHS = st.sampled_from([0, 1, 2, 32767])
SEQUENCES = st.sampled_from([0, 1, 2, 3, 4, SEQUENCE_LAST - 1, SEQUENCE_LAST])
COMMANDS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), EPOCHS, SEQUENCES, st.booleans()),
        # The guard: of the last question, of the first one, or none; the sequence: a fixed one, or the one due.
        st.tuples(
            st.just("data"),
            EPOCHS,
            st.one_of(SEQUENCES, st.none()),
            st.integers(1, 3),
            st.booleans(),
            st.sampled_from([-1, 0, None]),
        ),
        st.tuples(st.just("marker"), EPOCHS, st.integers(0, 2), st.integers(0, 2)),
    ),
    max_size=30,
)


def run(
    history: History, states: ProducerStates, command: tuple[object, ...], guards: list[VerificationGuard], end: int
) -> int:
    """One command on both; the offset behind it."""
    kind, epoch, *rest = command
    assert isinstance(epoch, int)
    if kind == "ask":
        sequence, bumps = rest
        started = states.start_verification(Writer(PID, epoch, sequence), supports_epoch_bump=bool(bumps), now_ms=0)  # type: ignore[arg-type]
        if epoch < history.epoch():
            assert started is Code.INVALID_PRODUCER_EPOCH
        elif history.open_since() is not None and epoch == history.epoch():
            assert started is Code.NONE
        else:
            assert isinstance(started, VerificationGuard)
            valid = history.asked()
            assert (started is valid[0].guard) if valid else (started not in guards)
            guards.append(started)
            history.events.append(Event("ask", epoch, sequence, bumps=bool(bumps), guard=started))  # type: ignore[arg-type]
        return end
    if kind == "data":
        return run_data(history, states, epoch, rest, guards, end)
    version, coordinator = rest
    assert isinstance(version, int)
    assert isinstance(coordinator, int)
    return run_marker(history, states, EndMarker(PID, epoch, False, coordinator, version), end)


def run_data(
    history: History, states: ProducerStates, epoch: int, rest: list[object], guards: list[VerificationGuard], end: int
) -> int:
    sequence, count, transactional, which = rest
    remembered = history.remembered()
    due = remembered[-1].sequence + remembered[-1].count if remembered else 0
    first = due % 2**31 if sequence is None else sequence
    assert isinstance(first, int)
    assert isinstance(count, int)
    guard = guards[which] if isinstance(which, int) and guards else None
    event = Event("data", epoch, first, count, end, bool(transactional), guard=guard)
    batch = header(epoch, first, count, at=end, transactional=bool(transactional))
    same = [each for each in remembered if (each.sequence, each.count) == (first, count) and epoch == history.epoch()]
    duplicate = states.duplicate(batch)
    assert (duplicate and duplicate.first_offset) == (same[0].offset if same else None)
    if same:
        return end
    assert states.check_batch(batch, guard) == history.verdict(event)
    if history.verdict(event) != Code.NONE:
        return end
    states.batch_written(batch)
    history.events.append(event)
    return end + count


def run_marker(history: History, states: ProducerStates, marker: EndMarker, end: int) -> int:
    epoch, opened = marker.producer_epoch, history.open_since()
    if marker.transaction_version >= 2:
        stale = epoch < history.epoch() or (epoch == history.epoch() and opened is not None and epoch != 32767)
    else:
        stale = epoch < history.epoch()
    fenced = Code.TRANSACTION_COORDINATOR_FENCED if marker.coordinator_epoch < history.coordinator() else Code.NONE
    assert states.check_marker(marker) == (Code.INVALID_PRODUCER_EPOCH if stale else fenced)
    if stale or fenced:
        return end
    written = states.marker_written(control(epoch, at=end), coordinator_epoch=marker.coordinator_epoch)
    assert (written and written.first_offset) == opened
    history.events.append(Event("marker", epoch, offset=end, coordinator=marker.coordinator_epoch))
    return end + 1


@given(COMMANDS)
def test_every_answer_follows_from_the_history(commands: list[tuple[object, ...]]) -> None:
    history, states = History(), ProducerStates()
    guards: list[VerificationGuard] = []
    end = 10
    for command in commands:
        end = run(history, states, command, guards, end)
        assert states.first_open_offset() == history.open_since()
        for entry in states.entries():
            assert entry.epoch == history.epoch()
            assert entry.coordinator_epoch == history.coordinator()
            assert [(kept.first_sequence, kept.first_offset) for kept in entry.batches] == [
                (event.sequence, event.offset) for event in history.remembered()
            ]


@given(COMMANDS)
def test_what_was_written_alone_makes_the_same_entries(commands: list[tuple[object, ...]]) -> None:
    """Reading the log back after a crash: guards are gone, all else is as it was."""
    history, states = History(), ProducerStates()
    guards: list[VerificationGuard] = []
    end = 0
    for command in commands:
        end = run(history, states, command, guards, end)
    again = ProducerStates()
    for event in history.written():
        if event.kind == "marker":
            again.marker_written(control(event.epoch, at=event.offset), coordinator_epoch=event.coordinator)
        else:
            again.batch_written(
                header(event.epoch, event.sequence, event.count, at=event.offset, transactional=event.transactional)
            )
    assert list(again.entries()) == list(states.entries())
    assert again.first_open_offset() == states.first_open_offset()

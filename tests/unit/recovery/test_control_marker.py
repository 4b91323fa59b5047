"""The logs of a decided transaction's partitions, asked one after the other: what one says, and what all lack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.errors import HaltCause, InDoubtError, KafkaTimeoutError, RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.kafka.error_policy import kafka_error
from spark_2pc_sink.kafka.log_reader import Marker
from spark_2pc_sink.options import OperatorDecision
from spark_2pc_sink.recovery.diagnosis import PARTITION_MS_MIN
from tests.harness.halts import halts
from tests.unit.recovery.test_recovery import Sides, gone_by

Answer = Callable[[int], Marker]
FIRST, SECOND = TopicPartition("audit", 0), TopicPartition("orders", 0)
OUT_OF_RANGE: Final = 1


def refuses(error: Exception) -> Answer:
    def refuse(_limit_ms: int) -> Marker:
        raise error

    return refuse


def too_long(sides: Sides) -> Answer:
    """A log whose end is not reached, however long it is read."""

    def read(limit_ms: int) -> Marker:
        sides.clock.now += limit_ms / 1000
        raise KafkaTimeoutError(operation="reading", deadline_ms=limit_ms, last_error="reached offset 9 of 900")

    return read


SILENT: Final[dict[str, Callable[[Sides], Answer]]] = {
    "gone": lambda _: refuses(kafka_error("Metadata", Code.UNKNOWN_TOPIC_OR_PARTITION)),
    "forbidden": lambda _: refuses(kafka_error("Metadata", Code.TOPIC_AUTHORIZATION_FAILED)),
    "out of range": lambda _: refuses(kafka_error("Fetch", OUT_OF_RANGE)),
    "unreadable bytes": lambda _: refuses(RemoteProtocolError(peer="the broker", detail="the batch has another CRC")),
    "too long": too_long,
    "missing": lambda _: lambda _limit_ms: Marker.MISSING,
}
SAID: Final[dict[str, Callable[[Sides], Answer]]] = {
    **SILENT,
    "open": lambda _: lambda _limit_ms: Marker.OPEN,
    "commit": lambda _: lambda _limit_ms: Marker.COMMIT,
    "abort": lambda _: lambda _limit_ms: Marker.ABORT,
}


def forgotten(first: str = "missing", second: str = "missing") -> Sides:
    """A decided transaction whose coordinator shows nothing of it any more, and what two logs say of it."""
    sides, _ = gone_by([str(FIRST), str(SECOND)])
    sides.kafka.logs = {at: SAID[name](sides) for at, name in ((FIRST, first), (SECOND, second))}
    return sides


@pytest.mark.parametrize(("second", "status"), [("commit", "done"), ("abort", "owed")])
@pytest.mark.parametrize("first", [*SILENT, "open"])
def test_where_one_partition_does_not_tell_the_next_one_does(first: str, second: str, status: str) -> None:
    """B18: of the topics that the batch wrote one was deleted, or cannot be read: the other has the marker.

    What is open in one partition may be another transaction.
    """
    sides = forgotten(first, second)
    sides.start()
    assert sides.row().status == status


@pytest.mark.parametrize("silent", SILENT)
def test_a_person_decides_where_no_partition_tells(silent: str) -> None:
    """B6: absence alone never proves a commit. The error of one partition would come again at every start."""
    sides = forgotten(silent)
    before = sides.kafka.pair
    said = r"no partition tells how 0:0 ended: .*audit-0.*; .*orders-0 .*is missing"
    with halts(HaltCause.OUTCOME_LOST, match=said) as halted:
        sides.start()
    assert (sides.kafka.pair, sides.row().status) == (before, "decided")
    remedies = " ".join(halted.value.remedies)
    assert "--drop" in remedies
    assert "--accept-replay" in remedies
    assert ("make the partitions readable" in remedies) == (silent != "missing")
    looked = sides.recovery().diagnosis.dry_run()
    assert (looked.settled, looked.remedies) == (False, halted.value.remedies)
    assert looked.cause is HaltCause.OUTCOME_LOST


@pytest.mark.parametrize("other", ["gone", "missing"])
def test_an_open_transaction_is_waited_for_whatever_the_others_lack(other: str) -> None:
    sides = forgotten("open", other)
    with pytest.raises(InDoubtError, match=r"0:0 in audit-0 after offset 7 is not written yet"):
        sides.recovery(decision=OperatorDecision.DROP).run(query_id=None, run_id=None)
    assert sides.row().status == "decided"
    sides.kafka.logs[FIRST] = SAID["commit"](sides)
    sides.start()
    assert sides.row().status == "done"


@pytest.mark.parametrize("decision", [None, *OperatorDecision])
def test_a_cluster_that_cannot_be_reached_is_no_reason_to_halt(decision: OperatorDecision | None) -> None:
    """Nobody need decide anything, and nothing that somebody has decided is carried out by mistake."""
    sides = forgotten()
    asked: list[str] = []

    def go_away(name: str) -> None:
        asked.append(name)
        if "find_marker" in asked:
            raise KafkaTimeoutError(operation=name, deadline_ms=60_000, last_error="connection refused")

    sides.kafka.before = go_away
    with pytest.raises(KafkaTimeoutError, match="connection refused"):
        sides.recovery(decision=decision).run(query_id=None, run_id=None)
    assert asked[-2:] == ["find_marker", "describe"]
    assert sides.row().status == "decided"


def test_the_time_is_bounded_whatever_the_number_of_partitions() -> None:
    """Each gets half of what is left; the last one is asked only if there is any."""
    partitions = [TopicPartition("orders", number) for number in range(100)]
    sides, _ = gone_by([str(each) for each in partitions])
    limits: list[int] = []

    def slow(limit_ms: int) -> Marker:
        limits.append(limit_ms)
        return too_long(sides)(limit_ms)

    sides.kafka.logs = dict.fromkeys(partitions, slow)
    began_s = sides.clock.now
    with halts(HaltCause.OUTCOME_LOST, match=r"9\d were not read within 5000 ms"):
        sides.start()
    assert limits[:2] == [2_500, 1_250]
    assert set(limits[2:]) == {PARTITION_MS_MIN}
    assert sides.clock.now - began_s <= 5 + PARTITION_MS_MIN / 1000


def test_a_row_that_names_no_partition_halts() -> None:
    sides, _ = gone_by([])
    with halts(HaltCause.OUTCOME_LOST, match="names no partition whose log could be read"):
        sides.start()

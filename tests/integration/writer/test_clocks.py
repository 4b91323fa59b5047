"""A machine whose clock jumps, as seen by Kafka: records carry its time, and a broker may refuse what is too new."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from spark_2pc_sink.errors import ConfigurationError
from tests.conftest import MakeTopic
from tests.harness.providers import Broker
from tests.integration.writer.writers import commit_rows, committed, table_of, values, writer_on

HOUR_NS = 3_600 * 10**9


def shift_clock(monkeypatch: pytest.MonkeyPatch, by_ns: int) -> None:
    """Let the package see another time of day. Its deadlines go by the monotonic clock, which never jumps."""
    clock = SimpleNamespace(
        **{name: getattr(time, name) for name in ("monotonic", "monotonic_ns", "sleep", "perf_counter")},
        time_ns=lambda: time.time_ns() + by_ns,
        time=lambda: time.time() + by_ns / 1e9,
    )
    monkeypatch.setattr("spark_2pc_sink.clock.time", clock)


@pytest.mark.parametrize("hours", [-1.0, 0.9])
def test_an_hour_changes_nothing(
    hours: float, kafka: Broker, topic: MakeTopic, transactional_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B33: the clock is set back, or forward, in the middle of a transaction; each record is there once."""
    name = topic(partitions=2)
    with writer_on(kafka.bootstrap, transactional_id, name, batch_size=2_000) as writer:
        writer.begin_transaction()
        writer.append(table_of(500))
        shift_clock(monkeypatch, int(hours * HOUR_NS))
        writer.append(table_of(500, first=500))
        writer.commit_transaction()
        commit_rows(writer, table_of(500, first=1_000))
        assert values(committed(kafka.bootstrap, name, writer)) == sorted(f"value-{n}" for n in range(1_500))


def test_a_clock_far_away_is_named(
    kafka: Broker, topic: MakeTopic, transactional_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B33: a topic refuses records of the future from an hour on by default."""
    name = topic(partitions=1)
    with writer_on(kafka.bootstrap, transactional_id, name) as writer:
        with monkeypatch.context() as ahead:
            shift_clock(ahead, 2 * HOUR_NS)
            writer.begin_transaction()
            writer.append(table_of(100))
            with pytest.raises(ConfigurationError) as raised:
                writer.flush()
        assert f"{name}-0 must accept records with this time: Timestamp " in str(raised.value)
        assert "records are stamped with this machine's time" in str(raised.value)
        assert "message.timestamp.after.max.ms" in str(raised.value)
        assert "message.timestamp.before.max.ms" in str(raised.value)
        writer.abort_transaction()
        commit_rows(writer, table_of(10))
        assert values(committed(kafka.bootstrap, name, writer)) == sorted(f"value-{n}" for n in range(10))

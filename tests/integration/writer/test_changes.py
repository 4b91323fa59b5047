"""A writer goes on while transaction.version goes up and down (KIP-890, B24), and while its clock jumps (B33).

Records carry the time of that clock, and a broker may refuse what is too new.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.testing import ReferenceCoordinator
from tests.conftest import or_skip
from tests.harness.kafka_tools import set_transaction_version
from tests.harness.providers import BrokerRequest
from tests.integration.writer.writers import (
    HOUR_NS,
    commit_rows,
    committed,
    shift_clock,
    table_of,
    values,
    writer_on,
)

if TYPE_CHECKING:
    from tests.conftest import MakeTopic
    from tests.harness.providers import Broker, Provider


@pytest.fixture(
    scope="module",
    params=["reference", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.java, pytest.mark.slow])],
)
def broker(request: pytest.FixtureRequest, provider: Provider) -> Iterator[Broker]:
    """A broker whose level nobody else minds."""
    if request.param == "reference":
        with ReferenceCoordinator(keep_prepared=False) as reference:
            yield reference
        return
    kafka = or_skip(request.config, lambda: provider.start_broker(BrokerRequest(two_phase_commit=True)))
    yield kafka
    kafka.close()


@pytest.fixture
def orders(broker: Broker) -> str:
    """A topic of the test's own, which is its transactional id as well."""
    return broker.create_topic(f"orders-{uuid.uuid4().hex}", partitions=3)


def test_a_writer_goes_on(broker: Broker, orders: str) -> None:
    """B24: up and down between its transactions, committed and aborted ones, whichever level each begins at."""
    kept: list[str] = []
    with writer_on(broker.bootstrap, orders, orders) as writer:
        for turn, level in enumerate((0, 2, 1, 2, 0, 0, 2)):
            set_transaction_version(broker.bootstrap, level)
            for commit in (True, False, True):
                prefix = f"turn-{turn}-{commit}"
                writer.begin_transaction()
                assert writer._client.transaction_version == level
                writer.append(table_of(20, prefix=prefix))
                if commit:
                    writer.commit_transaction()
                    kept += [f"{prefix}-{number}" for number in range(20)]
                else:
                    writer.abort_transaction()
    assert values(committed(broker.bootstrap, orders, orders)) == sorted(kept)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize(("begun", "ended"), [(2, 0), (0, 2)])
def test_an_open_transaction_ends_at_another_level(
    broker: Broker, begun: int, ended: int, commit: bool, orders: str
) -> None:
    """B24, the prepared one too: no answer says that the level is another, so the writer asks before it ends one."""
    set_transaction_version(broker.bootstrap, begun)
    with writer_on(broker.bootstrap, orders, orders, two_phase_commit=True) as writer:
        writer.begin_transaction()
        writer.append(table_of(5, prefix="over"))
        prepared = writer.prepare_transaction()
        set_transaction_version(broker.bootstrap, ended)
        if commit:
            writer.complete_transaction(prepared)
        else:
            writer.abort_transaction()
        commit_rows(writer, table_of(5, prefix="next"))
    over = [f"over-{number}" for number in range(5)] if commit else []
    assert values(committed(broker.bootstrap, orders, orders)) == sorted([*over, *(f"next-{n}" for n in range(5))])


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
            said = f"{name}-0 must accept records with this time: Timestamp .*stamped with this machine's time"
            with pytest.raises(ConfigurationError, match=said) as raised:
                writer.flush()
        assert all(f"message.timestamp.{bound}.max.ms" in str(raised.value) for bound in ("before", "after"))
        writer.abort_transaction()
        commit_rows(writer, table_of(10))
        assert values(committed(kafka.bootstrap, name, writer)) == sorted(f"value-{n}" for n in range(10))

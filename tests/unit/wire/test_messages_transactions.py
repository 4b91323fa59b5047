"""What only tools and a check send: ListTransactions, WriteTxnMarkers, Metadata of all topics and of rights."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.errors import LocalProtocolError
from spark_2pc_sink.ids import ProducerIdAndEpoch, TopicPartition
from spark_2pc_sink.wire import messages

PRODUCER = ProducerIdAndEpoch(2**40, 32_766)
ORDERS_3 = TopicPartition("orders", 3)


def as_broker_sees_it(request: Any) -> dict[str, Any]:
    request.with_header(correlation_id=7, client_id="test")
    data = bytes(request.encode(header=True, framed=True))
    fields: dict[str, Any] = (
        type(request).decode(data, version=request.API_VERSION, header=True, framed=True).to_dict(json=False)
    )
    return fields


@pytest.mark.parametrize("version", [9, 12])
def test_metadata_of_every_topic_is_a_null_list(version: int) -> None:
    """Not an empty one, which asks for none; and nothing is created."""
    seen = as_broker_sees_it(messages.metadata_request(None, version=version))
    assert seen["topics"] is None
    assert seen["allow_auto_topic_creation"] is False


@pytest.mark.parametrize(("version", "duration"), [(1, 9), (2, 0), (2, -1)])
def test_list_transactions_by_duration(version: int, duration: int) -> None:
    """KIP-994."""
    request = messages.list_transactions_request(version=version, running_longer_than_ms=duration)
    assert as_broker_sees_it(request)["duration_filter"] == duration


def test_list_transactions_by_pattern() -> None:
    """KIP-1152; states and producer ids go along."""
    request = messages.list_transactions_request(
        version=2, transactional_id_pattern="orders-.*", states=["Ongoing"], producer_ids=[7]
    )
    seen = as_broker_sees_it(request)
    assert seen["transactional_id_pattern"] == "orders-.*"
    assert (seen["state_filters"], seen["producer_id_filters"]) == (["Ongoing"], [7])


@pytest.mark.parametrize(
    ("version", "filters", "rule"),
    [
        (0, {"running_longer_than_ms": 9}, "from version 1 on .KIP-994"),
        (1, {"transactional_id_pattern": "a"}, "from version 2 on .KIP-1152"),
    ],
)
def test_a_filter_that_a_version_would_drop_is_refused(version: int, filters: dict[str, Any], rule: str) -> None:
    """Dropped silently it would list everything."""
    with pytest.raises(LocalProtocolError, match=rule):
        messages.list_transactions_request(version=version, **filters)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_write_txn_markers(version: int, commit: bool) -> None:
    """KIP-1228: TransactionVersion is 0, so that the leader takes the epoch of the transaction itself."""
    request = messages.write_txn_markers_request(
        PRODUCER, ORDERS_3, commit=commit, coordinator_epoch=5, version=version
    )
    (marker,) = as_broker_sees_it(request)["markers"]
    assert marker.pop("transaction_version", 0) == 0
    assert marker == {
        "producer_id": 2**40,
        "producer_epoch": 32_766,
        "transaction_result": commit,
        "topics": [{"name": "orders", "partition_indexes": [3]}],
        "coordinator_epoch": 5,
    }

"""Any value of the transaction log survives its bytes, and any bytes are a value or are refused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.reference.coordinator.records import LogRecord, TransactionLogValue
from spark_2pc_sink.reference.coordinator.states import TransactionState

values = st.builds(
    TransactionLogValue,
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 32767),
    timeout_ms=st.integers(1, 2**31 - 1),
    state=st.sampled_from(list(TransactionState)[:6]),
    partitions=st.none()
    | st.frozensets(st.builds(TopicPartition, st.text(max_size=9).filter(str.isprintable), st.integers(0, 2**31 - 1))),
    last_update_ms=st.integers(-1, 2**62),
    start_ms=st.integers(-1, 2**62),
    previous_producer_id=st.integers(-1, 2**63 - 1),
    next_producer_id=st.integers(-1, 2**63 - 1),
    client_transaction_version=st.integers(0, 2),
    next_producer_epoch=st.integers(-1, 32766),
)


names = st.text(max_size=40).filter(str.isprintable)


@given(value=values, name=names, version=st.sampled_from([0, 1]))
def test_any_value_survives_its_bytes(value: TransactionLogValue, name: str, version: int) -> None:
    record = LogRecord(partition=3, transactional_id=name, value=value, version=version)
    if value.fits(version):
        assert LogRecord.decode(3, record.key_bytes, record.value_bytes) == record


@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_value_or_refused(data: bytes) -> None:
    for prefix in (b"\x00\x00", b"\x00\x01"):
        try:
            value = TransactionLogValue.decode(prefix + data)
        except RemoteProtocolError:
            continue
        assert TransactionLogValue.decode(value.encode(1)) == value

"""Records of ``__consumer_offsets``: the bytes that Kafka 4.4.0 wrote, and those of older versions."""

from __future__ import annotations

import struct
from uuid import UUID

import pytest

from spark_2pc_sink.errors import RemoteProtocolError
from spark_2pc_sink.reference.groups.members import Member
from spark_2pc_sink.reference.groups.records import GroupKey, GroupValue, OffsetKey, OffsetValue, decode_key

SUBSCRIPTION = bytes.fromhex("000000000001 00066f7264657273 ffffffff".replace(" ", ""))

#: What a broker of Apache Kafka 4.4.0 had in its log, read by a consumer: key, value, and what they say.
KAFKA_RECORDS = [
    (
        "000200026531",
        "0003000000000000ffffffff000001a1ff43f05700000000",
        GroupKey("e1"),
        GroupValue(state_since_ms=0x1A1FF43F057),
    ),
    (
        "00010002733100066f726465727300000000",
        "00040000000000000005ffffffff01000001a1ff43f1d00100104524f22a4a354c80a032b364edda2ab9",
        OffsetKey("s1", "orders", 0),
        OffsetValue(offset=5, commit_ms=0x1A1FF43F1D0, topic_id=UUID("4524f22a-4a35-4c80-a032-b364edda2ab9")),
    ),
    (
        "000100026d3100066f726465727300000001",
        "000100000000000000060000000001a1ff43f417000001a20539d517",
        OffsetKey("m1", "orders", 1),
        OffsetValue(offset=6, commit_ms=0x1A1FF43F417, expire_ms=0x1A20539D517),
    ),
    (
        "0002000d73743134303631343430363134",
        "00030008636f6e73756d657200000001000572616e676500"
        "26612d34653439666633622d336166312d343432612d623334332d353832383163636265333063"
        "000001a1ff44d2df0000000100"
        "26612d34653439666633622d336166312d343432612d623334332d353832383163636265333063"
        "000161000163000a2f3132372e302e302e31"
        "00004e2000002710"
        "00000012" + SUBSCRIPTION.hex() + "0000000141",
        GroupKey("st14061440614"),
        GroupValue(
            protocol_type="consumer",
            generation=1,
            protocol="range",
            leader="a-4e49ff3b-3af1-442a-b343-58281ccbe30c",
            state_since_ms=0x1A1FF44D2DF,
            members=(
                Member(
                    member_id="a-4e49ff3b-3af1-442a-b343-58281ccbe30c",
                    instance_id="a",
                    client_id="c",
                    client_host="/127.0.0.1",
                    rebalance_timeout_ms=20_000,
                    session_timeout_ms=10_000,
                    protocols=(("range", SUBSCRIPTION),),
                    assignment=b"A",
                ),
            ),
        ),
    ),
]


@pytest.mark.parametrize(("key", "value", "named", "said"), KAFKA_RECORDS, ids=["empty", "id", "expiring", "static"])
def test_records_of_kafka_are_read_and_written_the_same(
    key: str, value: str, named: GroupKey | OffsetKey, said: GroupValue | OffsetValue
) -> None:
    assert decode_key(bytes.fromhex(key)) == named
    assert type(said).decode(bytes.fromhex(value)) == said
    assert (named.encode().hex(), said.encode().hex()) == (key, value)


def test_records_of_the_newer_protocol_are_none_of_ours() -> None:
    """ConsumerGroupMetadataKey is version 3 (KIP-848)."""
    assert decode_key(struct.pack(">h", 3) + b"\0\x01g") is None


@pytest.mark.parametrize("kind", [OffsetValue, GroupValue])
@pytest.mark.parametrize("data", [b"", b"\0", b"\0\x09", b"\xff\xff", b"\0\x03\0", b"\0\x04\0\0"])
def test_garbage_is_refused(kind: type[OffsetValue | GroupValue], data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="the log of group offsets"):
        kind.decode(data)

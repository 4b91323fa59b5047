"""The directory of a node: held by one process, replaced as a whole, laid out as Kafka's."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.metadata.acls import Acl
from spark_2pc_sink.reference.metadata.catalog_state import CatalogState, Topic
from spark_2pc_sink.reference.metadata.data_directory import DataDirectory

ORDERS = Topic("orders", uuid.UUID(int=7), 2, {"retention.ms": "-1"})
STATE = CatalogState(
    cluster_id="MkU3OEVBNTcwNTJENDM2Qg",
    node_id=3,
    directory_id=uuid.UUID(int=9),
    starts=4,
    transaction_version=2,
    property_transaction_version=2,
    next_producer_id=5000,
    topics={"orders": ORDERS},
    acls=(Acl(resource=5, pattern=3, name="t", principal="User:a", host="*", operation=15, permission=3),),
    removing=(Topic("gone", uuid.UUID(int=8), 1),),
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    """The directory of a node, held by this process."""
    held = DataDirectory(tmp_path)
    yield held
    held.close()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "Expecting property name"),
        (b"{}", "no field 'version'"),
        (b'{"version": 2}', "only 1 is supported"),
        (b'{"version": 1, "topics": [3]}', "wrong type"),
        (b"\xff\xfe\x00", "can't decode|invalid|codec"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, directory: DataDirectory, content: bytes, fault: str) -> None:
    (tmp_path / "catalog.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=fault) as refused:
        directory.read_catalog()
    assert str(tmp_path / "catalog.json") in str(refused.value)


def test_a_flipped_bit_anywhere_is_noticed_and_the_state_before_is_named(
    tmp_path: Path, directory: DataDirectory
) -> None:
    """D14."""
    directory.write_catalog(STATE)
    directory.write_catalog(replace(STATE, starts=5))
    file = tmp_path / "catalog.json"
    written = file.read_bytes()
    for value in (b'"starts": 5', b"orders", b"User:a", b'"next_producer_id": 5000'):
        damaged = bytearray(written)
        damaged[written.index(value) + len(value) - 1] ^= 1
        file.write_bytes(damaged)
        with pytest.raises(ConfigurationError, match=r"checksum.*catalog\.json\.previous lacks the last change"):
            directory.read_catalog()
    file.write_bytes((tmp_path / "catalog.json.previous").read_bytes())
    assert directory.read_catalog() == STATE


def test_ends_of_logs_are_read_as_written_and_damage_is_named(tmp_path: Path, directory: DataDirectory) -> None:
    assert directory.read_log_ends() == {}
    ends = {(ORDERS.id, 0): 7, (ORDERS.id, 1): 2**40}
    directory.write_log_ends(ends)
    assert directory.read_log_ends() == ends
    file = tmp_path / "log-ends.json"
    for content, fault in ((file.read_bytes().replace(b"7", b"3", 1), "checksum|wrong type"), (b"[]", "wrong type")):
        file.write_bytes(content)
        with pytest.raises(ConfigurationError, match=fault):
            directory.read_log_ends()


def test_file_and_directory_are_on_disk_before_a_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    directory = DataDirectory(tmp_path / "data")
    directory.write_catalog(STATE)
    assert synced == ["catalog.json.tmp", "data"]
    directory.make_partitions([ORDERS])
    assert synced[2:] == ["data"]
    directory.close()


def test_a_partition_of_another_topic_of_that_name_is_not_touched(tmp_path: Path, directory: DataDirectory) -> None:
    directory.make_partitions([ORDERS])
    assert directory.must_belong(ORDERS, 0) == tmp_path / "orders-0"
    with pytest.raises(ConfigurationError, match="orders-0"):
        directory.must_belong(replace(ORDERS, id=uuid.UUID(int=1)), 0)
    (tmp_path / "orders-0" / "partition.metadata").write_text("")  # what a crash may leave of it
    assert directory.must_belong(ORDERS, 0) == tmp_path / "orders-0"


@pytest.mark.parametrize(
    ("owner", "live", "goes"),
    [
        (ORDERS.id, {"orders"}, True),
        (uuid.UUID(int=1), {"orders"}, False),
        (uuid.UUID(int=1), set(), False),
        (None, {"orders"}, False),
        (None, set(), True),
    ],
    ids=["its own", "made again", "of nobody", "made again, cut short", "cut short"],
)
def test_only_what_is_the_deleted_topics_goes(
    tmp_path: Path, directory: DataDirectory, owner: uuid.UUID | None, live: set[str], goes: bool
) -> None:
    """A topic of the same name may have been made since, and its records acknowledged."""
    orders = replace(ORDERS, partitions=1)
    directory.make_partitions([orders if owner is None else replace(orders, id=owner)])
    if owner is None:
        (tmp_path / "orders-0" / "partition.metadata").write_text("")
    directory.remove_topics([orders], live=live)
    assert (tmp_path / "orders-0").exists() is not goes

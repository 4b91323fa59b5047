"""The directory of a node: held by one process, replaced as a whole, laid out as Kafka's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.metadata.catalog_state import CatalogState, Topic, id_of_text, id_text, random_id
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
    acls=({"principal": "User:a", "operation": 15},),
    removing=(Topic("gone", uuid.UUID(int=8), 1),),
)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DataDirectory]:
    """The directory of a node, held by this process."""
    held = DataDirectory(tmp_path)
    yield held
    held.close()


def test_another_process_is_kept_out_and_told_which_directory(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from spark_2pc_sink.reference.metadata.data_directory import DataDirectory\n"
        f"held = DataDirectory(Path({str(tmp_path)!r})); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigurationError, match="another process") as refused:
            DataDirectory(tmp_path)
        assert str(tmp_path) in str(refused.value)
        other.kill()
    DataDirectory(tmp_path).close()  # a lock does not outlive its process


def test_a_directory_that_cannot_be_made_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be used") as refused:
        DataDirectory(tmp_path / "file" / "data")
    assert str(tmp_path / "file" / "data") in str(refused.value)


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"{", "Expecting property name"),
        (b"[]", "wrong type"),
        (b"{}", "no field 'version'"),
        (b'{"version": 2}', "only 1 is supported"),
        (b'{"version": 1, "topics": []}', "no field"),
        (b'{"version": 1, "topics": [3]}', "wrong type"),
        (b"\xff\xfe\x00", "can't decode|invalid|codec"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, directory: DataDirectory, content: bytes, fault: str) -> None:
    (tmp_path / "catalog.json").write_bytes(content)
    with pytest.raises(ConfigurationError, match=fault) as refused:
        directory.read_catalog()
    assert str(tmp_path / "catalog.json") in str(refused.value)


def test_a_field_of_the_wrong_type_is_named(tmp_path: Path, directory: DataDirectory) -> None:
    directory.write_catalog(STATE)
    file = tmp_path / "catalog.json"
    document = json.loads(file.read_text()) | {"starts": "4"}
    del document["crc32c"]  # as an earlier version wrote it
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match="'starts'"):
        directory.read_catalog()


@pytest.mark.parametrize("name", ["meta.properties", "orders-0"])
def test_the_data_of_another_server_is_left_alone(tmp_path: Path, directory: DataDirectory, name: str) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigurationError, match=f"contains {name}"):
        directory.read_catalog()


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


def test_a_write_cut_short_leaves_the_state_before_it(
    directory: DataDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.write_catalog(STATE)

    def crash(_path: Path, _target: Path) -> Path:
        raise OSError("power cut")

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        directory.write_catalog(replace(STATE, starts=5))
    assert directory.read_catalog() == STATE


def test_file_and_directory_are_on_disk_before_a_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink().name))
    directory = DataDirectory(tmp_path / "data")
    directory.write_catalog(STATE)
    assert synced == ["catalog.json.tmp", "data"]
    directory.make_partitions([ORDERS])
    assert synced[2:] == ["data"]
    directory.close()


def test_meta_properties_and_partition_metadata_are_kafkas(tmp_path: Path, directory: DataDirectory) -> None:
    directory.write_catalog(STATE)
    directory.write_meta(STATE)
    directory.make_partitions([ORDERS])
    lines = (tmp_path / "meta.properties").read_text().splitlines()
    assert {line for line in lines if not line.startswith("#")} == {
        "version=1",
        "node.id=3",
        "cluster.id=MkU3OEVBNTcwNTJENDM2Qg",
        "directory.id=AAAAAAAAAAAAAAAAAAAACQ",
    }
    assert (tmp_path / "orders-1" / "partition.metadata").read_text() == "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAABw"


def test_meta_properties_of_another_cluster_are_refused(directory: DataDirectory) -> None:
    directory.write_catalog(STATE)
    directory.write_meta(replace(STATE, cluster_id="another"))
    with pytest.raises(ConfigurationError, match="different clusters"):
        directory.read_catalog()


def test_a_partition_of_another_topic_of_that_name_is_not_touched(tmp_path: Path, directory: DataDirectory) -> None:
    directory.make_partitions([ORDERS])
    assert directory.must_belong(ORDERS, 0) == tmp_path / "orders-0"
    with pytest.raises(ConfigurationError, match="orders-0"):
        directory.must_belong(replace(ORDERS, id=uuid.UUID(int=1)), 0)
    (tmp_path / "orders-0" / "partition.metadata").write_text("")  # what a crash may leave of it
    assert directory.must_belong(ORDERS, 0) == tmp_path / "orders-0"


def test_deleted_topics_and_leftovers_go_and_others_stay(tmp_path: Path, directory: DataDirectory) -> None:
    orders = replace(ORDERS, partitions=1)
    directory.make_partitions([orders, Topic("orders-x", uuid.UUID(int=2), 1), Topic("x-delete", uuid.UUID(int=3), 1)])
    (tmp_path / "old-0.0123-delete").mkdir()
    (tmp_path / "orders-0" / "00000000000000000000.log").write_bytes(b"x")
    assert directory.partitions_with_records() == {"orders-0"}
    directory.remove_topics([orders])
    directory.remove_topics([orders])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", "orders-x-0", "x-delete-0"]


def test_a_directory_of_a_topic_that_there_is_not_makes_room(
    tmp_path: Path, directory: DataDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    directory.make_partitions([ORDERS])
    (tmp_path / "orders-1" / "00000000000000000000.log").write_bytes(b"x")
    again = replace(ORDERS, id=uuid.UUID(int=1))
    directory.make_partitions([again], starting=True)
    assert directory.must_belong(again, 0) == tmp_path / "orders-0"
    with pytest.raises(ConfigurationError, match="orders-1"):
        directory.must_belong(again, 1)
    directory.make_partitions([again])
    assert [directory.must_belong(again, partition).name for partition in (0, 1)] == ["orders-0", "orders-1"]
    # What was empty is removed at the next occasion; records are put away, and said to be.
    assert {entry.name.rpartition("-")[2] for entry in tmp_path.glob("orders-0.*")} == {"delete"}
    (stray,) = tmp_path.glob("orders-1.*-stray")
    assert (stray / "00000000000000000000.log").read_bytes() == b"x"
    assert caplog.messages == [
        f"{tmp_path / 'orders-1'} contains records of an unknown topic; renamed it to {stray.name}"
    ]
    directory.remove_topics([])
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".lock", "orders-0", "orders-1", stray.name]


def test_a_directory_of_a_topic_that_there_is_stays_where_it_is(directory: DataDirectory) -> None:
    directory.make_partitions([ORDERS])
    other = replace(ORDERS, id=uuid.UUID(int=1))
    directory.make_partitions([other], live=[replace(ORDERS, name="renamed")])
    with pytest.raises(ConfigurationError, match="orders-0"):
        directory.must_belong(other, 0)


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


def test_ids_are_written_as_kafka_writes_them() -> None:
    known = uuid.UUID("b308ea02-7682-4992-b3d3-9e034a3161d2")
    assert id_text(known) == "swjqAnaCSZKz054DSjFh0g"
    assert id_of_text("swjqAnaCSZKz054DSjFh0g") == known
    assert all(id_text(random_id())[0] != "-" for _ in range(500))

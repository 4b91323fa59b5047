"""The catalog and the directory of a node: durable before anybody sees it, held by one process, laid out as Kafka's."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.reference.config.properties import BrokerProperties
from spark_2pc_sink.reference.metadata.acls import Acl
from spark_2pc_sink.reference.metadata.catalog import Catalog
from spark_2pc_sink.reference.metadata.catalog_state import CatalogState, DataDirectory, Topic, write_checked
from spark_2pc_sink.reference.storage.segmented_log import ShortLogError
from spark_2pc_sink.wire.batch_format import read_header
from tests.unit.reference.node import START_MS, batch
from tests.unit.reference.waiting import present

PROPERTIES = BrokerProperties(transaction_state_log_num_partitions=3, offsets_topic_num_partitions=2)

ACL = Acl(resource=2, pattern=3, name="t", principal="User:a", host="*", operation=3, permission=3)

NODE_FILES = [".lock", "catalog.json", "catalog.json.previous", "log-ends.json"]


@asynccontextmanager
async def opened(directory: Path | None, properties: BrokerProperties = PROPERTIES) -> AsyncIterator[Catalog]:
    """The catalog of a node, ended in an orderly way."""
    catalog = await Catalog.open(directory, properties)
    await catalog.open_logs()
    try:
        yield catalog
    finally:
        await catalog.close()


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "data" if request.param == "disk" else None


async def test_topics_come_grow_change_and_go(place: Path | None) -> None:
    async with opened(place) as catalog:
        topic = present(await catalog.create_topic("orders", 2, {"max.message.bytes": "500"}))
        assert catalog.topic("orders") == topic == catalog.topic_by_id(topic.id)
        assert await catalog.create_topic("orders", 9) is None
        assert await catalog.add_partitions("orders", 2) is None
        grown = await catalog.add_partitions("orders", 4)
        assert grown == catalog.topic("orders") == Topic("orders", topic.id, 4, {"max.message.bytes": "500"})
        log = present(catalog.log("orders", 3))
        assert log.settings.message_max_bytes == 500
        await catalog.alter_configs("orders", lambda now: {**now, "max.message.bytes": "600"})
        assert log.settings.message_max_bytes == 600
        assert catalog.log("orders", 4) is catalog.log("orders", -1) is catalog.log("other", 0) is None
        assert [each.name for each in catalog.topics()] == ["orders"]
        assert await catalog.delete_topic("orders") == replace(present(grown), configs={"max.message.bytes": "600"})
        assert (catalog.topics(), catalog.logs()) == ((), ())
        assert (catalog.topic("orders"), catalog.topic_by_id(topic.id), catalog.log("orders", 0)) == (None, None, None)
        assert await catalog.delete_topic("orders") is None
        assert await catalog.alter_configs("orders", lambda _: {}) is None


async def test_producer_ids_are_never_handed_out_twice(place: Path | None) -> None:
    """KIP-730: blocks of 1000; what is left of a block at a restart is lost."""

    async def use(catalog: Catalog) -> None:
        first = 1000 * 3 * catalog.node_epoch
        found = await asyncio.gather(*(catalog.allocate_producer_ids() for _ in range(3)))
        assert found == [range(first + more, first + more + 1000) for more in (0, 1000, 2000)]

    async with opened(place) as catalog:
        await use(catalog)
    if place is not None:
        async with opened(place) as catalog:
            await use(catalog)


async def test_changes_of_acls_at_the_same_time_build_on_each_other(place: Path | None) -> None:
    one, other = ACL, replace(ACL, name="u")
    async with opened(place) as catalog:
        await catalog.alter_acls(lambda now: now | {one})
        await asyncio.gather(
            catalog.alter_acls(lambda now: now - {one}),
            catalog.alter_acls(lambda now: now | {other}),
            catalog.alter_acls(lambda now: now | {one, other}),
        )
        assert catalog.state.acls == (one, other)
    if place is not None:
        async with opened(place) as catalog:
            assert catalog.state.acls == (one, other)


async def test_deleted_records_do_not_come_back_with_a_restart(tmp_path: Path) -> None:
    records = batch(b"a")
    async with opened(tmp_path) as catalog:
        await catalog.create_topic("orders", 1)
        log = present(catalog.log("orders", 0))
        for _ in range(5):
            log.append(records, read_header(records), now_ms=START_MS)
        await log.flush()
        await catalog.delete_records("orders", {0: 3})
        await catalog.delete_records("orders", {0: 2})
        assert log.log_start_offset == 3
    async with opened(tmp_path) as catalog:
        log = present(catalog.log("orders", 0))
        assert (log.log_start_offset, log.end_offset) == (3, 5)


async def test_a_change_that_cannot_be_written_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_directory: DataDirectory, _state: CatalogState) -> None:
        raise OSError("no space left")

    async with opened(tmp_path) as catalog:
        with monkeypatch.context() as patched:
            patched.setattr(DataDirectory, "write_catalog", full)
            with pytest.raises(OSError, match="no space"):
                await catalog.create_topic("orders", 1)
            with pytest.raises(OSError, match="no space"):
                await catalog.allocate_producer_ids()
            with pytest.raises(OSError, match="no space"):
                await catalog.alter_acls(lambda _: {ACL})
        assert (catalog.topic("orders"), catalog.state.acls) == (None, ())
        assert await catalog.create_topic("orders", 1) is not None
        assert await catalog.allocate_producer_ids() == range(1000)


@pytest.mark.parametrize("crash", ["after the file", "while renaming"])
async def test_a_crash_while_a_topic_is_deleted_leaves_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    where = {"after the file": (DataDirectory, "remove_topics"), "while renaming": (Path, "rename")}[crash]

    def killed(*_: object, **__: object) -> None:
        raise OSError("killed")

    async with opened(tmp_path) as catalog:
        await catalog.create_topic("orders", 2)
        await catalog.create_topic("kept", 1)
        with monkeypatch.context() as patched:
            patched.setattr(*where, killed)
            with pytest.raises(OSError, match="killed"):
                await catalog.delete_topic("orders")
    async with opened(tmp_path) as catalog:
        assert [topic.name for topic in catalog.topics()] == ["kept"]
        assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*NODE_FILES, "kept-0"])
        assert await catalog.create_topic("orders", 1) is not None
    async with opened(tmp_path) as catalog:
        assert [topic.name for topic in catalog.topics()] == ["kept", "orders"]
        assert (tmp_path / "orders-0").is_dir()


async def test_keeping_needs_the_finalized_level_and_nothing_is_changed_without(tmp_path: Path) -> None:
    keeping = BrokerProperties(transaction_keep_prepared_enable=True, unstable_api_versions_enable=True)
    async with opened(tmp_path, keeping) as catalog:
        await catalog.set_transaction_version(1)
    written = (tmp_path / "catalog.json").read_bytes()
    with pytest.raises(ConfigurationError, match="the finalized level is 1"):
        await Catalog.open(tmp_path, keeping)
    assert (tmp_path / "catalog.json").read_bytes() == written
    with pytest.raises(ConfigurationError, match="the finalized level is 0"):
        await Catalog.open(None, replace(keeping, transaction_version=0))
    async with opened(tmp_path, BrokerProperties()) as catalog:
        await catalog.set_transaction_version(2)
    async with opened(tmp_path, keeping) as catalog:
        assert catalog.state.transaction_version == 2


async def test_a_directory_belongs_to_one_node_and_one_process(tmp_path: Path) -> None:
    async def use(catalog: Catalog) -> None:
        assert catalog.node_id == 1
        with pytest.raises(ConfigurationError, match="another process"):
            await Catalog.open(tmp_path, PROPERTIES)

    async with opened(tmp_path) as catalog:
        await use(catalog)
    with pytest.raises(ConfigurationError, match="belongs to node 1"):
        async with opened(tmp_path, BrokerProperties(node_id=2)) as catalog:
            await use(catalog)
    async with opened(tmp_path) as catalog:
        await use(catalog)


async def test_a_log_that_is_shorter_than_at_the_last_stop_or_start_is_refused_by_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D14: a bit that flips in the last segment looks like a torn write, and a file that is deleted like a new log."""
    records = batch(b"a")
    async with opened(tmp_path) as catalog:
        await catalog.create_topic("orders", 1)
        log = present(catalog.log("orders", 0))
        for _ in range(3):
            log.append(records, read_header(records), now_ms=START_MS)
    file = tmp_path / "orders-0" / "00000000000000000000.log"
    written = file.read_bytes()

    async def refused() -> None:
        for _ in range(2):  # the second start must not take what the first one refused
            catalog = await Catalog.open(tmp_path, PROPERTIES)
            with pytest.raises(ShortLogError, match=r"orders-0.*was on disk up to offset 3.*remove log-ends.json"):
                await catalog.open_logs()
            await catalog.close()

    flipped = bytearray(written)
    flipped[-1] ^= 1
    file.write_bytes(flipped)
    await refused()
    assert file.read_bytes() == bytes(flipped)
    file.unlink()
    await refused()
    assert not file.exists()
    file.write_bytes(written[: len(records)])
    await refused()
    # What was appended behind that, and torn by a crash, is cut off and told of.
    file.write_bytes(written + written[:20])
    async with opened(tmp_path) as catalog:
        assert [log.end_offset for log in catalog.logs()] == [3]
    assert any("orders-0: truncated 20 bytes after offset 3" in message for message in caplog.messages)
    # Whoever gives the records up says so.
    file.unlink()
    (tmp_path / "log-ends.json").unlink()
    async with opened(tmp_path) as catalog:
        log = present(catalog.log("orders", 0))
        assert log.end_offset == 0


ORDERS = Topic("orders", uuid.UUID(int=7), 2, {"retention.ms": "-1"})
STATE = CatalogState(
    cluster_id="MkU3OEVBNTcwNTJENDM2Qg",
    node_id=3,
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
        (b"{}", "checksum"),
        (write_checked({}), "no field 'version'"),
        (write_checked({"version": 2}), "only 1 is supported"),
        (write_checked({"version": 1, "topics": [3]}), "wrong type"),
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
    for content, fault in ((file.read_bytes().replace(b"7", b"3", 1), "checksum"), (b"[]", "checksum")):
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

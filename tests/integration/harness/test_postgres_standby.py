"""A standby of PostgreSQL: it follows, makes COMMIT wait, is promoted with what it has; and a disk that is full."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg2
import pytest

from spark_2pc_sink.testing import CapabilityError, PostgresServer, ServerError, wait_until
from spark_2pc_sink.testing.postgres import run_as
from tests.conftest import or_skip
from tests.harness.postgres_standby import PostgresStandby
from tests.harness.small_disk import SmallDisk

pytestmark = pytest.mark.postgres

DEADLINE_S = 60.0
MIB = 1 << 20


@pytest.fixture
def primary(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """A server with a table."""
    with or_skip(pytestconfig, PostgresServer) as server:
        server.execute("CREATE TABLE t (a int)")
        yield server


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresStandby]:
    """A standby of it."""
    with PostgresStandby(primary) as standby:
        yield standby


def test_it_follows_and_is_promoted_with_what_it_has(primary: PostgresServer, standby: PostgresStandby) -> None:
    primary.execute("INSERT INTO t VALUES (1)")
    standby.wait_until_caught_up()
    assert standby.query("SELECT a FROM t") == [(1,)]
    with pytest.raises(psycopg2.errors.ReadOnlySqlTransaction):
        standby.execute("INSERT INTO t VALUES (2)")
    standby.stop()
    primary.execute("INSERT INTO t VALUES (3)")
    primary.kill()
    standby.start()
    standby.promote()
    standby.execute("INSERT INTO t VALUES (4)")
    assert standby.query("SELECT a FROM t ORDER BY a") == [(1,), (4,)]


def test_commit_waits_for_a_synchronous_one(primary: PostgresServer, standby: PostgresStandby) -> None:
    standby.make_synchronous()
    primary.execute("INSERT INTO t VALUES (1)")
    standby.pause()
    with ThreadPoolExecutor(1) as other:
        inserted = other.submit(primary.execute, "INSERT INTO t VALUES (2)")
        wait_until(
            lambda: primary.query("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"),
            deadline_s=DEADLINE_S,
            what="COMMIT to wait",
        )
        assert primary.query("SELECT a FROM t ORDER BY a") == [(1,)]
        assert not inserted.done()
        standby.resume()
        inserted.result(DEADLINE_S)
    standby.wait_until_caught_up()
    assert standby.query("SELECT a FROM t ORDER BY a") == [(1,), (2,)]


def test_a_small_disk_is_full_and_then_larger(primary: PostgresServer, pytestconfig: pytest.Config) -> None:
    with or_skip(pytestconfig, lambda: SmallDisk(MIB, owner=run_as())) as disk:
        primary.execute(f"CREATE TABLESPACE small LOCATION '{disk.path}'")
        filling = "CREATE TABLE large TABLESPACE small AS SELECT repeat('x', 1000) FROM generate_series(1, 4000)"
        with pytest.raises(psycopg2.errors.DiskFull):
            primary.execute(filling)
        disk.resize(64 * MIB)
        primary.execute(filling)
        assert disk.used_bytes > 4 * MIB
        with pytest.raises(ServerError, match="cannot be made"):
            disk.resize(MIB)
        path = disk.path
        primary.execute("DROP TABLE large")
        primary.execute("DROP TABLESPACE small")
    assert not path.exists()


def test_where_nothing_can_be_mounted_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = tmp_path / "mount"
    mount.write_text("#!/bin/sh\necho 'mount: only root can do that' >&2; exit 32\n")
    mount.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CapabilityError, match="only root can do that"):
        SmallDisk(MIB)
    mount.unlink()
    with pytest.raises(CapabilityError, match="'mount'"):
        SmallDisk(MIB)

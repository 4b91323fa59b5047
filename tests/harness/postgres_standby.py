"""A second PostgreSQL that follows the first by streaming replication, to be stopped, lag behind, and be promoted."""

from __future__ import annotations

import shutil

from spark_2pc_sink.testing.postgres import PostgresServer, run_program
from spark_2pc_sink.testing.processes import START_DEADLINE_S, ServerError, poll_until

_NAME = "standby"
#: Named beside the standby, and never there.
_MISSING = "missing"


class PostgresStandby(PostgresServer):
    """A physical standby of a running server, made by ``pg_basebackup``: a `PostgresServer` that can be promoted.

    It replicates asynchronously until :meth:`make_synchronous`. While it is stopped, what the primary commits does not
    reach it; while it is paused, what was sent to it waits in its sockets, and it takes that when it goes on.
    """

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__(settings={"synchronous_standby_names": ""}, binaries=primary.binaries)
        self.password = primary.password  # roles are replicated
        self._primary = primary

    def make_synchronous(self, *, and_another: bool = False) -> None:
        """Let COMMIT on the primary wait for this standby.

        Args:
            and_another: wait for a second standby as well, which is never there: then no COMMIT is ever answered,
                although this standby has it.
        """
        names = f"FIRST 2 ({_NAME}, {_MISSING})" if and_another else f"FIRST 1 ({_NAME})"
        self._primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        self._primary.execute("SELECT pg_reload_conf()")
        states = "SELECT sync_state FROM pg_stat_replication"
        if poll_until(lambda: self._primary.query(states) == [("sync",)], deadline_s=START_DEADLINE_S):
            return
        raise ServerError(f"not synchronous within {START_DEADLINE_S} s. The standby's log ends:\n{self.log_tail()}")

    def wait_until_caught_up(self) -> None:
        """Wait until it shows everything that the primary has written until now."""
        ((position,),) = self._primary.query("SELECT pg_current_wal_flush_lsn()")
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        if poll_until(lambda: self.query(reached) == [(True,)], deadline_s=START_DEADLINE_S):
            return
        raise ServerError(f"the standby has not caught up with {position} within {START_DEADLINE_S} s")

    def promote(self) -> None:
        """Let it take writes, and follow no longer."""
        if self.query(f"SELECT pg_promote(true, {int(START_DEADLINE_S)})") != [(True,)]:
            raise ServerError(f"not promoted within {START_DEADLINE_S} s. The standby's log ends:\n{self.log_tail()}")

    def _make_cluster(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)
        source = f"{self._primary.connection_string('postgres')} application_name={_NAME}"
        run_program(
            [
                str(self.binaries / "pg_basebackup"),
                f"--pgdata={self._data}",
                f"--dbname={source}",
                "--checkpoint=fast",
                "--wal-method=stream",
                "--write-recovery-conf",
                "--no-sync",
            ],
            self._user,
        )
        self._write_settings()

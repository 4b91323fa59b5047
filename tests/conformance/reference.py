"""The reference coordinator as a process of its own, started by its command and restarted on its data."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final

from spark_2pc_sink.testing import ServerError, wait_until
from spark_2pc_sink.testing.ports import free_port
from spark_2pc_sink.testing.processes import ServerProcess

_READY: Final = "listening on"
_START_DEADLINE_S: Final = 30.0
_STOP_DEADLINE_S: Final = 10.0
#: As `KafkaBroker` has them: internal topics of one partition, and 2PC for those who ask.
_USUAL: Final = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
_TWO_PHASE_COMMIT: Final = {
    "transaction.two.phase.commit.enable": "true",
    "unstable.api.versions.enable": "true",
}


class ReferenceServer:
    """One server on 127.0.0.1, with data of its own; the port stays the same over restarts.

    Args:
        transaction_version: level of the feature.
        two_phase_commit: grant ``enable2Pc``.
        properties: more broker properties.
    """

    def __init__(
        self,
        *,
        transaction_version: int = 2,
        two_phase_commit: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.port = free_port()
        #: Read at each start.
        self.properties = {
            **_USUAL,
            "transaction.version": str(transaction_version),
            **(_TWO_PHASE_COMMIT if two_phase_commit else {}),
            **(properties or {}),
        }
        self._directory = Path(tempfile.mkdtemp(prefix="spark-2pc-reference-"))
        self._process: ServerProcess | None = None

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it serves."""
        log = self._directory / "server.log"
        seen = log.stat().st_size if log.exists() else 0
        listening = [] if "listeners" in self.properties else ["--listen", self.bootstrap]
        settings = [part for name, value in self.properties.items() for part in ("--set", f"{name}={value}")]
        process = ServerProcess(
            [
                *(sys.executable, "-m", "spark_2pc_sink.cli", "coordinator"),
                *listening,
                *("--data-dir", str(self._directory / "data")),
                *settings,
            ],
            log=log,
            folder=self._directory,
        )
        self._process = process

        def is_ready() -> bool:
            if not process.running:
                raise ServerError(f"the server ended by itself:\n{process.log_tail()}")
            return _READY in log.read_text()[seen:]

        wait_until(is_ready, deadline_s=_START_DEADLINE_S, what="the reference coordinator")

    def restart(self) -> None:
        """Stop it in an orderly way, and start it on the same data."""
        self._stop()
        self.start()

    def close(self) -> None:
        """Stop it and remove its data."""
        self._stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> ReferenceServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.end(signal.SIGTERM, deadline_s=_STOP_DEADLINE_S)
            self._process = None

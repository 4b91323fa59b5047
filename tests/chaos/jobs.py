"""A job under attack: its drivers, one after the other, and its supervisor, who starts it again when it has died."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from spark_2pc_sink import VerifyReport
from spark_2pc_sink.testing import MultisetDifference, wait_until
from spark_2pc_sink.verification.report import Verdict
from tests.chaos.plan import ANYWHERE, Planned
from tests.chaos.processes import GONE_DEADLINE_S, MissedError
from tests.harness.driver_process import DriverProcess

#: A whole batch has gone through after a fault when this many have ended: the first may have been under way.
BATCHES_BACK = 2
#: Errors that no fault here may lead to: a person would have to act, or the driver has broken its own rules.
REFUSED = frozenset(
    {
        *("HaltError", "ClaimRefusedError", "ConfigurationError", "DataError", "LocalProtocolError"),
        *("AuthorizationError", "SupersededError", "AssertionError", "Difference"),
    }
)


class BrokenError(AssertionError):
    """A job did something that it must never do, or did not come back."""


@dataclass(frozen=True)
class Sides:
    """What a job goes through, and what the harness reads directly.

    Attributes:
        kafka: bootstrap servers, past the proxy.
        database: SQLAlchemy URL, past the proxy.
        proxied_kafka: through it.
        proxied_database: through it.
    """

    kafka: str
    database: str
    proxied_kafka: str
    proxied_database: str


class ChaosJob(ABC):
    """A job whose drivers are started one after the other.

    Args:
        name: of the job, also its topic.
        sides: of the sink.
        folder: for input, checkpoint and drivers' files.
    """

    #: How long it may take to come back, on a machine that is busy with ten other things.
    back_deadline_s: float
    #: What `spark_2pc_sink.verify` says of it when nothing is wrong.
    verify_says: Verdict = "same"

    def __init__(self, name: str, sides: Sides, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.topic = name
        self.sides = sides
        self.drivers: list[DriverProcess] = []
        #: When a driver, by its place in `drivers`, was killed or stopped for good.
        self.struck_s: dict[int, float] = {}
        #: The errors of drivers that ended without being struck.
        self.gave_up: Counter[str] = Counter()
        #: What they said, until it is told.
        self.news: list[str] = []
        self._disturbed_s = time.monotonic()

    @abstractmethod
    def launch(self, folder: Path) -> DriverProcess:
        """Start a driver on what is not done yet; its files are in ``folder``."""

    @abstractmethod
    def feed(self) -> None:
        """Add input, if the driver does not lag behind already. Called from a thread of its own."""

    @abstractmethod
    def finish(self) -> None:
        """End the input. The driver ends when it has written all of it."""

    @abstractmethod
    def compare(self) -> dict[str, MultisetDifference]:
        """Read both sides to their end, by clients that know nothing of the sink, and compare with the input.

        Returns:
            how each output differs from what it must hold, by its name.
        """

    @abstractmethod
    def verify(self) -> VerifyReport:
        """Compare both sides with each other and with the history, as an operator does."""

    @property
    def driver(self) -> DriverProcess:
        """The newest driver."""
        return self.drivers[-1]

    @property
    def finished(self) -> bool:
        """True when the driver has come to the end of the input."""
        end = self.driver.end()
        return not self.driver.running and end is not None and end.event == "finished"

    def start(self, *, stop_at: str | None = None) -> DriverProcess:
        """Start a driver, whatever the one before does.

        Args:
            stop_at: a place at which it stops itself.
        """
        folder = self.folder / f"driver-{len(self.drivers)}"
        folder.mkdir()
        if stop_at is not None:
            (folder / "orders").write_text(stop_at)
        self.drivers.append(self.launch(folder))
        return self.driver

    def tend(self) -> None:
        """Start a driver when the newest has died; what a supervisor does.

        Raises:
            BrokenError: it died of something that it must not die of.
        """
        if self.driver.running or self.finished:
            return
        if len(self.drivers) - 1 not in self.struck_s:
            self._check_end()
        self.start()

    def disturbed(self) -> None:
        """Something has happened to it: from now on count the batches that say that it is back."""
        self._disturbed_s = time.monotonic()

    @property
    def back(self) -> bool:
        """True when a whole batch has gone through since `disturbed`."""
        batches = [event for event in self.driver.events("batch") if event["at_s"] > self._disturbed_s]
        return len(batches) >= BATCHES_BACK

    def kill(self, driver: DriverProcess) -> None:
        """SIGKILL a driver and its process group."""
        self.strike(driver)
        os.killpg(driver.pid, signal.SIGKILL)
        wait_until(lambda: not driver.running, deadline_s=GONE_DEADLINE_S, what=f"the end of the killed {self.name}")

    def strike(self, driver: DriverProcess) -> None:
        """Note that a driver cannot do anything from now on.

        Raises:
            MissedError: it had died by itself.
        """
        if not driver.running:
            raise MissedError(f"the driver of {self.name} had ended")
        self.struck_s[self.drivers.index(driver)] = time.monotonic()
        self.disturbed()

    def stop_at(self, place: str, planned: Planned) -> DriverProcess:
        """Let the driver stop itself at a place, or stop it wherever it is; returns when it stands still.

        Raises:
            MissedError: it died before.
        """
        driver = self.driver
        if place == ANYWHERE:
            time.sleep(planned.delay_s)
            if not driver.running:
                raise MissedError(f"the driver of {self.name} had ended")
            driver.stop()
            return driver
        driver.order_stop(place)
        return self.stopped(driver, place)

    def stopped(self, driver: DriverProcess, place: str) -> DriverProcess:
        """Wait until a driver that was ordered to stop stands still.

        Raises:
            MissedError: it died before.
        """
        wait_until(
            lambda: driver.stopped or not driver.running,
            deadline_s=self.back_deadline_s,
            what=f"the driver of {self.name} to come to {place}; its log ends:\n{driver.log_tail()}",
        )
        if not driver.running:
            raise MissedError(f"the driver of {self.name} ended before it came to {place}")
        return driver

    def close(self) -> None:
        """Leave no driver running."""
        for driver in self.drivers:
            driver.close()

    def _check_end(self) -> None:
        end = self.driver.end()
        if end is not None and end.error in REFUSED:
            raise BrokenError(f"the driver of {self.name} ended with {end}\n{self.driver.log_tail()}")
        self.gave_up["no word" if end is None else end.error] += 1
        self.news.append(f"the driver of {self.name} ended by itself: {end}")

"""The steps that a batch reaches on the driver: notifications, and the duration of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from jdbc_state.sink_log import sink_log
from spark_2pc_sink.clock import Clock
from spark_2pc_sink.recipe.steps import Step
from spark_2pc_sink.sink.report import BatchReport

_log = sink_log(__name__)


def reached(step: Step) -> None:
    """A step is complete. Tests stop a driver between two steps by replacing this function, which is not public."""
    _log.debug("step %d reached: %s", step, step.name)


class StepTimes:
    """Adds up, batch by batch, the time before each step."""

    def __init__(self, clock: Clock, tell: Callable[[Step], None] | None = None) -> None:
        self._clock = clock
        self._tell = tell
        self.begin()

    def begin(self, **figures: float) -> None:
        self._begun_s = self._last_s = self._clock.now_s()
        self._seconds: dict[str, float] = {}
        self._figures = figures

    def __call__(self, step: Step) -> None:
        now_s, name = self._clock.now_s(), step.name.lower()
        self._seconds[name] = self._seconds.get(name, 0.0) + now_s - self._last_s
        self._last_s = now_s
        if self._tell is not None:
            self._tell(step)
        reached(step)

    @property
    def reported(self) -> dict[str, Any]:
        """``seconds`` and ``step_seconds`` of `BatchReport`, the latter in the order in which steps were reached."""
        return {"seconds": self._clock.now_s() - self._begun_s, "step_seconds": dict(self._seconds)}

    @property
    def figures(self) -> Mapping[str, Any]:
        """See `Observer.figures`: the times are written to the millisecond."""
        steps = {name: round(seconds, 3) for name, seconds in self._seconds.items()}
        return {"seconds": round(sum(steps.values()), 3), "step_seconds": steps, **self._figures}


#: Prefix of attribute and span names.
_PREFIX = "spark_2pc_sink"
#: Report fields that the batch's span has otherwise, or that are not single values.
_NO_ATTRIBUTES: Final = {"transactional_id", "batch_id", "placement", "seconds", "step_seconds", "outputs"}


class BatchSpans:
    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._tracer: Any = None
        with suppress(ModuleNotFoundError):
            from opentelemetry import trace  # noqa: PLC0415 - optional

            self._tracer = trace.get_tracer(_PREFIX)
        self._span: Any = None
        self._reached_ns = 0

    @contextmanager
    def span(self, name: str, **attributes: int) -> Iterator[None]:
        """The current span for the duration of the block; an error that leaves it is recorded."""
        if self._tracer is None:
            yield
            return
        about = {"transactional_id": self._transactional_id, **attributes}
        told: dict[str, Any] = {f"{_PREFIX}.{each}": value for each, value in about.items()}
        with self._tracer.start_as_current_span(f"{_PREFIX} {name}", attributes=told) as self._span:
            self._reached_ns = time.time_ns()
            yield

    def reached(self, step: Step) -> None:
        """Record a completed step: its span began where the step before it ended."""
        if self._tracer is not None:
            begun_ns, self._reached_ns = self._reached_ns, time.time_ns()
            self._tracer.start_span(step.name.lower(), start_time=begun_ns).end(self._reached_ns)

    def report(self, report: BatchReport) -> None:
        if self._span is not None and self._span.is_recording():
            self._span.set_attribute(f"{_PREFIX}.placement", report.placement.name.lower())
            for name, each in vars(report).items():
                if name not in _NO_ATTRIBUTES and each is not None:
                    self._span.set_attribute(f"{_PREFIX}.{name}", each)

"""Spans of OpenTelemetry: one for the start of a run, one for each batch, and a child for each step.

They are made by OpenTelemetry's API: which are kept, and where they go, the program configures in the SDK. Without the
package of the extra ``otel`` nothing is made.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.trace import Tracer

    from spark_2pc_sink.recipe.steps import Step
    from spark_2pc_sink.sink.report import BatchReport

#: Of the attributes, and of the names of spans.
_PREFIX = "spark_2pc_sink"
#: Fields of a report that are attributes of the span of its batch.
_REPORTED = (
    *("attempts", "prepared", "row_count", "record_count", "rows_deleted", "rows_left_out", "record_bytes", "bad_rows"),
    *("source_lag", "event_delay_s"),
)


def _make_tracer() -> Tracer | None:
    try:
        from opentelemetry import trace  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        return None
    return trace.get_tracer(_PREFIX)


class BatchSpans:
    """The spans of a run.

    Args:
        transactional_id: of the sink; an attribute of each span but those of steps.
    """

    def __init__(self, transactional_id: str) -> None:
        self._transactional_id = transactional_id
        self._tracer: Tracer | None = _make_tracer()
        self._span: Any = None
        self._reached_ns = 0

    @contextmanager
    def span(self, name: str, **attributes: int) -> Iterator[None]:
        """The current span for as long as the block takes; an error that leaves it is recorded.

        Args:
            name: what the block does.
            attributes: by their names without the prefix.
        """
        if self._tracer is None:
            yield
            return
        about = {"transactional_id": self._transactional_id, **attributes}
        told: dict[str, Any] = {f"{_PREFIX}.{each}": value for each, value in about.items()}
        with self._tracer.start_as_current_span(f"{_PREFIX} {name}", attributes=told) as self._span:
            self._reached_ns = time.time_ns()
            yield

    def reached(self, step: Step) -> None:
        """A step is complete: its span began where the step before it ended."""
        if self._tracer is not None:
            begun_ns, self._reached_ns = self._reached_ns, time.time_ns()
            self._tracer.start_span(step.name.lower(), start_time=begun_ns).end(self._reached_ns)

    def report(self, report: BatchReport) -> None:
        """Note what both sides have of the batch of the current span."""
        if self._span is not None and self._span.is_recording():
            self._span.set_attribute(f"{_PREFIX}.placement", report.placement.name.lower())
            found = {name: getattr(report, name) for name in _REPORTED}
            self._span.set_attributes({f"{_PREFIX}.{name}": each for name, each in found.items() if each is not None})

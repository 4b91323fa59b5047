"""Comparisons: two multisets, and both sides of a sink by `spark_2pc_sink.verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_2pc_sink.verification.report import VerifyReport

T = TypeVar("T", bound=Hashable)

#: How many elements of each kind a difference prints.
SHOWN_MAX = 10


@dataclass(frozen=True)
class MultisetDifference:
    """How a multiset differs from the expected one.

    Args:
        expected: number of elements expected.
        actual: number of elements found.
        missing: expected and not found, with counts.
        duplicated: found more often than expected, with the surplus counts.
        foreign: found and never expected, with counts.
    """

    expected: int
    actual: int
    missing: Counter[Hashable]
    duplicated: Counter[Hashable]
    foreign: Counter[Hashable]

    def __bool__(self) -> bool:
        return bool(self.missing or self.duplicated or self.foreign)

    def __str__(self) -> str:
        lines = [f"{self.actual} found, {self.expected} expected"]
        for name, elements in (("missing", self.missing), ("twice", self.duplicated), ("foreign", self.foreign)):
            if elements:
                lines.append(f"{name}: {elements.total()} of {len(elements)} different")
                lines += [f"  {count} x {element!r}" for element, count in elements.most_common(SHOWN_MAX)]
                lines += ["  …"] * (len(elements) > SHOWN_MAX)
        return "\n".join(lines)


def multiset_difference(actual: Iterable[T], expected: Iterable[T]) -> MultisetDifference:
    """Return how ``actual`` differs from ``expected``; false when they are equal, regardless of order."""
    found, wanted = Counter[Hashable](actual), Counter[Hashable](expected)
    surplus = found - wanted
    return MultisetDifference(
        expected=wanted.total(),
        actual=found.total(),
        missing=wanted - found,
        duplicated=Counter({element: count for element, count in surplus.items() if element in wanted}),
        foreign=Counter({element: count for element, count in surplus.items() if element not in wanted}),
    )


def assert_same_multiset(actual: Iterable[T], expected: Iterable[T], *, what: str) -> None:
    """Check that both have the same elements, equally often.

    Args:
        actual: elements found.
        expected: elements expected.
        what: names the comparison in the error, such as "records in topic orders".

    Raises:
        AssertionError: they differ; the text lists missing, duplicate and foreign elements.
    """
    difference = multiset_difference(actual, expected)
    if difference:
        raise AssertionError(f"{what}: {difference}")


def assert_same_on_both_sides(
    *, transactional_id: str, kafka: Mapping[str, str | int | Callable[[str], Any]], database: str, **options: Any
) -> VerifyReport:
    """Check that committed records match the table's content, and the sink's history.

    Args:
        transactional_id: the sink's id.
        kafka: Kafka client properties.
        database: SQLAlchemy URL.
        **options: more keywords of `spark_2pc_sink.verify`, such as ``table`` or ``since``.

    Returns:
        The report, for more assertions: number of records, and what was not checked.

    Raises:
        AssertionError: the sides differ, or too much could not be compared, or no such sink has run; the text is the
            report.
        ConfigurationError, DatabaseUnreachableError, KafkaError, KafkaTimeoutError: see `spark_2pc_sink.verify`.
    """
    # Local import: it loads SQLAlchemy, which the servers do not need.
    from spark_2pc_sink.verification.api import verify  # noqa: PLC0415

    report = verify(transactional_id=transactional_id, kafka=kafka, database=database, **options)
    if not (report.known and report.same):
        raise AssertionError(str(report))
    return report

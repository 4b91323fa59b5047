"""The assertion that both sides of a sink are the same, based on `spark_2pc_sink.verify`.

The comparison does not use the code under test: the topics are read by confluent-kafka, the table by SQL.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark_2pc_sink.verification.report import VerifyReport


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

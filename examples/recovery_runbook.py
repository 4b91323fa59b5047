"""Settle what needs no decision, for every sink of a database, and say what is left to a person.

    python examples/recovery_runbook.py --kafka 127.0.0.1:9092 --database postgresql+psycopg2://me@127.0.0.1/shop

It is what `spark-2pc runbook --yes` does, in the public names of the package, to be changed to your own needs: put your
pager where `tell` is, or run it from your scheduler. Passwords come from ~/.pgpass or PGPASSWORD. Exit code 3:
something is left to a person, who finds the way on in RUNBOOK.md.
"""

from __future__ import annotations

import argparse
import sys

from spark_2pc_sink import DualWriteError, RecoveryReport, history, recover, status, verify

EXIT_LEFT = 3
#: Latest history entries shown for a sink that needs a person.
_SHOWN = 5


def main() -> int:
    """Poll all sinks, settle those that can be settled, and report the others."""
    parser = argparse.ArgumentParser(description="Settle what needs no decision, and tell what is left to a person.")
    parser.add_argument("--kafka", required=True, metavar="HOST:PORT")
    parser.add_argument("--database", required=True, metavar="URL")
    given = parser.parse_args()
    return run({"bootstrap.servers": given.kafka}, given.database)


def run(kafka: dict[str, str | int], database: str) -> int:
    """One round over all sinks; the exit code."""
    found = status(kafka=kafka, database=database)
    tell(found.summary)
    if found.kafka_problem or found.database_problem:
        # Nothing is changed while a side is unreachable: what is decided stays decided.
        tell(found.database_problem or found.kafka_problem)
        return EXIT_LEFT
    settled = [settle(report, kafka, database) for report in found.in_doubt]
    return 0 if all(settled) and not found.unreadable else EXIT_LEFT


def settle(report: RecoveryReport, kafka: dict[str, str | int], database: str) -> bool:
    """Settle one sink as its database has decided; False if a person must decide."""
    name = report.transactional_id
    if report.cause is None and report.condition == "in_doubt":
        try:
            # A driver that is or may be alive is not stopped: that needs take_over=True.
            report = recover(transactional_id=name, kafka=kafka, database=database, reason="the nightly round")
        except DualWriteError as error:
            tell(f"{name}: {error}")
            return False
    if not report.settled:
        tell(f"{report}\n{name} needs a person: RUNBOOK.md#{report.cause.value if report.cause else report.condition}")
        for line in history(transactional_id=name, database=database, batches=False, last=_SHOWN).as_json():
            tell(f"  {line['at']} {line['action']} by {line['os_user']} on {line['host']}: {line['reason']}")
        return False
    compared = verify(transactional_id=name, kafka=kafka, database=database)
    tell(f"{report}\n{compared}")
    return compared.verdict != "different"


def tell(text: str) -> None:
    """Alert a person."""
    print(text)


if __name__ == "__main__":
    sys.exit(main())

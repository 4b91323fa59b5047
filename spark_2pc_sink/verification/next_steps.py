"""The next step of a person: the commands that the result of a verification asks for, complete as they are pasted.

Which of them it is is a pure function of the report; the safest stands first, and none of them changes anything by
itself.
"""

from __future__ import annotations

from typing import Final

from spark_2pc_sink.verification.apply_page import PAGE
from spark_2pc_sink.verification.commands import Commands
from spark_2pc_sink.verification.report import DifferenceKind, VerifyReport

#: What a directory of files can put back, or shows.
_LACKING: Final[frozenset[DifferenceKind]] = frozenset(
    {"missing_in_kafka", "missing_in_table", "topic_remade", "topic_deleted", "truncated"}
)
#: Records that are there and should not be, or should be others: somebody has to look at one of them.
_TO_LOOK_AT: Final[tuple[DifferenceKind, ...]] = ("stranger", "gap", "twice", "differing")


def next_steps(report: VerifyReport, commands: Commands) -> tuple[str, ...]:
    """What a person does next, each with its reason; () where both sides are the same."""
    if not report.known:
        return (f"look whether it is the right database and state table: {commands.status}",)
    if report.verdict == "same":
        return ()
    return (*_explaining(report, commands), *_looking(report, commands), *_putting_back(report, commands))


def _explaining(report: VerifyReport, commands: Commands) -> tuple[str, ...]:
    """A state that is older than Kafka explains all the rest: it comes first."""
    if "gap" not in report.counts:
        return ()
    return (f"see whether the database is behind Kafka, as after a restored backup: {commands.status}",)


def _looking(report: VerifyReport, commands: Commands) -> tuple[str, ...]:
    for kind in _TO_LOOK_AT:
        for one in report.differences:
            if one.kind == kind and None not in (one.topic, one.partition, one.offset):
                look = commands.console_consumer(str(one.topic), int(one.partition or 0), int(one.offset or 0))
                return (f"look at the record ({kind}): {look}",)
    return ()


def _putting_back(report: VerifyReport, commands: Commands) -> tuple[str, ...]:
    if report.written:
        pages = [path for path in report.written if path.endswith(PAGE)]
        return tuple(f"read {page}, and run the commands in it that put back what should be there" for page in pages)
    if not _LACKING.isdisjoint(report.counts):
        return (f"write files with what either side lacks, and the commands: {commands.verify} --write-missing DIR",)
    return ()

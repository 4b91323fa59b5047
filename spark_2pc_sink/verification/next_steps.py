"""The next step of a person: the commands that the result of a verification asks for, complete as they are pasted.

Which of them it is is a pure function of the report; the safest stands first, and none of them changes anything by
itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.options import CommonOptions
from spark_2pc_sink.recovery.recover_command import BARE_COMMAND, recover_command
from spark_2pc_sink.verification.missing_files import COMMANDS
from spark_2pc_sink.verification.report import DifferenceKind, VerifyReport

#: What a directory of files can put back, or shows.
_LACKING: Final[frozenset[DifferenceKind]] = frozenset(
    {"missing_in_kafka", "missing_in_table", "topic_remade", "topic_deleted", "truncated"}
)
#: Records that are there and should not be, or should be others: somebody has to look at one of them.
_TO_LOOK_AT: Final[tuple[DifferenceKind, ...]] = ("stranger", "gap", "twice", "differing")


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Complete commands about one sink, without passwords.

    Attributes:
        verify: `spark-2pc verify` with what tells the form of the table.
        status: `spark-2pc status`.
        bootstrap_servers: brokers, with commas between.
    """

    verify: str
    status: str
    bootstrap_servers: str

    @classmethod
    def of(cls, options: CommonOptions, shape: Mapping[str, str | Sequence[str] | None]) -> Commands:
        """Those for the sink of these options.

        Args:
            options: names and connections.
            shape: keywords of `verify` that tell the form of the table, as they were given; None for those that
                were not.
        """
        sides = recover_command(options).removeprefix(f"{BARE_COMMAND} ")
        words = [
            word
            for name, value in shape.items()
            if value is not None
            for word in (f"--{name.replace('_', '-')}", value if isinstance(value, str) else ",".join(value))
        ]
        return cls(
            verify=" ".join(["spark-2pc verify", sides, *([shlex.join(words)] if words else [])]),
            status=f"spark-2pc status {sides}",
            bootstrap_servers=",".join(options.kafka.bootstrap_servers),
        )


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
            if one.kind == kind and one.topic is not None and one.offset is not None:
                words = [
                    *("kafka-console-consumer.sh", "--bootstrap-server", commands.bootstrap_servers),
                    *("--topic", one.topic, "--partition", str(one.partition), "--offset", str(one.offset)),
                    *("--max-messages", "1", "--isolation-level", "read_committed"),
                    *("--property", "print.key=true", "--property", "print.headers=true"),
                ]
                return (f"look at the record ({kind}): {shlex.join(words)}",)
    return ()


def _putting_back(report: VerifyReport, commands: Commands) -> tuple[str, ...]:
    if report.written:
        (page,) = (path for path in report.written if path.endswith(COMMANDS))
        return (f"read {page}, and run the commands in it that put back what should be there",)
    if not _LACKING.isdisjoint(report.counts):
        return (f"write files with what either side lacks, and the commands: {commands.verify} --write-missing DIR",)
    return ()

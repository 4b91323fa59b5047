"""Complete commands about one sink, to be pasted, without passwords; and which of them is next."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.options import CommonOptions
from spark_2pc_sink.options.database import as_libpq_uri
from spark_2pc_sink.recovery.recover_command import sink_words
from spark_2pc_sink.verification.report import VerifyReport

#: The page about the files with missing rows and records.
PAGE: Final = "APPLY.md"
#: What a directory of files can restore or show.
_LACKING: Final = frozenset({"missing_in_kafka", "missing_in_table", "topic_remade", "topic_deleted", "truncated"})
#: Unexpected or different records: a person has to look at one of them.
_TO_LOOK_AT: Final = ("stranger", "gap", "twice", "differing")


@dataclass(frozen=True, kw_only=True)
class Commands:
    """Beginnings of the commands.

    Attributes:
        verify: ``spark-2pc verify`` with the options that describe the table.
        status: ``spark-2pc status``.
        psql: PostgreSQL's client. The password is in PGPASSWORD or ~/.pgpass.
        bootstrap_servers: brokers, with commas between.
        secured: the brokers require a login or TLS.
    """

    verify: str
    status: str
    psql: str
    bootstrap_servers: str
    secured: bool = False

    @classmethod
    def of(cls, options: CommonOptions, shape: Mapping[str, str | Sequence[str] | None]) -> Commands:
        """The commands for a sink; ``shape`` has the keywords of `verify` that describe the table."""
        sides = sink_words(options)
        words = [
            word
            for name, value in shape.items()
            if value is not None
            for word in (f"--{name.replace('_', '-')}", value if isinstance(value, str) else ",".join(value))
        ]
        return cls(
            verify=" ".join(["spark-2pc verify", sides, *([shlex.join(words)] if words else [])]),
            status=f"spark-2pc status {sides}",
            psql=shlex.join(["psql", as_libpq_uri(options.database), "-v", "ON_ERROR_STOP=1"]),
            bootstrap_servers=",".join(options.kafka.bootstrap_servers),
            secured=options.kafka.security_protocol != "PLAINTEXT",
        )

    def console_producer(self, topic: str, reader: str) -> str:
        """Kafka's console producer; ``reader`` is the file of its reader's properties."""
        return self._kafka("kafka-console-producer.sh", "--topic", topic, "--reader-config", reader)

    def console_consumer(self, topic: str, partition: int, offset: int) -> str:
        """Kafka's console consumer, for one record."""
        return self._kafka(
            *("kafka-console-consumer.sh", "--topic", topic, "--partition", str(partition), "--offset", str(offset)),
            *("--max-messages", "1", "--isolation-level", "read_committed"),
            *("--property", "print.key=true", "--property", "print.headers=true"),
        )

    def _kafka(self, program: str, *words: str) -> str:
        secured = " --command-config FILE" if self.secured else ""
        return shlex.join([program, "--bootstrap-server", self.bootstrap_servers, *words]) + secured


def next_steps(report: VerifyReport, commands: Commands) -> tuple[str, ...]:
    """The next actions for a person, each with its reason, the safest first; () if both sides are the same."""
    if not report.known:
        return (f"look whether it is the right database and state table: {commands.status}",)
    if report.verdict == "same":
        return ()
    steps = []
    if "gap" in report.counts:
        # A database state older than Kafka explains all the rest, so it is first.
        steps.append(f"see whether the database is behind Kafka, as after a restored backup: {commands.status}")
    located = [each for each in report.differences if None not in (each.topic, each.partition, each.offset)]
    found = next((each for kind in _TO_LOOK_AT for each in located if each.kind == kind), None)
    if found is not None:
        look = commands.console_consumer(str(found.topic), int(found.partition or 0), int(found.offset or 0))
        steps.append(f"look at the record ({found.kind}): {look}")
    pages = [path for path in report.written if path.endswith(PAGE)]
    steps += [f"read {page}, and run the commands in it that put back what should be there" for page in pages]
    if not report.written and not _LACKING.isdisjoint(report.counts):
        steps.append(
            f"write files with what either side lacks, and the commands: {commands.verify} --write-missing DIR"
        )
    return tuple(steps)

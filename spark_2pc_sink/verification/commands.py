"""Complete commands about one sink, as they are pasted: with both sides, and without passwords."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spark_2pc_sink.options import CommonOptions
from spark_2pc_sink.options.database import as_libpq_uri
from spark_2pc_sink.recovery.recover_command import sink_words


@dataclass(frozen=True, kw_only=True)
class Commands:
    """What the commands begin with.

    Attributes:
        verify: ``spark-2pc verify`` with what tells the form of the table.
        status: ``spark-2pc status``.
        psql: PostgreSQL's client. The password is in PGPASSWORD or ~/.pgpass.
        bootstrap_servers: brokers, with commas between.
        secured: the brokers want a login or TLS.
    """

    verify: str
    status: str
    psql: str
    bootstrap_servers: str
    secured: bool = False

    @classmethod
    def of(cls, options: CommonOptions, shape: Mapping[str, str | Sequence[str] | None]) -> Commands:
        """Those for the sink of these options.

        Args:
            options: names and connections.
            shape: keywords of `verify` that tell the form of the table, as they were given; None for those that
                were not.
        """
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

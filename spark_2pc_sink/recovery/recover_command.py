"""Commands as remedies print them: complete with the sink's name and its connections, and without a secret."""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from jdbc_state.versions import as_identifier
from spark_2pc_sink.options import CommonOptions, KafkaOptions
from spark_2pc_sink.options.database import without_secrets
from spark_2pc_sink.recipe.remedies import RECOVER

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: A command in the remedies of the pure rules, which lack the sink's name and connections.
_BARE: Final = re.compile(r"(spark-2pc (?:recover|status|verify))(?! --transactional-id)\b")
#: Flags that the command needs if the sink's option is not the default.
_NAMES: Final = ("state_schema", "state_table", "history_table", "history_batches")


@dataclass(frozen=True)
class NamedConnection:
    """Both sides as words of a command.

    Args:
        words: the flags, for a shell; '' if the environment has all values.
        database: whether they, or the environment, name a database.
    """

    words: str
    database: bool


#: How the command line has named both sides, if a command prints. Printed commands then use the same words, with the
#: same file or variable for secrets.
_AS_GIVEN: ContextVar[NamedConnection | None] = ContextVar("connection as given", default=None)


@contextmanager
def connection_named(connection: NamedConnection) -> Iterator[None]:
    """In the block, commands name both sides in these words, and not by the options."""
    before = _AS_GIVEN.set(connection)
    try:
        yield
    finally:
        _AS_GIVEN.reset(before)


def recover_command(options: CommonOptions) -> str:
    """The command that recovers one sink, without a choice.

    It shows no password: PostgreSQL's client reads it from PGPASSWORD or ~/.pgpass, or the command calls the sink's
    ``password_command``. If brokers require credentials, it names the flag for their file.
    """
    return f"{RECOVER} {sink_words(options)}"


def with_command(remedies: Iterable[str], options: CommonOptions) -> tuple[str, ...]:
    """The remedies with complete commands in place of incomplete ones; complete ones are unchanged."""
    sink = sink_words(options)
    return tuple(_BARE.sub(lambda found: f"{found[1]} {sink}", remedy) for remedy in remedies)


def sink_words(options: CommonOptions) -> str:
    """Common words of every command about one sink: its name, and both sides."""
    return " ".join([shlex.join(["--transactional-id", options.transactional_id]), *_connection(options)])


def _connection(options: CommonOptions) -> list[str]:
    given = _AS_GIVEN.get()
    if given is not None:
        return [given.words] if given.words else []
    words = ["--database", without_secrets(options.database)]
    if options.password_command is not None:
        words += ["--password-command", options.password_command]
    if options.require_tls:
        words += ["--require-tls"]
    for name in _NAMES:
        value = getattr(options, name)
        if value != getattr(CommonOptions, name):
            words += [f"--{name.replace('_', '-')}", str(value) if isinstance(value, int) else as_identifier(value)]
    servers, *secured = _kafka(options.kafka)
    return [servers, shlex.join(words), *secured]


def kafka_connection(kafka: KafkaOptions) -> NamedConnection:
    """The flags of a cluster, for commands that need no database."""
    return _AS_GIVEN.get() or NamedConnection(" ".join(_kafka(kafka)), database=False)


def _kafka(kafka: KafkaOptions) -> list[str]:
    secured = [] if kafka.security_protocol == "PLAINTEXT" else ["--command-config FILE"]
    return [shlex.join(["--bootstrap-server", ",".join(kafka.bootstrap_servers)]), *secured]

"""Commands as remedies print them: complete with the sink's name and its connections, and without a secret."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jdbc_state.preparing import as_identifier
from spark_2pc_sink.choices.choice import flags
from spark_2pc_sink.options import CommonOptions, KafkaOptions
from spark_2pc_sink.options.common import READER_FLAGS
from spark_2pc_sink.options.database import without_secrets
from spark_2pc_sink.options.names import parse_identifier
from spark_2pc_sink.options.settings import options_of, setting_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True)
class NamedConnection:
    """Both sides as words of a command."""

    #: The flags, for a shell; '' if the environment has all values.
    words: str
    #: Whether they, or the environment, name a database.
    database: bool


#: How the command line has named both sides, if a command prints. Printed commands then use the same words, with the
#: same file or variable for secrets.
_AS_GIVEN: ContextVar[NamedConnection | None] = ContextVar("connection as given", default=None)


@contextmanager
def flags_as_given(connection: NamedConnection) -> Iterator[None]:
    """In the block, commands name both sides in these words, and not by the options."""
    before = _AS_GIVEN.set(connection)
    try:
        yield
    finally:
        _AS_GIVEN.reset(before)


def sink_flags(options: CommonOptions) -> str:
    """Common words of every command about one sink: its name, and both sides.

    They show no password: PostgreSQL's client reads it from PGPASSWORD or ~/.pgpass, or the command calls the sink's
    ``password_command``. If brokers require credentials, they name the flag for their file.
    """
    return " ".join([*flags({"transactional_id": options.transactional_id}), *_connection(options)])


def _connection(options: CommonOptions) -> list[str]:
    given = _AS_GIVEN.get()
    if given is not None:
        return [given.words] if given.words else []
    named = {"database": without_secrets(options.database)}
    for item in options_of(CommonOptions):
        value = getattr(options, item.name)
        if item.name in READER_FLAGS and value != item.default:
            named[item.name] = as_identifier(value) if setting_of(item).parse is parse_identifier else value
    servers, *secured = _kafka(options.kafka)
    return [servers, *flags(named), *secured]


def kafka_connection(kafka: KafkaOptions) -> NamedConnection:
    """The flags of a cluster, for commands that need no database."""
    return _AS_GIVEN.get() or NamedConnection(" ".join(_kafka(kafka)), database=False)


def _kafka(kafka: KafkaOptions) -> list[str]:
    secured = [] if kafka.security_protocol == "PLAINTEXT" else ["--command-config FILE"]
    return [*flags({"bootstrap_server": ",".join(kafka.bootstrap_servers)}), *secured]

"""The command ``spark-2pc recover``, complete with its connections, as the remedies of a halt print it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from sqlalchemy.engine import URL, make_url

from jdbc_state.versions import as_identifier
from spark_2pc_sink.options import CommonOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The command in the remedies of the pure rules, which know neither the sink's name nor its connections.
BARE_COMMAND: Final = "spark-2pc recover"
#: Flags that the command needs where the sink's option is not the default.
_NAMES: Final = ("state_schema", "state_table", "history_table", "history_batches")


def recover_command(options: CommonOptions) -> str:
    """The command for one sink, without what it is to do.

    It shows no password: PostgreSQL's client takes that from PGPASSWORD or ~/.pgpass. Where brokers want credentials,
    it names the flag for the file that has them.
    """
    words = [
        *("--transactional-id", options.transactional_id),
        *("--bootstrap-server", ",".join(options.kafka.bootstrap_servers)),
        *("--database", _without_secrets(make_url(options.database))),
    ]
    for name in _NAMES:
        value = getattr(options, name)
        if value != getattr(CommonOptions, name):
            words += [f"--{name.replace('_', '-')}", str(value) if isinstance(value, int) else as_identifier(value)]
    secured = "" if options.kafka.security_protocol == "PLAINTEXT" else " --command-config FILE"
    return f"{BARE_COMMAND} {shlex.join(words)}{secured}"


def with_command(remedies: Iterable[str], options: CommonOptions) -> tuple[str, ...]:
    """The remedies with the complete command in place of the bare one; those that have it already stay as they are."""
    command = recover_command(options)
    return tuple(remedy.replace(command, BARE_COMMAND).replace(BARE_COMMAND, command) for remedy in remedies)


def _without_secrets(url: URL) -> str:
    # A password may be in the query too; of that only the place of the server is kept.
    place = {key: value for key, value in url.query.items() if key in ("host", "port")}
    return URL.create(
        "postgresql", username=url.username, host=url.host, port=url.port, database=url.database, query=place
    ).render_as_string()

"""The page of errors and of causes for which a person has to decide."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from spark_2pc_sink import errors
from spark_2pc_sink.choices import NO_FACTS, TABLE, HaltCause
from spark_2pc_sink.errors import DualWriteError
from tools.reference_pages.markdown import code, text_of

_PAGE: Final = """\
# Errors

`make reference-pages` makes this page of the classes in `spark_2pc_sink.errors` and of the table in
`spark_2pc_sink.choices`. A test compares it with them.

`DualWriteError` is the root of all errors: one `except` catches whatever the package raises on purpose. An error has
fields, and its text is made of them: what happened, why, and what to do. Every error can be pickled.

## The tree

{tree}

## What each says, and what to do

{errors}

## Causes of a halt

A `HaltError` says that both sides differ in a way that has no safe automatic answer. Its `cause` is one of these, a
`HaltCause`. `spark-2pc status` and `recover` print the same words with `--json`. The ways on are those that
`spark-2pc runbook` offers, the safest first: it says what each changes on either side, asks, and does it.
[After a crash](../after-a-crash.md#when-it-stops-and-what-settles-it) has the texts of the messages.

{causes}
"""
#: For a person who meets the error. What is beside it in the error's own text is more exact.
_TO_DO: Final[dict[str, str]] = {
    "ConfigurationError": "change the option as `remedy` says, and start again",
    "DataError": "correct or filter the row before the sink; or send such rows to the [dead letters](../bad-rows.md)",
    "UnstorableValueError": "convert or filter the value before the sink",
    "ConstraintError": "correct or filter such rows, or change the table",
    "DuplicateKeyError": "set `upsert_order_by`, or deduplicate before the sink",
    "RecordTooLargeError": "raise `max.message.bytes` of the topic, or make the value smaller",
    "RecordRefusedError": "give each row a key where the topic is compacted; or send such rows to the "
    "[dead letters](../bad-rows.md)",
    "TooManyBadRowsError": "correct the rows or the table, or raise `max_bad_rows`",
    "LocalProtocolError": "correct the program: `rule` says which call comes first",
    "RemoteProtocolError": "look at what answers at this address, and at its version",
    "KafkaError": "look up the code of Kafka; then restart the job",
    "FencedError": "find the other producer with this transactional id; give each sink an id of its own",
    "AbortableError": "nothing: the sink tries the batch again. With `TransactionalWriter`, abort and begin again",
    "AuthorizationError": "grant the ACL ([Permissions](../permissions.md#kafka)), or correct the login "
    "([Logins](../logins.md))",
    "TlsRefusedError": "change what `remedy` names: [what is refused, and what mends it]"
    "(../logins.md#what-is-refused-and-what-mends-it)",
    "UnknownTopicError": "create the topic, then restart the job",
    "KafkaTimeoutError": "look at the brokers and the network, then restart the job",
    "OutcomeUnknownError": "restart the job, or run `spark-2pc recover`: both look how it ended",
    "SchemaRegistryError": "look at the registry and its login, then restart the job",
    "StateStoreError": "do what `remedies` says, or restart the job where `retriable` is true",
    "DatabaseRefusedError": "follow its remedy, the statement or the line of pg_hba.conf, then restart the job",
    "DatabaseUnreachableError": "look at the server, the network and the password, then restart the job",
    "CommitUnknownError": "nothing: the sink claims its row again and looks what the database has",
    "ClaimRefusedError": "use the query or the cluster that the row belongs to, or another transactional id; "
    "`remedies` has the commands",
    "BatchRetryError": "nothing: the sink runs the batch again",
    "BatchAttemptsExhaustedError": "look at `last_error`, remove what causes it, and restart the job",
    "TransactionExpiredError": "make batches smaller, raise the time-out, or grant two-phase commit",
    "SupersededError": "nothing, where a newer driver is meant to run. Else stop one of the two jobs",
    "TakeOverRefusedError": "stop the driver, or say `take_over=True` (`--take-over`)",
    "AbortRefusedError": "let its owner end the transaction; `remedies` has the commands",
    "HaltError": "look up its `cause` [below](#causes-of-a-halt), or run `spark-2pc runbook`",
    "InDoubtError": "restart the job, or run `spark-2pc recover`; nothing is lost",
}


def errors_page() -> str:
    """The page as Markdown."""
    return _PAGE.format(
        tree="\n".join(f"{'  ' * depth}- [`{each.__name__}`](#{each.__name__.lower()})" for each, depth in _tree()),
        errors="\n\n".join(_error(each) for each, _ in _tree()),
        causes="\n\n".join(map(_cause, HaltCause)),
    )


def _tree(root: type[DualWriteError] = DualWriteError, depth: int = 0) -> Iterator[tuple[type[DualWriteError], int]]:
    """The public classes below a class, each with its depth, in the order of the tree in the source."""
    yield root, depth
    drawn = errors.__doc__ or ""
    for error in sorted(root.__subclasses__(), key=lambda each: drawn.find(f" {each.__name__}")):
        if getattr(errors, error.__name__, None) is error:
            yield from _tree(error, depth + 1)


def _error(error: type[DualWriteError]) -> str:
    to_do = _TO_DO.get(error.__name__)
    names = ", ".join(code(item.name) for item in fields(error))
    parts = [text_of(error), to_do and f"*What to do:* {to_do}.", names and f"*Fields:* {names}."]
    return "\n\n".join([f"### {error.__name__}", *filter(None, parts)])


def _cause(cause: HaltCause) -> str:
    entry = TABLE[cause]
    seen = "Only the job meets it." if entry.job_only else "`status` sees it too."
    ways = (f"- {NO_FACTS.filled(choice.title)}" for choice in entry.choices)
    link = f"The [runbook](../../RUNBOOK.md#{cause.value}) has the commands."
    title = entry.title[0].upper() + entry.title[1:]
    return "\n".join([f"### {cause.value}", "", f"{title}. {entry.meaning} {seen}", "", *ways, "", link])

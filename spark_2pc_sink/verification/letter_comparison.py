"""The comparison of dead letters: records of a topic with rows of the dead-letter table, as multisets. Pure.

The form of a letter is written down again here on purpose, as that of a digest is: a fault of the code that writes
must not be repeated by the code that checks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias

from spark_2pc_sink.ids import TopicPartition
from spark_2pc_sink.plural import counted
from spark_2pc_sink.verification.report import Difference

#: The columns by which a letter is known, and those that are compared.
KEY: Final = ("query_id", "batch_id", "identity")
COMPARED: Final = ("occurrences", "output", "reason", "sqlstate", "row")
#: Query, batch and identity.
LetterKey: TypeAlias = tuple[str, int, str]


@dataclass(frozen=True)
class Letter:
    """One dead letter on one side.

    Attributes:
        key: by which it is known.
        columns: those of `COMPARED`; without the row where it was left out as too large for the topic.
        partition, offset: of the record; None in the table.
    """

    key: LetterKey
    columns: Mapping[str, Any] = field(hash=False)
    partition: TopicPartition | None = None
    offset: int | None = None


def letter_of_record(
    key: bytes | None,
    value: bytes | None,
    transactional_id: str,
    partition: TopicPartition,
    offset: int,
    *,
    queries: Collection[str] = (),
) -> Letter | None:
    """The letter that a record is; None where it is none of this sink.

    Args:
        key: of the record.
        value: of the record.
        transactional_id: of the sink.
        partition: where the record is.
        offset: where in it.
        queries: those of the sink's batches. Their letters are its own under another id too, which it had before.
    """
    try:
        told = parsed(value or b"")
        letter_key = (told["query_id"], told["batch_id"], told["identity"])
        columns = {name: told[name] for name in COMPARED}
        own = told["transactional_id"] == transactional_id or told["query_id"] in queries
        own = own and (key or b"").decode() == told["identity"]
    except (ValueError, TypeError, KeyError):
        return None
    if not own:
        return None
    if told.get("row_left_out"):
        del columns["row"]
    return Letter(letter_key, columns, partition, offset)


def parsed(text: bytes | str) -> Any:
    """JSON with all digits of its numbers."""
    return json.loads(text, parse_float=Decimal)


def compared_letters(
    in_topic: Sequence[Letter], in_table: Iterable[Letter], *, deleted: Collection[tuple[str, int]]
) -> Iterator[Difference]:
    """What differs.

    Args:
        in_topic: the letters of some batches.
        in_table: those of the same batches, each key once.
        deleted: query and batch of those whose letters may have been deleted from the table, all of them.
    """
    rows = {letter.key: letter for letter in in_table}
    counts = Counter(letter.key for letter in in_topic)
    seen: set[LetterKey] = set()
    for letter in in_topic:
        if letter.key in seen:
            text = f"the topic has this dead letter {counted(counts[letter.key], 'time')}"
            yield _difference(letter, kind="twice", text=text, side="kafka")
            continue
        seen.add(letter.key)
        row = rows.get(letter.key)
        if row is None and letter.key[:2] not in deleted:
            text = "the topic has this dead letter, and the table does not"
            yield _difference(letter, kind="missing_in_table", text=text, record=_shown(letter.columns))
        elif row is not None and (names := _differing(letter, row)):
            yield _difference(
                letter,
                kind="differing",
                text=f"the dead letter differs in {', '.join(names)}",
                record=_shown({name: letter.columns[name] for name in names}),
                row=_shown({name: row.columns[name] for name in names}),
            )
    for key, row in rows.items():
        if key not in seen:
            text = "the table has this dead letter, and the topic does not"
            yield _difference(row, kind="missing_in_kafka", text=text, row=_shown(row.columns))


def deleted_batches(
    in_topic: Iterable[Letter], in_table: Iterable[Letter], *, newest: int | None
) -> list[tuple[str, int]]:
    """Query and batch of those with letters in the topic and none in the table, which a person may have deleted.

    Args:
        in_topic: the letters of some batches.
        in_table: those of the same batches.
        newest: the newest batch, whose letters the sink needs: nobody may have deleted those. None where it is none of
            these batches.
    """
    there = {letter.key[:2] for letter in in_table}
    return sorted({letter.key[:2] for letter in in_topic if letter.key[1] != newest} - there)


def _differing(letter: Letter, row: Letter) -> list[str]:
    return [name for name in COMPARED if name in letter.columns and letter.columns[name] != row.columns[name]]


def _shown(columns: Mapping[str, Any]) -> dict[str, Any]:
    """As a report has them, which is JSON."""
    shown: dict[str, Any] = json.loads(json.dumps(dict(columns), default=str))
    return shown


def _difference(letter: Letter, **told: Any) -> Difference:
    _, batch, identity = letter.key
    at = letter.partition
    return Difference(
        key=f"identity={identity}",
        batch=batch,
        topic=None if at is None else at.topic,
        partition=None if at is None else at.partition,
        offset=letter.offset,
        **told,
    )

"""Names of tables, columns and topics: split and quoted here, so that no other module builds SQL from raw text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from spark_2pc_sink.options.settings import check_texts, refused

#: NAMEDATALEN - 1: PostgreSQL truncates longer names with only a notice, so two tables could become one.
IDENTIFIER_BYTES_MAX = 63
_IDENTIFIER = r'"(?:[^"\x00]|"")+"|[^\W\d][\w$]*'
_DOTTED = re.compile(rf"(?:{_IDENTIFIER})(?:\.(?:{_IDENTIFIER}))*")
_UPPER = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class TableName:
    """A table and its schema, unquoted as in the catalogue; without one, the first on the search_path that has it."""

    name: str
    schema: str | None = None

    @classmethod
    def parse(cls, text: object, *, option: str = "table") -> TableName:
        """Split 'table' or 'schema.table' by PostgreSQL's rules.

        A bare identifier is folded to lower case; one in double quotes is kept, a double quote in it is doubled.
        """
        parts = _split(text)
        # A third part would be a database, which a connection cannot leave.
        if len(parts) not in (1, 2):
            rule = "it must be 'table' or 'schema.table'; each part starts with a letter or _, followed by letters, "
            remedy = "quote a part with other characters: 'public.\"order-items\"'"
            raise refused(option, text, f"{rule}digits, _ and $, or is in double quotes", remedy)
        for part in parts:
            _check_length(option, text, part)
        return cls(parts[-1], parts[0] if len(parts) > 1 else None)

    def __str__(self) -> str:
        """The name as SQL, every part in double quotes."""
        return ".".join(quote_identifier(part) for part in (self.schema, self.name) if part is not None)


def quote_identifier(name: str) -> str:
    if not name or "\x00" in name:
        remedy = "choose another name, for a column with columns={'name': 'expression'}"
        raise refused("name", name, "a PostgreSQL name must have at least one character, and no NUL", remedy)
    _check_length("name", name, name)
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def parse_identifier(text: object, option: str) -> str:
    """One identifier by the same rules as in :meth:`TableName.parse`, as the catalogue spells it."""
    parts = _split(text)
    if len(parts) != 1:
        rule = "it must be one name: letters, digits, _ and $, or anything in double quotes"
        raise refused(option, text, rule, "give schema and table as two options")
    _check_length(option, text, parts[0])
    return parts[0]


def check_topic(text: object, option: str = "topic") -> str | None:
    """A topic's name by Kafka's rules (``org.apache.kafka.common.internals.Topic``), or None."""
    if text is None or (isinstance(text, str) and _TOPIC.fullmatch(text) and text not in (".", "..")):
        return text
    or_none = ", or leave it out where the batch has a column named topic" if option == "topic" else ""
    rule = "it must have 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-', and must not be '.' or '..'"
    raise refused(option, text, rule, f"correct it{or_none}")


def _split(text: object) -> list[str]:
    """The identifiers of a dotted text; empty for anything else."""
    if not isinstance(text, str) or not _DOTTED.fullmatch(text):
        return []
    return [
        # PostgreSQL folds only ASCII in a multi-byte encoding.
        part[1:-1].replace('""', '"') if part.startswith('"') else part.translate(_UPPER)
        for part in re.findall(_IDENTIFIER, text)
    ]


def _check_length(option: str, text: object, part: str) -> None:
    check_texts(option, part)
    length = len(part.encode())
    if length > IDENTIFIER_BYTES_MAX:
        rule = f"PostgreSQL truncates names to {IDENTIFIER_BYTES_MAX} bytes, and {part!r} has {length}"
        raise refused(option, text, rule, "choose a shorter one")

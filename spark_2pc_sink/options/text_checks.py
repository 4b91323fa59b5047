"""Characters that no option's text may contain, as neither side could store them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from spark_2pc_sink.errors import ConfigurationError

#: Replaces values in messages that may be secret.
HIDDEN = "***"
#: Substrings of names whose value is a secret, or may be: even if misspelt.
_SECRET_NAME = re.compile(
    r"pas+w|pa?s+phr|se?cr?e?t|tok(en|n)|jaas|cred|auth|login|private|database|command|(api|access|ssl)[._]?key|user.?info|"
    r"key.?(store|pass)|truststore|oauth|\bpem\b",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(r"@|pas+.?w|secret|token|jaas|-----BEGIN|\S{33,}", re.IGNORECASE)
_SHOWN_MAX = 200
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")


def shown(name: str, value: object) -> object:
    """A value for a message: unchanged, unless its name or itself looks like a secret.

    Args:
        name: the given name, perhaps misspelt.
        value: the given value.
    """
    if value is None or isinstance(value, bool):
        return value
    if _SECRET_NAME.search(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: shown(str(key), part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [shown(name, part) for part in value]
    if isinstance(value, (int, float)):
        return value
    harmless = isinstance(value, str) and len(value) <= _SHOWN_MAX and not _SECRET_VALUE.search(value)
    return value if harmless else HIDDEN


def check_texts(option: str, value: object) -> None:
    """Refuse texts that no database, broker or file name can contain, at any depth of a value.

    Args:
        option: the name for the error; for an entry of a mapping, its key is appended.
        value: a text, a path, or mappings and lists of such; other types are accepted.

    Raises:
        ConfigurationError: a text contains NUL, or half of a surrogate pair, which is not a character. The value is
            not shown: it may be a secret.
    """
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str):
        if found := _NO_TEXT.search(value):
            raise ConfigurationError(
                option=option,
                value=shown(option, value),
                rule=f"character {found.start() + 1} of it is U+{ord(found[0]):04X}, which no text of PostgreSQL and "
                "Kafka has",
                remedy="take it out, or write it as an escape of the language that the text is in",
            )
    elif isinstance(value, Mapping):
        for name, entry in value.items():
            check_texts(option, name)
            check_texts(f"{option}[{name!r}]", entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            check_texts(option, entry)

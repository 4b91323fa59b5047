"""What no text of an option may have in it, as neither side could hold it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from spark_2pc_sink.errors import ConfigurationError

#: Stands in every message where a value may be a secret.
HIDDEN = "***"
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")


def check_texts(option: str, value: object) -> None:
    """Refuse texts that no database, broker or file name can hold, wherever they are in a value.

    Args:
        option: the name for the error; of an entry of a mapping, its key is put behind it.
        value: a text, a path, or mappings and lists of such; everything else passes.

    Raises:
        ConfigurationError: a text has NUL in it, or half of a surrogate pair, which is no character. The value is not
            shown: it may be a secret.
    """
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str):
        if found := _NO_TEXT.search(value):
            raise ConfigurationError(
                option=option,
                value=HIDDEN,
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

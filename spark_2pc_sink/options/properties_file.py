"""Java properties files, as Kafka's own programs read them."""

from __future__ import annotations

from pathlib import Path

import javaproperties

from spark_2pc_sink.errors import ConfigurationError


def read_properties_file(path: Path, *, option: str) -> list[tuple[str, str]]:
    """Read a Java properties file (``java.util.Properties.load``: Latin-1 with Unicode escapes).

    Args:
        path: the file.
        option: the option that named it, for errors.

    Returns:
        Names and values in their order; duplicate names are kept.

    Raises:
        ConfigurationError: the file cannot be read, has an escape that Java would refuse, or a line without a value.
            The message has only the number of the line, as its content may be secret.
    """
    try:
        with path.open("rb") as file:
            parts = list(javaproperties.parse(file))
    except OSError as error:
        rule = f"it cannot be read: {error.strerror}"
        raise ConfigurationError(option=option, value=str(path), rule=rule, remedy="correct the path") from error
    except javaproperties.InvalidUEscapeError as error:
        remedy = "write four hexadecimal digits after a backslash and u"
        raise ConfigurationError(option=option, value=str(path), rule=str(error), remedy=remedy) from error
    found, line = [], 1
    for part in parts:
        if isinstance(part, javaproperties.reading.KeyValue):
            if not part.value and not part.source.rstrip().endswith(("=", ":")):
                raise ConfigurationError(
                    option=option,
                    value=f"{path}, line {line}",
                    rule="each property has the form KEY=VALUE",
                    remedy="write KEY= where the value is empty",
                )
            found.append((part.key, part.value))
        line += len(part.source.splitlines())
    return found

"""The TOML file of a sink: its options by name, for both the job and ``spark-2pc``.

In a text, ``${NAME}`` is the environment variable of that name; ``${NAME:-text}`` is the same with a default if the
variable is unset or empty, as in a shell. ``$${`` is an escape for ``${``.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.keywords import KNOWN_ELSEWHERE
from spark_2pc_sink.options.output_tables import outputs_of_tables
from spark_2pc_sink.options.settings import HIDDEN, nearest
from spark_2pc_sink.options.sink import SinkOptions
from spark_2pc_sink.options.sourced_options import SourcedOptions
from spark_2pc_sink.options.text_checks import shown
from spark_2pc_sink.options.text_values import value_of_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_OPTIONS: Final = {item.name: item for item in fields(SinkOptions)}
_REFERENCE: Final = re.compile(r"\$(?P<escaped>\$?)\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?")


def read_toml_file(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> SourcedOptions:
    """Read the options of a sink. Their values are validated by the caller.

    Args:
        path: path of the file.
        environment: the variables; by default those of this process.

    Raises:
        ConfigurationError: the file cannot be read or is not TOML, names an unknown option, or a variable that is not
            set.
    """
    shown = os.fspath(path)
    reader = _Reader(os.environ if environment is None else environment)
    tables = _load(shown)
    with _source_named(shown):
        found = SourcedOptions(shown=reader.written)
        found.add(reader.options(tables), source=shown)
    return found


def _load(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            tables: dict[str, Any] = tomllib.load(file)
            return tables
    except OSError as error:
        rule, remedy = f"it cannot be read: {error.strerror}", "correct the path"
        raise ConfigurationError(option="config", value=path, rule=rule, remedy=remedy) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        rule, remedy = f"it is no TOML: {error}", "correct it there"
        # Newer versions of the error contain the whole file, including passwords.
        raise ConfigurationError(option="config", value=path, rule=rule, remedy=remedy) from None


@contextmanager
def _source_named(path: str) -> Iterator[None]:
    try:
        yield
    except ConfigurationError as error:
        raise replace(error, source=path) from None


class _Reader:
    """Substitutes environment variables in the values of one file.

    Args:
        environment: the variables.

    Attributes:
        written: for each option and property that names a variable, the original text in the file.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.written: dict[str, str] = {}

    def options(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        """The tables of the file as keywords of `DualWriteSink`."""
        for name in tables:
            if name not in _OPTIONS:
                remedy = nearest(name, _OPTIONS, known_elsewhere=KNOWN_ELSEWHERE)
                told = shown(name, tables[name])
                raise ConfigurationError(option=name, value=told, rule="there is no such option", remedy=remedy)
        return {name: self._option(name, given) for name, given in tables.items()}

    def _option(self, name: str, given: Any) -> Any:
        if name == "kafka":
            return self._kafka(given)
        filled = self._filled(given, name)
        if name == "writes":
            return outputs_of_tables(filled)
        if not isinstance(given, str) or filled == given:
            return filled
        try:
            return value_of_text(_OPTIONS[name], filled)
        except ConfigurationError as error:
            raise replace(error, value=given) from None

    def _kafka(self, given: Any) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            rule, remedy = "it is a table of Kafka client properties", "write them below a line [kafka]"
            raise ConfigurationError(option="kafka", value=shown("kafka", given), rule=rule, remedy=remedy)
        return {name: self._filled(value, name) for name, value in _flat(given).items()}

    def _filled(self, given: Any, name: str) -> Any:
        """Convert a value, or each in a list or table; ``name`` is the name of the option or property."""
        if isinstance(given, Mapping):
            return {key: self._filled_part(part, name) for key, part in given.items()}
        if isinstance(given, list):
            return [self._filled_part(part, name) for part in given]
        if not isinstance(given, str):
            return given
        filled = _REFERENCE.sub(lambda found: self._text_of(found, name, given), given)
        if filled != given:
            self.written[name] = given
        return filled

    def _filled_part(self, given: Any, name: str) -> Any:
        filled = self._filled(given, name)
        if filled != given:
            # An error about the list or table shows none of it.
            self.written[name] = HIDDEN
        return filled

    def _text_of(self, found: re.Match[str], option: str, given: str) -> str:
        if found["escaped"]:
            return found[0][1:]
        name, default = found["name"], found["default"]
        value = self._environment.get(name or "")
        if value or (value is not None and default is None):
            return value
        if default is not None:
            return default
        if name is None:
            rule = "behind ${ stands the name of a variable"
            remedy = "write ${NAME} or ${NAME:-text}, or $${ for the two characters"
        else:
            rule, remedy = f"the environment has no variable {name}", f"set it, or write ${{{name}:-text}}"
        raise ConfigurationError(option=option, value=given, rule=rule, remedy=remedy)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Kafka's names have dots, which TOML reads as tables unless they are quoted."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat

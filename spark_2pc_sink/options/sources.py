"""Options from files and the environment: a sink's TOML file, its variables, and Java properties files.

``SPARK_2PC_TABLE`` is the option ``table``, and ``SPARK_2PC_KAFKA_SASL_PASSWORD`` the property ``sasl.password``; two
more variables name files. In a text of the TOML file, ``${NAME}`` is the environment variable of that name;
``${NAME:-text}`` is the same with a default if the variable is unset or empty, as in a shell. ``$${`` is an escape for
``${``. Values are validated by the caller; errors name their source.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import javaproperties

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.kafka import property_names
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.settings import HIDDEN, KNOWN_ELSEWHERE, nearest, options_of, refused, shown, value_of_text
from spark_2pc_sink.options.sink import SinkOptions

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PREFIX: Final = "SPARK_2PC_"
#: Names after the prefix that are not options: the TOML file of the sink, a file of Kafka properties, and the brokers,
#: named after the flag of Kafka's own tools.
CONFIG: Final = "CONFIG"
COMMAND_CONFIG: Final = "COMMAND_CONFIG"
BOOTSTRAP_SERVER: Final = "BOOTSTRAP_SERVER"
_OPTIONS: Final = {item.name: item for item in options_of(SinkOptions)}
_PROPERTIES: Final = {f"KAFKA_{name.upper().replace('.', '_')}": name for name in property_names()} | {
    BOOTSTRAP_SERVER: "bootstrap.servers"
}
_FILES: Final = (CONFIG, COMMAND_CONFIG)
#: Names after the usual prefix that tell `spark_2pc_sink.testing` where servers are.
_OF_TESTING: Final = frozenset(
    {"FLINK", "KAFKA_LIBS", "KAFKA_STREAMS", "KAFKA_TOOLS", "POSTGRES_BIN", "REGISTRY_HOME", "SPARK_JARS"}
)
_REFERENCE: Final = re.compile(r"\$(?P<escaped>\$?)\{(?:(?P<name>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\})?")
_KINDS: Final[dict[str, type[Records | Rows]]] = {"records": Records, "rows": Rows}
_EXAMPLE: Final = 'write [[writes]] and below it kind = "records", topic = "orders"'


@dataclass
class SourcedOptions:
    """Options read from files and variables so far."""

    #: By keyword, without Kafka's properties. Values may be secret.
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    #: Kafka's properties by name.
    kafka: dict[str, Any] = field(default_factory=dict, repr=False)
    #: The file or variable of each option and property.
    sources: dict[str, str] = field(default_factory=dict)
    #: The original text in the file, with ``${NAME}``, which messages show in place of the value.
    shown: dict[str, str] = field(default_factory=dict)

    @property
    def keywords(self) -> dict[str, Any]:
        return {**self.options, "kafka": self.kafka} if self.kafka else dict(self.options)

    def add(self, options: Mapping[str, Any], *, source: str) -> None:
        """Add options of a source; ``kafka`` is a mapping of properties."""
        plain = {name: value for name, value in options.items() if name != "kafka"}
        for known, more in ((self.options, plain), (self.kafka, options.get("kafka", {}))):
            add_once(known, more.items(), source=source)
            for name in more:
                self.sources.setdefault(name, source)

    @contextmanager
    def named_in_errors(self, *, but: Iterable[str] = ()) -> Iterator[None]:
        """Let an error about one of these, ``but`` some, name its source, and show no variable's text."""
        try:
            yield
        except ConfigurationError as error:
            if error.source or error.option in but or error.option not in self.sources:
                raise
            value = self.shown.get(error.option, error.value)
            raise replace(error, value=value, source=self.sources[error.option]) from None


def add_once(known: dict[str, Any], more: Iterable[tuple[str, Any]], *, source: str) -> None:
    """Add the values of one source to those of others, ``known``, in place; other values are refused, without them."""
    for name, value in more:
        if known.setdefault(name, value) != value:
            rule = "it was given before with another value"
            raise refused(source, name, rule, "give it once")


def read_environment(environment: Mapping[str, str], *, prefix: str = PREFIX, strict: bool = True) -> SourcedOptions:
    """Read the variables of a sink; an empty one counts as not set. Unknown ones are refused only if ``strict``."""
    given = {name.removeprefix(prefix): text for name, text in environment.items() if name.startswith(prefix) and text}
    found = read_toml_file(given[CONFIG], environment) if CONFIG in given else SourcedOptions()
    if COMMAND_CONFIG in given:
        source = f"{prefix}{COMMAND_CONFIG}"
        properties: dict[str, str] = {}
        add_once(properties, read_properties_file(Path(given[COMMAND_CONFIG]), option=source), source=source)
        found.add({"kafka": properties}, source=source)
    for name in sorted(given.keys() - set(_FILES)):
        variable, option = f"{prefix}{name}", name.lower()
        if option in _OPTIONS and name == option.upper():
            found.add({option: sourced_value(option, given[name], source=variable)}, source=variable)
        elif name in _PROPERTIES:
            found.add({"kafka": {_PROPERTIES[name]: given[name]}}, source=variable)
        elif strict and not (prefix == PREFIX and name in _OF_TESTING):
            valid = [f"{prefix}{known}" for known in (*map(str.upper, _OPTIONS), *_PROPERTIES, *_FILES)]
            meant = KNOWN_ELSEWHERE.get(option.replace("_", ""))
            # The prefix alone would make any name a near match.
            remedy = nearest(variable, valid) if meant is None else f"the name here is {prefix}{meant.upper()}"
            rule = f"there is no such variable with the prefix {prefix}"
            raise refused(variable, shown(name, given[name]), rule, remedy)
    return found


def sourced_value(option: str, text: str, *, source: str) -> Any:
    """The value of an option of a sink that a flag or a variable gives as a text."""
    try:
        value = value_of_text(_OPTIONS[option], text)
        return outputs_of_tables(value) if option == "writes" else value
    except ConfigurationError as error:
        raise replace(error, option=source) from None


def read_toml_file(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> SourcedOptions:
    """Read the options of a sink; ``environment`` are the variables, by default those of this process."""
    place = os.fspath(path)
    reader = _Reader(os.environ if environment is None else environment)
    try:
        with Path(path).open("rb") as file:
            tables: dict[str, Any] = tomllib.load(file)
    except OSError as error:
        raise refused("config", place, f"it cannot be read: {error.strerror}", "correct the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        # Newer versions of the error contain the whole file, including passwords.
        raise refused("config", place, f"it is not valid TOML: {error}", "correct it") from None
    try:
        found = SourcedOptions(shown=reader.written)
        found.add(reader.options(tables), source=place)
    except ConfigurationError as error:
        raise replace(error, source=place) from None
    return found


class _Reader:
    """Substitutes environment variables in one file; ``written`` has the original texts of values that name one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.written: dict[str, str] = {}

    def options(self, tables: Mapping[str, Any]) -> dict[str, Any]:
        for name in tables:
            if name not in _OPTIONS:
                remedy = nearest(name, _OPTIONS, known_elsewhere=KNOWN_ELSEWHERE)
                raise refused(name, shown(name, tables[name]), "there is no such option", remedy)
        return {name: self._option(name, given) for name, given in tables.items()}

    def _option(self, name: str, given: Any) -> Any:
        if name == "kafka":
            if not isinstance(given, Mapping):
                rule, remedy = "it must be a table of Kafka client properties", "write them below a line [kafka]"
                raise refused("kafka", shown("kafka", given), rule, remedy)
            return {name: self._filled(value, name) for name, value in _flat(given).items()}
        filled = self._filled(given, name)
        if name == "writes":
            return outputs_of_tables(filled)
        if not isinstance(given, str) or filled == given:
            return filled
        try:
            return value_of_text(_OPTIONS[name], filled)
        except ConfigurationError as error:
            raise replace(error, value=given) from None

    def _filled(self, given: Any, name: str) -> Any:
        """Convert a value, or each in a list or table; ``name`` is the name of the option or property."""
        filled = given
        if isinstance(given, Mapping):
            filled = {key: self._filled(part, name) for key, part in given.items()}
        elif isinstance(given, list):
            filled = [self._filled(part, name) for part in given]
        elif isinstance(given, str):
            filled = _REFERENCE.sub(lambda found: self._text_of(found, name, given), given)
        if filled != given:
            # An error about a list or table shows none of it.
            self.written[name] = given if isinstance(given, str) else HIDDEN
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
            remedy = "write ${NAME} or ${NAME:-text}, or $${ for the two characters"
            raise refused(option, given, "${ must be followed by the name of a variable", remedy)
        remedy = f"set it, or write ${{{name}:-text}}"
        raise refused(option, given, f"the environment variable {name} is not set", remedy)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Kafka's names have dots, which TOML reads as tables unless they are quoted."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat


def outputs_of_tables(given: object) -> tuple[Records | Rows, ...]:
    """The outputs of a sink as tables of a file: ``[[writes]]`` with ``kind = "records"`` or ``kind = "rows"``."""
    if not isinstance(given, list) or not all(isinstance(table, Mapping) for table in given):
        raise refused("writes", shown("writes", given), "it must be a list of tables", _EXAMPLE)
    outputs = []
    for number, table in enumerate(given, start=1):
        options = dict(table)
        kind = options.pop("kind", None)
        if kind not in _KINDS:
            rule = f'the kind of output number {number} must be "records" or "rows"'
            raise refused("writes", kind, rule, nearest(kind, _KINDS) if isinstance(kind, str) else _EXAMPLE)
        outputs.append(_KINDS[kind](**options))
    return tuple(outputs)


def read_properties_file(path: Path, *, option: str) -> list[tuple[str, str]]:
    """The names and values in a Java properties file (``java.util.Properties.load``: Latin-1 with Unicode escapes).

    Errors name only the number of a line, as its content may be secret.
    """
    try:
        with path.open("rb") as file:
            parts = list(javaproperties.parse(file))
    except OSError as error:
        raise refused(option, str(path), f"it cannot be read: {error.strerror}", "correct the path") from error
    except javaproperties.InvalidUEscapeError as error:
        remedy = "write four hexadecimal digits after a backslash and u"
        raise refused(option, str(path), str(error), remedy) from error
    found, line = [], 1
    for part in parts:
        if isinstance(part, javaproperties.reading.KeyValue):
            if not part.value and not part.source.rstrip().endswith(("=", ":")):
                rule = "each property must have the form KEY=VALUE"
                raise refused(option, f"{path}, line {line}", rule, "write KEY= for an empty value")
            found.append((part.key, part.value))
        line += len(part.source.splitlines())
    return found

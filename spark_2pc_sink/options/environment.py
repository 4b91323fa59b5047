"""The environment variables of a sink: one for each option and for each Kafka property, and two that name files.

``SPARK_2PC_TABLE`` is the option ``table``, and ``SPARK_2PC_KAFKA_SASL_PASSWORD`` the property ``sasl.password``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Final, NoReturn

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.kafka import property_names
from spark_2pc_sink.options.keywords import KNOWN_ELSEWHERE
from spark_2pc_sink.options.output_tables import outputs_of_tables
from spark_2pc_sink.options.properties_file import read_properties_file
from spark_2pc_sink.options.settings import nearest
from spark_2pc_sink.options.sink import SinkOptions
from spark_2pc_sink.options.sourced_options import SourcedOptions, add_once
from spark_2pc_sink.options.text_checks import shown
from spark_2pc_sink.options.text_values import value_of_text
from spark_2pc_sink.options.toml_file import read_toml_file

PREFIX: Final = "SPARK_2PC_"
#: Names after the prefix that are not options: the TOML file of the sink, a file of Kafka properties, and the brokers,
#: named after the flag of Kafka's own tools.
CONFIG: Final = "CONFIG"
COMMAND_CONFIG: Final = "COMMAND_CONFIG"
BOOTSTRAP_SERVER: Final = "BOOTSTRAP_SERVER"
_OPTIONS: Final = {item.name.upper(): item for item in fields(SinkOptions)}
_PROPERTIES: Final = {f"KAFKA_{name.upper().replace('.', '_')}": name for name in property_names()} | {
    BOOTSTRAP_SERVER: "bootstrap.servers"
}
_FILES: Final = (CONFIG, COMMAND_CONFIG)
#: Names after the usual prefix that tell `spark_2pc_sink.testing` where servers are.
_OF_TESTING: Final = frozenset(
    {"FLINK", "KAFKA_LIBS", "KAFKA_STREAMS", "KAFKA_TOOLS", "POSTGRES_BIN", "REGISTRY_HOME", "SPARK_JARS"}
)


def read_environment(environment: Mapping[str, str], *, prefix: str = PREFIX, strict: bool = True) -> SourcedOptions:
    """Read the variables of a sink. Their values are validated by the caller; an empty one counts as not set.

    Args:
        environment: all variables of the process.
        prefix: prefix of the variables to read.
        strict: refuse unknown variables with the prefix.

    Raises:
        ConfigurationError: an unknown variable (the nearest is named), an invalid value of an option, a file that
            cannot be read, or contradictory variables.
    """
    given = {name.removeprefix(prefix): text for name, text in environment.items() if name.startswith(prefix) and text}
    found = read_toml_file(given[CONFIG], environment) if CONFIG in given else SourcedOptions()
    if COMMAND_CONFIG in given:
        source = f"{prefix}{COMMAND_CONFIG}"
        properties: dict[str, str] = {}
        add_once(properties, read_properties_file(Path(given[COMMAND_CONFIG]), option=source), source=source)
        found.add({"kafka": properties}, source=source)
    for name in sorted(given.keys() - set(_FILES)):
        variable = f"{prefix}{name}"
        if name in _OPTIONS:
            found.add({_OPTIONS[name].name: _value(name, variable, given[name])}, source=variable)
        elif name in _PROPERTIES:
            found.add({"kafka": {_PROPERTIES[name]: given[name]}}, source=variable)
        elif strict and not (prefix == PREFIX and name in _OF_TESTING):
            _refuse(prefix, name, given[name])
    return found


def _value(name: str, variable: str, text: str) -> Any:
    try:
        value = value_of_text(_OPTIONS[name], text)
        return outputs_of_tables(value) if name == "WRITES" else value
    except ConfigurationError as error:
        raise replace(error, option=variable) from None


def _refuse(prefix: str, name: str, value: str) -> NoReturn:
    valid = [f"{prefix}{known}" for known in (*_OPTIONS, *_PROPERTIES, *_FILES)]
    option = KNOWN_ELSEWHERE.get(name.lower().replace("_", ""))
    # The prefix alone would make any name a near match.
    raise ConfigurationError(
        option=f"{prefix}{name}",
        value=shown(name, value),
        rule=f"no variable that begins with {prefix} has this name",
        remedy=nearest(f"{prefix}{name}", valid) if option is None else f"the name here is {prefix}{option.upper()}",
    )

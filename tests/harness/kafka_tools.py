"""Kafka's own command-line tools. Kafka 4.4.0 was published to Maven without them; those of 4.3.1 fit it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from spark_2pc_sink.testing import CapabilityError
from spark_2pc_sink.testing.java import find_java_home

LIBS_VARIABLE = "SPARK_2PC_KAFKA_TOOLS"
LIBS_DEFAULT = ".cache/kafka-tools-4.3.1/libs"
#: The class of each script of Kafka's distribution.
_CLASSES = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-dump-log.sh": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-features.sh": "org.apache.kafka.tools.FeatureCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}


def find_tools() -> Path:
    """The folder of the jars of the tools, Connect among them.

    Raises:
        CapabilityError: it is not there.
    """
    return find_jars(LIBS_VARIABLE, LIBS_DEFAULT, jar="kafka-tools-4", target="setup")


def find_jars(variable: str, default: str, *, jar: str, target: str) -> Path:
    """A folder of jars that the Makefile fetches.

    Args:
        variable: of the environment, that names it.
        default: where it is without the variable.
        jar: what the name of the jar begins with that must be there.
        target: of the Makefile, that fetches it.

    Raises:
        CapabilityError: it is not there.
    """
    folder = Path(os.environ.get(variable, default)).absolute()
    if not any(folder.glob(f"{jar}*.jar")):
        raise CapabilityError(f"no {jar}*.jar in {folder}: run `make {target}`, or set {variable}")
    return folder


def tool_command(script: str) -> list[str]:
    """What a script of Kafka's distribution runs.

    Raises:
        CapabilityError: there are no jars of the tools, or no Java 17.
    """
    return [str(find_java_home() / "bin" / "java"), "-Xmx128m", "-cp", f"{find_tools()}/*", _CLASSES[script]]


def make_scripts(folder: Path) -> None:
    """Make the scripts, for commands that name them."""
    for name in _CLASSES:
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(tool_command(name))} "$@"\n')
        script.chmod(0o755)

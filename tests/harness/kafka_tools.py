"""Kafka's own command-line tools, and what they set. Maven has no 4.4.0 of them; those of 4.3.1 fit."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

from kafka.admin import KafkaAdminClient

from spark_2pc_sink.testing import CapabilityError, ServerError, wait_until
from spark_2pc_sink.testing.processes import find_java_home

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
    """The folder of the jars of the tools, Connect among them."""
    return find_jars(LIBS_VARIABLE, LIBS_DEFAULT, jar="kafka-tools-4", target="setup")


def find_jars(variable: str, default: str, *, jar: str, target: str) -> Path:
    """A folder of jars that the Makefile fetches. ``jar``: what the name of the jar begins with that must be there."""
    folder = Path(os.environ.get(variable, default)).absolute()
    if not any(folder.glob(f"{jar}*.jar")):
        raise CapabilityError(f"no {jar}*.jar in {folder}: run `make {target}`, or set {variable}")
    return folder


def tool_command(script: str) -> list[str]:
    return [str(find_java_home() / "bin" / "java"), "-Xmx128m", "-cp", f"{find_tools()}/*", _CLASSES[script]]


def make_scripts(folder: Path) -> None:
    for name in _CLASSES:
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join(tool_command(name))} "$@"\n')
        script.chmod(0o755)


FEATURE = "transaction.version"
#: For a machine that is busy with something else.
DEADLINE_S = 60.0


def set_transaction_version(bootstrap: str, level: int) -> None:
    """Change the level, up or down, and wait until the broker tells it."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        kind = "UPGRADE" if level > _level(admin) else "SAFE_DOWNGRADE"
        answer = admin.update_features({FEATURE: (kind, level)})
        if answer != {FEATURE: "OK"}:
            raise ServerError(f"{FEATURE} was not set to {level}: {answer}")
        wait_until(lambda: _level(admin) == level, what=f"the broker to take level {level} over")
    finally:
        admin.close()


def features_tool(bootstrap: str, *arguments: str) -> str:
    command = [*tool_command("kafka-features.sh"), "--bootstrap-server", bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode != 0:
        raise ServerError(f"kafka-features.sh {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def _level(admin: KafkaAdminClient) -> int:
    level: int = admin.describe_features()[FEATURE].get("finalized", (0, 0))[1]
    return level

"""transaction.version of a running cluster, changed by a request or by Kafka's own ``kafka-features.sh``."""

from __future__ import annotations

import subprocess

from kafka.admin import KafkaAdminClient

from spark_2pc_sink.testing import ServerError, wait_until
from tests.harness.kafka_tools import tool_command

FEATURE = "transaction.version"
#: For a machine that is busy with something else.
DEADLINE_S = 60.0


def set_transaction_version(bootstrap: str, level: int) -> None:
    """Change the level, up or down, and wait until the broker tells it.

    Raises:
        ServerError: it was refused.
    """
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        kind = "UPGRADE" if level > _level(admin) else "SAFE_DOWNGRADE"
        answer = admin.update_features({FEATURE: (kind, level)})
        if answer != {FEATURE: "OK"}:
            raise ServerError(f"{FEATURE} was not set to {level}: {answer}")
        wait_until(lambda: _level(admin) == level, deadline_s=DEADLINE_S, what=f"the broker to take level {level} over")
    finally:
        admin.close()


def features_tool(bootstrap: str, *arguments: str) -> str:
    """What ``kafka-features.sh`` prints.

    Raises:
        CapabilityError: there is no such tool here.
        ServerError: it failed.
    """
    command = [*tool_command("kafka-features.sh"), "--bootstrap-server", bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode != 0:
        raise ServerError(f"kafka-features.sh {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def _level(admin: KafkaAdminClient) -> int:
    level: int = admin.describe_features()[FEATURE].get("finalized", (0, 0))[1]
    return level

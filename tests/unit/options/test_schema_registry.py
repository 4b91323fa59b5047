"""Properties of a schema registry: by the names of confluent-kafka, checked before anything is asked, never shown."""

from __future__ import annotations

import pickle
from typing import Any

from spark_2pc_sink.options import SinkOptions
from spark_2pc_sink.options.schema_registry import SchemaRegistryOptions
from tests.unit.options.test_sink_options import REQUIRED

REGISTRY = {"url": "http://user:secret@registry:8081", "basic.auth.user.info": "user:secret", "timeout": "5"}
SINK: dict[str, Any] = {**REQUIRED, "topic": "orders"}


def parsed(**properties: Any) -> SchemaRegistryOptions:
    named = {name.replace("_", "."): value for name, value in properties.items()}
    found = SchemaRegistryOptions.parse({"url": "http://registry:8081", **named})
    assert found is not None
    return found


def test_every_request_is_bounded() -> None:
    assert dict(parsed().client) == {
        "url": "http://registry:8081",
        "timeout": 10,
        "max.retries": 2,
        "retries.max.wait.ms": 2_000,
    }


def test_no_secret_is_shown() -> None:
    found = SchemaRegistryOptions.parse(REGISTRY)
    assert found is not None
    assert found.client["timeout"] == 5
    assert str(found) == "http://registry:8081"
    assert "secret" not in repr(found)
    options = SinkOptions.parse(**SINK, value_format="avro", schema_registry=REGISTRY)
    assert "secret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - made in this line

"""Properties of a schema registry: by the names of confluent-kafka, checked before anything is asked, never shown."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options import Records, SinkOptions
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


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("http://registry", "a mapping of properties"),
        ({"url": "registry:8081"}, "the address of the registry"),
        ({"url": "http://r", "basic.auth.user.inf": "x"}, "no such property"),
        ({"url": "http://r", "timeout": "soon"}, "it must be a number"),
        ({"url": "http://r", "use.latest.version": "perhaps"}, "True or False"),
    ],
)
def test_bad_properties_are_refused(given: Any, rule: str) -> None:
    with pytest.raises(ConfigurationError, match=rule) as refused:
        SchemaRegistryOptions.parse(given)
    assert (refused.value.value == "***") == ("auth" in str(given))


def test_formats_need_a_registry() -> None:
    with pytest.raises(ConfigurationError, match="records with a schema require it"):
        SinkOptions.parse(**SINK, value_format="avro")
    with pytest.raises(ConfigurationError, match="records with a schema require it"):
        SinkOptions.parse(**{**SINK, "topic": None, "table": None}, writes=[Records("orders", key_format="protobuf")])


@pytest.mark.parametrize(
    "given",
    [{"value_schema": "{}"}, {"value_schema_name": "shop.Order"}, {"value_subject_name_strategy": "record"}],
)
def test_what_says_something_of_a_schema_needs_a_format(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="no effect with value_format='json'"):
        Records("orders", **given)
    with pytest.raises(ConfigurationError, match="no effect with value_format='json'"):
        SinkOptions.parse(**SINK, **given)

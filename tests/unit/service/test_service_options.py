"""The options of a service: its signature, its bounds, and what it names."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from spark_2pc_sink import AsyncDualWrite, DualWrite
from spark_2pc_sink.errors import ConfigurationError
from tools.reference_pages.options import service_reference

NEEDED: dict[str, Any] = {
    "transactional_id": "shop",
    "kafka": {"bootstrap.servers": "unused:9092"},
    "database": "postgresql://unused/none",
}


@pytest.mark.parametrize("public", [DualWrite, AsyncDualWrite])
def test_the_signature_has_every_option_with_its_default(public: type[Any]) -> None:
    written = {
        name: None if item.default is item.empty else repr(item.default)
        for name, item in signature(public).parameters.items()
    }
    assert written == {row.names[0]: row.default for row in service_reference()}


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"ids": 0}, "ids"),
        ({"ids": 9, "ids_max": 8}, "ids"),
        ({"transactional_id": "a" * 254}, "transactional_id"),
        ({"state_table": "t" * 56}, "state_table"),
        ({"kafka_commit": "later"}, "kafka_commit"),
        ({"idz": 3}, "idz"),
        ({"database": "mysql://unused/none"}, "database"),
    ],
)
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], refused: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        DualWrite(**{**NEEDED, **given})
    assert caught.value.option == refused

"""``transaction.partition.verification.enable`` is altered while the server runs (KIP-226, KIP-890)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from kafka.protocol.admin import DescribeConfigsRequest, IncrementalAlterConfigsRequest

from spark_2pc_sink.codes import Code
from spark_2pc_sink.testing import ReferenceCoordinator, wait_until
from tests.conformance.cases import produce
from tests.conformance.operations import Init, ask
from tests.conformance.raw_client import RawClient
from tests.conformance.servers import KAFKA_PROPERTIES, READY_DEADLINE_S, find_coordinators, make_topics
from tests.conformance.subjects import WIRE_SUBJECTS
from tests.conftest import or_skip
from tests.harness.providers import BrokerRequest, Provider

NAME: Final = "transaction.partition.verification.enable"
SET, DELETE, APPEND = 0, 1, 2
_BROKER: Final = 4
#: Produce whose leader verifies, and does not add.
_VERIFYING: Final = 11


@pytest.fixture(params=WIRE_SUBJECTS)
def server(request: pytest.FixtureRequest, provider: Provider) -> Iterator[Any]:
    if request.param == "reference":
        started: Any = ReferenceCoordinator(keep_prepared=False).__enter__()
    else:
        started = or_skip(request.config, lambda: provider.start_broker(BrokerRequest(properties=KAFKA_PROPERTIES)))
    yield started
    started.close()


def alter(client: RawClient, broker: str, *operations: tuple[int, str | None]) -> tuple[int, str | None]:
    """IncrementalAlterConfigs; code and text."""
    make = IncrementalAlterConfigsRequest.AlterConfigsResource
    configs = [make.AlterableConfig(name=NAME, config_operation=how, value=value) for how, value in operations]
    resource = make(resource_type=_BROKER, resource_name=broker, configs=configs)
    (one,) = client.call(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1).responses
    return one.error_code, one.error_message


def shown(client: RawClient, broker: str) -> list[tuple[str, bool, list[tuple[str, int]]]]:
    """DescribeConfigs: value, whether it can only be read, and each place that has one."""
    make = DescribeConfigsRequest.DescribeConfigsResource
    resource = make(resource_type=_BROKER, resource_name=broker, configuration_keys=[NAME])
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=False)
    (one,) = client.call(request, 4).results
    return [(each.value, each.read_only, [(it.value, it.source) for it in each.synonyms]) for each in one.configs]


def test_verification_is_switched_off_and_on(server: Any) -> None:
    """For one broker and for all; it stays over a start. An old client is believed while it is off."""
    client = RawClient(server.bootstrap)
    make_topics(client, {"orders": 1})
    find_coordinators(client)

    def unverified() -> int:
        """The code for a partition that nobody has added."""
        tid = f"id-{len(tried)}"
        tried.append(tid)
        code, producer, epoch = ask(client, Init(tid=tid))
        assert code == 0
        answer = ask(
            client, produce((producer, epoch), sequence=0, version=_VERIFYING, tid=tid, partition=("orders", 0))
        )
        return int(answer["orders", 0][0])

    def becomes(code: int) -> None:
        wait_until(lambda: unverified() == code, deadline_s=READY_DEADLINE_S, what=f"code {code}")

    tried: list[str] = []
    assert unverified() == Code.TRANSACTION_ABORTABLE
    assert alter(client, "", (SET, "false")) == (0, None)
    becomes(0)
    assert alter(client, "1", (SET, "TRUE")) == (0, None)
    becomes(Code.TRANSACTION_ABORTABLE)
    assert shown(client, "1") == [("true", False, [("TRUE", 2), ("false", 3), ("true", 5)])]
    assert alter(client, "1", (DELETE, None)) == (0, None)
    becomes(0)
    server.restart()
    client = RawClient(server.bootstrap)
    find_coordinators(client)
    assert shown(client, "1") == [("false", False, [("false", 3), ("true", 5)])]
    assert shown(client, "") == [("false", False, [("false", 3)])]
    becomes(0)
    assert alter(client, "", (DELETE, None)) == (0, None)
    becomes(Code.TRANSACTION_ABORTABLE)
    wrong = f"Invalid value maybe for configuration {NAME}: Expected value to be either true or false"
    assert alter(client, "1", (SET, "maybe")) == (Code.INVALID_REQUEST, wrong)
    appended = f"Config value append is not allowed for config key: {NAME}"
    assert alter(client, "1", (APPEND, "false")) == (Code.INVALID_CONFIG, appended)
    client.close()

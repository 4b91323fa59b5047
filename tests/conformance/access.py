"""A server with users and rights, for the rows of `test_access_rows`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from kafka.protocol.admin import CreateAclsRequest, DescribeAclsRequest

from spark_2pc_sink.reference.config.properties import STANDARD_AUTHORIZER
from spark_2pc_sink.testing import KafkaBroker, ReferenceCoordinator, wait_until
from tests.conformance.answers import Names, brief
from tests.conformance.cases import Case
from tests.conformance.operations import ask
from tests.conformance.raw_client import RawClient
from tests.conformance.servers import KAFKA_PROPERTIES, find_coordinators, make_topics
from tests.conformance.subjects import check
from tests.harness.secure_kafka import add_listener
from tests.unit.reference.batches import message

PASSWORD: Final = "secret"
#: Name of the listener where users log in.
LISTENER: Final = "USERS"
_ALLOW, _LITERAL, _ANY = 3, 3, 1
_CREATE_VERSION, _DESCRIBE_VERSION = 3, 3


def user_of(index: int) -> str:
    """The user of a case: each has one of its own, because some rights hold for everything that a user does."""
    return f"user{index}"


@contextmanager
def secured(kind: str, users: int) -> Iterator[tuple[str, str]]:
    """A server with a listener for so many users, which lets those without authentication do all.

    Yields the addresses for administrators and for users.
    """
    known = " ".join(f'user_{user_of(index)}="{PASSWORD}"' for index in range(users))
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "PLAIN",
        f"listener.name.{LISTENER.lower()}.plain.sasl.jaas.config": f"{module} required {known};",
    }
    server: KafkaBroker | ReferenceCoordinator = (
        ReferenceCoordinator(keep_prepared=False, properties=properties)
        if kind == "reference"
        else KafkaBroker(two_phase_commit=True, properties={**properties, **KAFKA_PROPERTIES})
    )
    address = add_listener(server, LISTENER)
    with server:
        yield server.bootstrap, address


class AccessSubject:
    """A server whose users have the rights of their cases."""

    def __init__(self, administrators: str, users: str, cases: Sequence[Case]) -> None:
        self._users = users
        self._cases = {each.name: index for index, each in enumerate(cases)}
        self._administrator = RawClient(administrators)
        make_topics(self._administrator, {"mine": 1, "yours": 1})
        find_coordinators(self._administrator)
        self._grant(cases)

    def run(self, case: Case) -> None:
        index = self._cases[case.name]
        names = _names(index)
        with RawClient(self._users, user=(user_of(index), PASSWORD)) as client:
            for number, step in enumerate(case.steps):
                asked = self._administrator if step.admin else client
                answer = brief(step.operation, names.name(ask(asked, names.fill(step.operation))))
                check(step, case, number, answer)

    def close(self) -> None:
        self._administrator.close()

    def _grant(self, cases: Sequence[Case]) -> None:
        rights = []
        for index, each in enumerate(cases):
            names = _names(index)
            for right in each.rights:
                kind, name, operation = right.value
                topic = names.topics.get(name)
                made = {
                    "resource_type": kind,
                    "resource_name": topic[0] if topic else name.replace("@", names.mark),
                    "resource_pattern_type": _LITERAL,
                    "principal": f"User:{user_of(index)}",
                    "host": "*",
                    "operation": operation,
                    "permission_type": _ALLOW,
                }
                rights.append(made)
        answered = self._administrator.call(message(CreateAclsRequest, creations=rights), _CREATE_VERSION)
        assert {each.error_code for each in answered.results} == {0}, answered
        wait_until(lambda: self._count_rights() == len(rights), what="the rights to be known")

    def _count_rights(self) -> int:
        everything = DescribeAclsRequest(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
        found: Any = self._administrator.call(everything, _DESCRIBE_VERSION).resources
        return sum(len(each.acls) for each in found)


def _names(index: int) -> Names:
    topics = {"@mine": ("mine", 0), "@yours": ("yours", 0)}
    return Names(f"case{index}-", topics, {}, time.time_ns() // 1_000_000)

"""ACLs: the rules of Kafka's StandardAuthorizer."""

from __future__ import annotations

from typing import Any

import pytest

from spark_2pc_sink.reference.config.properties import STANDARD_AUTHORIZER, BrokerProperties
from spark_2pc_sink.reference.coordinator.events import AclOperation, Resource
from spark_2pc_sink.reference.handlers.acls import AclFilter
from spark_2pc_sink.reference.metadata.acls import Acl, access_by_acls

TOPIC, GROUP = 2, 3
LITERAL, PREFIXED = 3, 4
ALL, READ, WRITE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 2, 3, 4, 6, 7, 8, 10, 11
DENY, ALLOW = 2, 3


def acl(name: str = "t", operation: int = READ, permission: int = ALLOW, **others: Any) -> Acl:
    usual: dict[str, Any] = {"resource": TOPIC, "pattern": LITERAL, "principal": "User:alice", "host": "*"}
    return Acl(name=name, operation=operation, permission=permission, **(usual | others))


def access(*acls: Acl, principal: str = "User:alice", **properties: str) -> Any:
    given = {name.replace("_", "."): value for name, value in properties.items()}
    chosen = BrokerProperties.from_mapping({"authorizer.class.name": STANDARD_AUTHORIZER, **given})
    return access_by_acls(chosen, lambda: acls)(principal, "10.0.0.1")


def may(*acls: Acl, operation: AclOperation = AclOperation.READ) -> bool:
    return bool(access(*acls).allows(operation, Resource.TOPIC, "t"))


def test_without_an_authorizer_everything_is_allowed() -> None:
    alice = access_by_acls(BrokerProperties(), lambda: (acl(permission=DENY),))("User:alice", "h")
    assert alice.allows(AclOperation.READ, Resource.TOPIC, "t")
    assert alice.allows_any(AclOperation.READ, Resource.TOPIC)


@pytest.mark.parametrize(
    ("acls", "this", "some"),
    [
        ([], False, False),
        ([acl()], True, True),
        ([acl("other")], False, True),
        ([acl("*")], True, True),
        ([acl("t", pattern=PREFIXED)], True, True),
        ([acl(resource=GROUP)], False, False),
        ([acl(principal="User:bob")], False, False),
        ([acl(principal="User:*")], True, True),
        ([acl(operation=ALL)], True, True),
        ([acl(operation=WRITE)], False, False),
        ([acl(), acl(permission=DENY)], False, False),
        ([acl(), acl("*", permission=DENY)], False, False),
        ([acl(), acl(operation=WRITE, permission=DENY)], True, True),
        ([acl("*"), acl("t", permission=DENY)], False, True),
        ([acl("*"), acl("t", pattern=PREFIXED, permission=DENY)], False, True),
        ([acl("topic"), acl("t", pattern=PREFIXED, permission=DENY)], False, False),
    ],
)
def test_a_deny_decides_then_an_allow_and_without_one_the_answer_is_no(acls: list[Acl], this: bool, some: bool) -> None:
    """Authorizer.authorizeByResourceType: of some topic an ALLOW counts unless a DENY dominates it."""
    assert may(*acls) is this
    assert access(*acls).allows_any(AclOperation.READ, Resource.TOPIC) is some


@pytest.mark.parametrize(
    ("asked", "granting"),
    [
        (AclOperation.DESCRIBE, {READ, WRITE, DELETE, ALTER, DESCRIBE, ALL}),
        (AclOperation.DESCRIBE_CONFIGS, {DESCRIBE_CONFIGS, ALTER_CONFIGS, ALL}),
        (AclOperation.READ, {READ, ALL}),
        (AclOperation.TWO_PHASE_COMMIT, {15, ALL}),
    ],
)
def test_what_an_allow_implies(asked: AclOperation, granting: set[int]) -> None:
    """StandardAuthorizerData: READ, WRITE, DELETE, ALTER imply DESCRIBE; ALTER_CONFIGS implies DESCRIBE_CONFIGS."""
    assert {code for code in range(2, 16) if may(acl(operation=code), operation=asked)} == granting


def test_super_users_may_do_what_is_denied() -> None:
    super_users = "User:bob;User:alice"
    alice = access(acl(permission=DENY), super_users=super_users)
    assert alice.allows(AclOperation.READ, Resource.TOPIC, "t")
    assert alice.allows_any(AclOperation.READ, Resource.TOPIC)
    carol = access(acl(permission=DENY), principal="User:carol", super_users=super_users)
    assert not carol.allows(AclOperation.READ, Resource.TOPIC, "t")


def test_what_no_acl_names_may_be_open_to_all() -> None:
    found = access(acl("t", principal="User:bob"), allow_everyone_if_no_acl_found="true")
    assert found.allows(AclOperation.READ, Resource.TOPIC, "other")
    assert not found.allows(AclOperation.READ, Resource.TOPIC, "t")
    assert found.allows(AclOperation.READ, Resource.GROUP, "t")
    assert found.allows_any(AclOperation.READ, Resource.TOPIC)


ACLS = (
    acl("t"),
    acl("t", WRITE, DENY, principal="User:bob", host="h"),
    acl("*"),
    acl("pre", pattern=PREFIXED),
    acl("t", resource=GROUP),
)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {0, 1, 2, 3, 4}),
        ({"name": "t"}, {0, 1, 4}),
        ({"pattern": PREFIXED}, {3}),
        ({"name": "prefix", "pattern": 2}, {2, 3}),
        ({"name": "t", "pattern": 2, "resource": TOPIC}, {0, 1, 2}),
        ({"principal": "User:bob"}, {1}),
        ({"operation": WRITE}, {1}),
        ({"operation": 99}, set()),
    ],
)
def test_filters_find_what_kafka_s_find(fields: dict[str, Any], expected: set[int]) -> None:
    everything: dict[str, Any] = dict.fromkeys(("resource", "pattern", "operation", "permission"), 1)
    everything |= dict.fromkeys(("name", "principal", "host"))
    wanted = AclFilter(**{**everything, **fields})
    assert {number for number, each in enumerate(ACLS) if wanted.matches(each)} == expected

"""Subjects for the cases: each is started when a test first asks for it, and ended with the module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_2pc_sink.testing import CapabilityError, ReferenceCoordinator
from tests.conformance.machine import MachineSubject
from tests.conformance.servers import KAFKA_PROPERTIES
from tests.conformance.subjects import PRIVILEGED, PROPERTIES, Subject, WireSubject
from tests.conftest import _skip
from tests.harness.providers import Broker, BrokerRequest, Provider


class SubjectPool:
    """The subjects of a module, by kind and transaction.version, or by what its ``start_subject`` takes."""

    def __init__(self, request: pytest.FixtureRequest, provider: Provider) -> None:
        self._request = request
        self._provider = provider
        self._subjects: dict[tuple[str, Any], Subject | Exception] = {}

    def get(self, kind: str, level: Any) -> Subject:
        if (kind, level) not in self._subjects:
            try:
                start = getattr(self._request.module, "start_subject", self._start)
                self._subjects[kind, level] = start(kind, level)
            except Exception as error:  # noqa: BLE001 - whatever it is, it fails each of its tests
                self._subjects[kind, level] = error
        found = self._subjects[kind, level]
        if isinstance(found, CapabilityError):
            _skip(self._request.config, str(found))
        if isinstance(found, Exception):
            pytest.fail(f"{kind} at {level} did not start: {found!r}", pytrace=False)
        return found

    def close(self) -> None:
        for each in self._subjects.values():
            if not isinstance(each, Exception):
                each.close()

    def _start(self, kind: str, level: int) -> Subject:
        if kind == "machine":
            return MachineSubject(level)
        server: Broker
        if kind == "reference":
            properties = {**PROPERTIES, **PRIVILEGED}
            reference = ReferenceCoordinator(transaction_version=level, keep_prepared=False, properties=properties)
            server = reference.__enter__()
        else:
            properties = {**PROPERTIES, **KAFKA_PROPERTIES}
            server = self._provider.start_broker(BrokerRequest(level, two_phase_commit=True, properties=properties))
        try:
            return WireSubject(server, level, self._request.module.CASES)
        except BaseException:
            server.close()
            raise


@pytest.fixture(scope="module")
def subjects(request: pytest.FixtureRequest, provider: Provider) -> Iterator[SubjectPool]:
    pool = SubjectPool(request, provider)
    yield pool
    pool.close()


@pytest.fixture
def subject(request: pytest.FixtureRequest, subjects: SubjectPool) -> Subject:
    """Who is asked: named by its kind and its transaction.version."""
    return subjects.get(*request.param)

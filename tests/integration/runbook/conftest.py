"""Fixtures of the runbook's tests: incidents as their own tests make them."""

from tests.integration.incidents.conftest import make_incident, make_job, nursery

__all__ = ["make_incident", "make_job", "nursery"]

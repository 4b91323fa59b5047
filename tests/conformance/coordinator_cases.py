"""All rows of the coordinator, in the order of the specification."""

from __future__ import annotations

from tests.conformance import cases_end, cases_init, cases_partitions, cases_queries

COORDINATOR_CASES = [*cases_init.CASES, *cases_partitions.CASES, *cases_end.CASES, *cases_queries.CASES]

"""Declarative Pipelines: docs/connect.md says that they have no sink of a function yet."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest


def test_pipelines_have_no_sink_that_calls_a_function_for_each_batch() -> None:
    """When this fails, a pipeline can hold the sink: the page says otherwise, and an example is due."""
    source = Path(pyspark.__file__).parent / "pipelines" / "api.py"
    if not source.exists():
        pytest.skip("PySpark has pipelines since 4.1")
    assert "foreach" not in source.read_text(encoding="utf-8").lower()

"""Loaded by every Python process with this folder on its path: the workers of the job whose tasks are traced."""

from tests.harness.call_trace import trace_worker

trace_worker()

"""Failures of a server under test, as opposed to the code under test."""

from __future__ import annotations


class ServerError(RuntimeError):
    """A server did not start, or ended by itself. The text contains the end of its log."""


class CapabilityError(RuntimeError):
    """A server's prerequisite is missing on this machine: Java, the broker's jars, PostgreSQL's programs.

    The text names what is missing and how to get it.
    """


class DeadlineError(AssertionError):
    """A condition that was waited for did not become true in time.

    An AssertionError, so that the test counts as failed and not as broken.
    """


class JobError(Exception):
    """A job did not end as the test intended."""

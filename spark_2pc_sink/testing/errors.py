"""What goes wrong with a server under test, as opposed to the code under test."""

from __future__ import annotations


class ServerError(RuntimeError):
    """A server did not start, or ended by itself. The text has the end of its log."""


class CapabilityError(RuntimeError):
    """Something that a server needs is not on this machine: Java, the broker's jars, PostgreSQL's programs.

    The text says what is missing and how to get it.
    """


class DeadlineError(AssertionError):
    """A condition that was waited for did not come true in time.

    An AssertionError, so that a test that waits in vain counts as failed and not as broken.
    """


class JobError(Exception):
    """A job ended otherwise than a test meant it to."""

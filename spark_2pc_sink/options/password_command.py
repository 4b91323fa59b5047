"""The option ``password_command``: a program that prints the password of the database."""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import dataclass
from typing import Final

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.settings import HIDDEN

#: How many characters of a program's standard error are shown.
_TOLD_MAX: Final = 300


class PasswordCommandError(Exception):
    """The program gave no password; the next call may succeed."""


@dataclass(frozen=True)
class PasswordCommand:
    """A program that prints a password; called without a shell.

    Attributes:
        text: the program and its arguments, quoted as for a shell.
        timeout_s: limit of its run time, after which it is killed.
    """

    text: str
    timeout_s: int

    def __post_init__(self) -> None:
        """Refuse a command that can never be run.

        Raises:
            ConfigurationError: it is empty, or has an unclosed quotation mark.
        """
        self._words()

    def __call__(self) -> str:
        """The first line of the program's standard output.

        Raises:
            PasswordCommandError: it could not be run, took too long, failed, or printed nothing.
        """
        try:
            done = subprocess.run(
                self._words(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PasswordCommandError(f"password_command was killed after {self.timeout_s} s") from None
        except (OSError, UnicodeDecodeError) as error:
            raise PasswordCommandError(f"password_command cannot be called: {error}") from error
        told = done.stderr.strip()[-_TOLD_MAX:]
        if done.returncode != 0:
            raise PasswordCommandError(f"password_command ended with status {done.returncode}: {told}")
        first, _, _ = done.stdout.partition("\n")
        if not first.strip():
            raise PasswordCommandError(f"password_command printed no password: {told}")
        return first.rstrip("\r")

    def _words(self) -> list[str]:
        try:
            words = shlex.split(self.text)
        except ValueError as error:
            raise _refused(f"it cannot be split into words: {error}", "correct it") from None
        if not words:
            raise _refused("it names a program", "pass 'my-program --argument'")
        return words


def _refused(rule: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(option="password_command", value=HIDDEN, rule=rule, remedy=remedy)

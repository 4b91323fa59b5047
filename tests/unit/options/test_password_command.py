"""The command that prints a password: how it is called, and what each failure says."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

import pytest

from spark_2pc_sink.options import CommonOptions
from spark_2pc_sink.options.database import PasswordCommand, PasswordCommandError

LIMIT_S = 30


def command(code: str, *, timeout_s: int = LIMIT_S) -> PasswordCommand:
    return PasswordCommand(shlex.join([sys.executable, "-c", code]), timeout_s)


def refusal(password: PasswordCommand) -> str:
    with pytest.raises(PasswordCommandError) as caught:
        password()
    return str(caught.value)


@pytest.mark.parametrize(("printed", "password"), [("s3cret\r\n", "s3cret"), (" ä b \nmore\n", " ä b ")])
def test_the_first_line_is_the_password(printed: str, password: str) -> None:
    assert command(f"import sys; sys.stdout.buffer.write({printed.encode()!r})")() == password


def test_no_shell_reads_the_command() -> None:
    """So that what stands in it means itself."""
    text = shlex.join([sys.executable, "-c", "import sys; print(sys.argv[1])", "$HOME; echo `id`"])
    assert PasswordCommand(text, LIMIT_S)() == "$HOME; echo `id`"


def test_a_command_has_its_time() -> None:
    """It is killed: nobody waits for it any more."""
    began_s = time.monotonic()
    assert refusal(command("import time; time.sleep(60)", timeout_s=1)) == "password_command was killed after 1 s"
    assert time.monotonic() - began_s < LIMIT_S


def options_of(**given: Any) -> CommonOptions:
    kafka = {"bootstrap.servers": "h:1"}
    return CommonOptions.parse(**{"transactional_id": "o", "kafka": kafka, "database": "postgresql://u@h/d", **given})


def test_who_is_asked_for_the_password() -> None:
    def function() -> str:
        return "s3cret"

    assert options_of().password_source is None
    assert options_of(database_password=function).password_source is function
    assert options_of(password_command="cat f", connect_timeout_s=7).password_source == PasswordCommand("cat f", 7)
    assert options_of(database_password=function).store_settings()["password"] is function
    assert "function" not in repr(options_of(database_password=function))

"""The exit code for the error of a query, as Spark tells it."""

from __future__ import annotations

import pytest

from spark_2pc_sink import errors
from spark_2pc_sink.sink.job_end import exit_code_of

_SPARK = '[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n  File "x"\n'


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["HaltError"], 3),
        (["ClaimRefusedError"], 3),
        (["StateStoreError", "HaltError"], 3),
        (["ConfigurationError"], 2),
        (["DuplicateKeyError"], 2),
        (["TooManyBadRowsError"], 2),
        (["SupersededError"], 1),
        (["DatabaseUnreachableError"], 1),
        (["InDoubtError"], 1),
        (["NoSuchError"], 1),
        ([], 1),
    ],
)
def test_the_last_error_of_the_package_tells(names: list[str], code: int) -> None:
    """Those before it are what it was raised from."""
    lines = [f"spark_2pc_sink.errors.{name}: table orders refused a row\n\n" for name in names]
    assert exit_code_of(_SPARK + "During handling of the above:\n".join(lines) + "\tat java.lang.Thread.run") == code


def test_each_error_has_a_code() -> None:
    kinds = [name for name in errors.__all__ if isinstance(getattr(errors, name), type)]
    codes = {name: exit_code_of(f"spark_2pc_sink.errors.{name}: x") for name in kinds if name.endswith("Error")}
    assert set(codes.values()) == {1, 2, 3}

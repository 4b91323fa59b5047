"""A probe of an executor's Python: can it run the sink's tasks, and reach the driver?

Spark pickles a nested function with everything that it contains. So this one also runs if the package is missing, as
long as it imports nothing from it before the call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def probe(address: bytes, libraries: tuple[str, ...]) -> Callable[[int], str]:
    """The function that a task calls; it returns JSON.

    Args:
        address: `StreamAddress`, pickled separately: an executor without the package could not read it.
        libraries: distribution names of the libraries whose releases are requested.
    """

    def run(_: int) -> str:
        import importlib  # noqa: PLC0415 - this function is all that the executor has
        import importlib.metadata  # noqa: PLC0415
        import json  # noqa: PLC0415
        import pickle  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415

        versions = {}
        for name in libraries:
            # A library may be a zip without metadata. Spark's own may be, but PySpark has its release as an attribute.
            loaded = sys.modules.get(name)
            try:
                versions[name] = str(getattr(loaded, "__version__", "")) or importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                versions[name] = ""
        answer: dict[str, object] = {"host": socket.gethostname(), "python": sys.executable, "version": ""}
        answer["versions"] = versions
        try:
            answer["version"] = importlib.import_module("spark_2pc_sink").__version__
            stream = importlib.import_module("spark_2pc_sink.sink.stream.task_stream")
            importlib.import_module("spark_2pc_sink.sink.job.encode_task")
        except ImportError as error:
            return json.dumps(answer | {"missing": str(error), "unreached": ""})
        unreached = stream.unreachable(pickle.loads(address)) or ""  # noqa: S301 - by our own driver
        return json.dumps(answer | {"missing": "", "unreached": unreached})

    return run

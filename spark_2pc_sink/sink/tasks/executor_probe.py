"""A probe of an executor's Python: can it run the sink's tasks, and reach both sides?

Spark pickles a function of a function with all that it contains. So this one also runs where the package is missing, as
long as it imports nothing before it is called.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spark_2pc_sink.errors import DualWriteError
from spark_2pc_sink.extras import MissingExtraError
from spark_2pc_sink.producer.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from spark_2pc_sink.options import KafkaOptions
    from spark_2pc_sink.sink.transfer.staging_tables import StagingSession

#: An executor that has not reached Kafka after this says so.
REACH_MS_MAX: Final = 15_000


@dataclass(frozen=True)
class Sides:
    """What an executor has to reach. Can be pickled.

    Attributes:
        kafka: how to reach the brokers.
        topics: those that are known before a batch.
        session: how a task that stages rows connects to the database; None where there is no table.
    """

    kafka: KafkaOptions
    topics: tuple[str, ...]
    session: StagingSession | None


def reach(sides: Sides) -> dict[str, str]:
    """Ask both sides something; for each that does not answer, by its name, why."""
    unreached = {}
    try:
        # It looks for the files and the packages that a login needs.
        with Cluster(replace(sides.kafka, max_block_ms=min(sides.kafka.max_block_ms, REACH_MS_MAX))) as cluster:
            cluster.partition_counts(sides.topics)
    except (DualWriteError, MissingExtraError) as error:
        unreached["kafka"] = str(error)
    if sides.session is not None:
        try:
            sides.session.connect().close()
        except DualWriteError as error:
            unreached["database"] = str(error)
    return unreached


def probe(sides: bytes, libraries: tuple[str, ...]) -> Callable[[int], str]:
    """The function that a task calls; it answers JSON.

    Args:
        sides: `Sides`, pickled by itself: an executor without the package could not read it.
        libraries: whose releases are asked for, by the names under which they are installed.
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
            # A library may have come as a zip, without its metadata. Spark's own does, and says its release itself.
            loaded = sys.modules.get(name)
            try:
                versions[name] = str(getattr(loaded, "__version__", "")) or importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                versions[name] = ""
        answer: dict[str, object] = {"host": socket.gethostname(), "python": sys.executable, "version": ""}
        answer["versions"] = versions
        try:
            answer["version"] = importlib.import_module("spark_2pc_sink").__version__
            ours = importlib.import_module("spark_2pc_sink.sink.tasks.executor_probe")
            importlib.import_module("spark_2pc_sink.sink.tasks.encode_and_send_task")
        except ImportError as error:
            return json.dumps(answer | {"missing": str(error), "unreached": {}})
        unreached = ours.reach(pickle.loads(sides))  # noqa: S301 - by our own driver
        return json.dumps(answer | {"missing": "", "unreached": unreached})

    return run

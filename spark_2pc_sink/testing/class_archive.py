"""``python -m spark_2pc_sink.testing.class_archive``: make the archive that halves a broker's start.

The Java virtual machine can write the classes that a process has loaded to a file, and map that file at the next
start (application class data sharing, JEP 350). Measured: a broker's start falls from 2.4 to 1.4 s. The archive
belongs to one Java and one set of jars; a virtual machine that it does not fit ignores it.
"""

from __future__ import annotations

import os
from pathlib import Path

from spark_2pc_sink.testing.java import find_java_home
from spark_2pc_sink.testing.kafka_broker import QUICK_START_JVM, KafkaBroker, class_archive, find_libs


def make_class_archive() -> Path:
    """Run a broker once and keep what it loads; return the archive's path. Nothing happens if it is there.

    Raises:
        CapabilityError: there is no Java 17, or no jars.
        ServerError: the broker did not start.
    """
    archive = class_archive(find_libs(), find_java_home())
    if not archive.exists():
        # Written under a name of our own, then renamed: a broker that starts meanwhile sees all of it or none.
        unfinished = archive.with_suffix(f".{os.getpid()}")
        with KafkaBroker(jvm_options=(*QUICK_START_JVM, f"-XX:ArchiveClassesAtExit={unfinished}")) as broker:
            broker.create_topic("classes")
        if unfinished.exists():
            unfinished.rename(archive)
    return archive


if __name__ == "__main__":
    print(make_class_archive())

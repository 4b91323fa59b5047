"""The client of the benchmark of verify: a process that loads nothing else, for its memory is a figure."""

from __future__ import annotations

import resource
import time
from typing import Any

from spark_2pc_sink import verify


def verify_once(name: str, bootstrap: str, database: str) -> dict[str, Any]:
    """Verify a table against the topic of its name; seconds, and the peak of this process's resident memory."""
    begun = time.perf_counter()
    report = verify(
        transactional_id=name, kafka={"bootstrap.servers": bootstrap}, database=database, table=name, mode="append"
    )
    seconds = time.perf_counter() - begun
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(report, flush=True)
    return {
        "verdict": report.verdict,
        "rows": report.rows,
        "records": report.records,
        "seconds": round(seconds, 1),
        "client_cpu_s": round(used.ru_utime + used.ru_stime, 1),
        # Linux counts it in KiB.
        "client_peak_mib": round(used.ru_maxrss / 1024),
    }

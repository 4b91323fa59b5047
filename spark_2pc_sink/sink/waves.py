"""How many tasks read a batch: more than can run at once, so that their rows are written while others run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: So many tasks for each that can run at once, if the input has as many parts. More would shorten the rest that is
#: written when the last ones have ended; each costs some 10 ms.
WAVES: Final = 4

_SETTING: Final = "spark.sql.files.minPartitionNum"


def cut_files(spark: SparkSession) -> None:
    """Have files read in as many parts as there are tasks; Spark would make one for each that can run at once.

    The stream has a session of its own, so no other query sees it. What the user has set stays.

    Args:
        spark: the session of the stream.
    """
    if spark.conf.get(_SETTING, None) is None:
        spark.conf.set(_SETTING, str(spark.sparkContext.defaultParallelism * WAVES))

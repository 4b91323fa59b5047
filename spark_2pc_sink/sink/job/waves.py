"""How many tasks a job of one stage has: more than can run at once, so that their rows are written while others run.

A job of two stages needs none of it: the rows of the first are written while the second runs. Measured for a million
rows on two cores: 11 % less time with waves in one stage, 11 % more in two, where each source makes smaller pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Tasks for each core, if the input has as many parts and the topic as many partitions. More would shorten the rest
#: that is written when the last ones have ended.
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

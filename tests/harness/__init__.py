"""What tests share beside ``spark_2pc_sink.testing``: who provides the servers, and drivers as processes."""

from pathlib import Path
from typing import Final

#: The checkout: programs are started there, and workers of Spark import test modules from there.
ROOT: Final = Path(__file__).resolve().parents[2]

"""``python -m spark_2pc_sink.cli``: the same as ``spark-2pc``."""

import sys

from spark_2pc_sink.cli import main

if __name__ == "__main__":
    sys.exit(main())

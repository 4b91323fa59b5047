"""``python -m tests.simulation``: run schedules and mutants, or one schedule again with its trace."""

from __future__ import annotations

import sys

from tests.simulation.command import main

sys.exit(main())

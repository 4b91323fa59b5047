"""``python -m tests.soak``: run the loads, print what they used, and say whether anything grew."""

from __future__ import annotations

import sys

from tests.soak.command import main

sys.exit(main())

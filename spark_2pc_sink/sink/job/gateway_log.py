"""The log of Py4J, kept quiet about the functions of tasks.

At DEBUG it shows each call of Spark's Java side with all its arguments. The functions that tasks run are among them,
pickled and in Base64: whoever decodes them has the credentials that tasks log in with. So bytes are shown by their
number, whoever made the call.
"""

from __future__ import annotations

import logging
import re
from typing import Final

#: The modules that show calls and answers.
_LOGGERS: Final = ("py4j.clientserver", "py4j.java_gateway")
#: An argument of bytes, ``j`` and Base64 (``py4j.protocol.BYTES_TYPE``). A pickle with a secret in it is longer.
_BYTES: Final = re.compile(r"j[A-Za-z0-9+/]{32,}=*")


class _Withhold(logging.Filter):
    """Puts sizes in place of bytes."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, without bytes."""
        text = record.getMessage()
        shown = _BYTES.sub(lambda found: f"j({len(found[0]) - 1} characters of Base64)", text)
        if shown != text:
            record.msg, record.args = shown, None
        return True


_FILTER: Final = _Withhold()


def install() -> None:
    """Attach the filter; calling it again changes nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)

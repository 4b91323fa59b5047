"""The log of Spark's clients, kept quiet about the functions of tasks and of streams, and about errors of the sink.

At DEBUG Py4J shows each call of Spark's Java side with all its arguments, and the client of Spark Connect each request.
Functions are among them, pickled: whoever decodes them has the credentials that tasks log in with. So bytes are shown
by their number, whoever made the call. An error of the sink, which has logged it, is not logged again with a traceback.
"""

from __future__ import annotations

import logging
import re
import sys
from contextlib import suppress
from typing import Final

from spark_2pc_sink.errors import DualWriteError

#: The modules of Py4J that show calls and answers, and the one with the log of Spark Connect.
_PY4J: Final = ("py4j.clientserver", "py4j.java_gateway")
_CONNECT: Final = "pyspark.sql.connect.logging"
#: An argument of bytes, ``j`` and Base64 (``py4j.protocol.BYTES_TYPE``). A pickle with a secret in it is longer.
_BASE64: Final = re.compile(r"j[A-Za-z0-9+/]{32,}=*")
#: A function, or a whole request where it is compressed, as protobuf's text format has a field of bytes.
_FIELD: Final = re.compile(r'\b(command|data): "((?:[^"\\]|\\.){32,})"')


class _Withhold(logging.Filter):
    """Puts sizes in place of bytes, and leaves out what the sink has logged."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let the record pass, without bytes."""
        if record.exc_info and isinstance(record.exc_info[1], DualWriteError):
            return False
        # One that cannot be put together is for the handlers, which say so.
        with suppress(TypeError, ValueError):
            text = record.getMessage()
            shown = _BASE64.sub(lambda found: f"j({len(found[0]) - 1} characters of Base64)", text)
            shown = _FIELD.sub(lambda found: f"{found[1]}: ({len(found[2])} characters of bytes)", shown)
            if shown != text:
                record.msg, record.args = shown, None
        return True


_FILTER: Final = _Withhold()


def install() -> None:
    """Attach the filter; calling it again changes nothing."""
    # Spark makes its own kind of logger when it is imported: this must not make an ordinary one before.
    for name in (*_PY4J, *({_CONNECT} & sys.modules.keys())):
        logging.getLogger(name).addFilter(_FILTER)

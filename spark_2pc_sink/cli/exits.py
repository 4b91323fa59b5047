"""The exit codes of ``spark-2pc``; what they mean is in the docstring of the package."""

from typing import Final

EXIT_SETTLED: Final = 0
EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_IN_DOUBT: Final = 3
EXIT_NOT_KNOWN: Final = 4
#: For `verify`: no difference was found, but too much could not be compared.
EXIT_INCONCLUSIVE: Final = 5
#: What a shell reports for a program that Ctrl-C ended: 128 plus the number of SIGINT.
EXIT_INTERRUPTED: Final = 130

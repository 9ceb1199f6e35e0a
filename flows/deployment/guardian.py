"""Ends services when the process that started them ends, even where that was killed.

    python -m flows.deployment.guardian    # flows/deployment/services.py starts it

The starter writes the process group of each service, one a line, to this process's standard input, which closes when the
starter ends. Then every group gets SIGINT, the last one first, and SIGKILL if it is still there after 15 seconds.
"""

from __future__ import annotations

import signal
import sys

from steps.kit.process import end_all

STEPS = ((signal.SIGINT, 15.0), (signal.SIGKILL, 5.0))  # seconds to wait after each

if __name__ == "__main__":
    end_all([int(line) for line in sys.stdin][::-1], STEPS, is_group=True)

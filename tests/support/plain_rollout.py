"""A rollout function without `async`, for tests of the clients."""

from __future__ import annotations

import threading
import time
from typing import Any

MEETING = threading.Barrier(2)


def rollout(episode: Any) -> Any:
    if episode.data["do"] == "slow":
        time.sleep(60)
    MEETING.wait(20)  # two at a time
    return 0.5

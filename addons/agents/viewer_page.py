"""The page about agents that are being played now: clients, queue, episodes under way, failures with their reasons.

The gateway of a rollout says where it is in .flywheel/gateway/address.json, which only this user can read; it is asked for
its status each time the page is shown. The page reloads itself while a batch is played.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from environments.kit.http_client import asked

ADDRESS = Path(".flywheel/gateway/address.json")
SECONDS = 2.0  # that a gateway has to answer


def are_played(root: Path) -> bool:
    """Whether a gateway of this project says where it is: only then is there something to see."""
    return (root / ADDRESS).exists()


def status(root: Path) -> tuple[dict[str, Any] | None, str]:
    """(the gateway's status, why there is none)."""
    nothing = (
        "No agent of your own is being played now. While a task whose file has a function `rollout` is trained, this page "
        "shows the clients that play its agent, the episodes under way, and why episodes failed (docs/agents.md)."
    )
    try:
        place = json.loads((root / ADDRESS).read_text())
        headers = {"Authorization": f"Bearer {place['key']}"}
        shown = asked("GET", f"{place['url']}/status", seconds=SECONDS, headers=headers).json()
    except TimeoutError:
        return None, "The gateway is busy and did not answer; try again."
    except (OSError, ValueError, LookupError, TypeError):
        return None, nothing
    return (shown, "") if isinstance(shown, dict) and shown.get("batch") else (None, nothing)

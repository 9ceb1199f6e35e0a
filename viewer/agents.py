"""The page about agents that are being played now: clients, queue, episodes under way, failures with their reasons.

The gateway of a rollout says where it is in .flywheel/gateway/address.json, which only this user can read; it is asked for
its status each time the page is shown. The page reloads itself while a batch is played.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

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
        request = urllib.request.Request(f"{place['url']}/status", headers={"Authorization": f"Bearer {place['key']}"})
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the key is for this machine alone
        with direct.open(request, timeout=SECONDS) as answer:
            shown = json.loads(answer.read())
    except FileNotFoundError:
        return None, nothing
    except TimeoutError:
        return None, "The gateway is busy and did not answer; try again."
    except (OSError, ValueError, KeyError, urllib.error.URLError):
        return None, nothing
    return (shown, "") if shown.get("batch") else (None, nothing)

"""The plan of a batch for a gateway in tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from addons.agents.gateway.plan import Plan
from addons.agents.section import Agents
from steps.core.params import Policy


def plan(journal: Path, episodes: list[dict[str, Any]], agents: Agents, **fields: Any) -> Plan:
    """A free batch of the task toy with the embedded policy; `fields` are other values of the plan."""
    usual: dict[str, Any] = {
        "task": "toy",
        "policy": Policy().model_dump(mode="json"),
        "adapter": "adapter",
        "order": "free",
        "grammar": "exact",
        "seed": 1,
        "temperature": 1.0,
        "max_tokens": 64,
        "max_turns": None,
    }
    return Plan(journal=str(journal), agents=agents.model_dump(), episodes=episodes, **usual | fields)

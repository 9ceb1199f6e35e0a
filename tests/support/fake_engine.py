"""An engine's actor without vLLM: it "samples" what follows from a shard alone, and fails where a file says so."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from addons.fleet.engine_actor import EngineActor, answering
from steps.core.errors import UserError
from steps.core.records import Trajectory, Turn

ORDERS = Path(os.environ.get("FAKE_ENGINE_ORDERS", "/nonexistent"))  # files named die, refuse and unlike


def stands(order: str) -> bool:
    """Whether there is such an order for all who ask: an actor that is about to be ended may be one of them."""
    return (ORDERS / order).exists()


def taken(order: str) -> bool:
    """Whether there is such an order; the first who asks gets it."""
    try:
        (ORDERS / order).unlink()
    except FileNotFoundError:
        return False
    return True


class FakeEngineActor(EngineActor):
    @answering
    def start(self, request: str, parcels: dict[str, Any]) -> dict[str, Any]:
        if stands("unlike"):
            return {"error": "torch: 2.13.0 here, 2.12.0 there", "code": 2, "differs": True}
        if stands("refuse"):
            raise UserError("policy.base_model: cannot load it")
        return {"facts": json.loads(request)["facts"]}

    @answering
    def play(self, request: str, parcels: dict[str, Any]) -> dict[str, Any]:
        asked = json.loads(request)
        adapter = self.get(parcels["adapter"])
        weights = (adapter / "adapter_model.safetensors").read_bytes()
        time.sleep(0.2)
        if taken("die"):
            os._exit(9)
        trajectories = []
        for place, (scenario, attempt) in enumerate(asked["attempts"]):
            turn = Turn(
                prompt_ids=(1, place),
                completion_ids=(len(asked["attempts"]), asked["limits"]["max_tokens"]),
                logprobs=(-0.1 / (place + 3), -1e-9),
                message={"role": "assistant", "content": "\ud83d half of a pair"},
                observations=(),
                finish_reason="stop",
            )
            name = f"{asked['prefix']}-{scenario['id']}-{attempt}"
            trajectories.append(
                Trajectory(
                    id=name,
                    scenario_id=scenario["id"],
                    attempt=attempt,
                    adapter_hash=weights.hex(),
                    turns=(turn,),
                    stop_reason="done",
                )
            )
        turns = {trajectory.fingerprint(): [(0.0, 0.1, 0.2)] for trajectory in trajectories}
        answer = {"trajectories": [trajectory.model_dump(mode="json") for trajectory in trajectories]}
        return answer | {"numbers": {}, "turns": turns, "began": 100.0}

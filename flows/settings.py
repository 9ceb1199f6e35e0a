"""What a person fills in to start a flow from Prefect's pages: the form, with its ranges, choices and help."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from flows.workspace import NAME

ROOT = Path(__file__).parent.parent


def tasks() -> list[str]:
    """Those that come with the project; a dotted name is any module of one's own."""
    found = (path.stem for path in (ROOT / "environments").glob("*.py"))
    return sorted(name for name in found if not name.startswith("_") and name != "base")


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class TrainSettings(Form):
    """A run of its own: what is empty here is as the task's preset, or params.yaml, has it."""

    task: str = Field("email_search", description="what the agent learns", examples=tasks())
    name: str | None = Field(
        None,
        pattern=f"^{NAME}$",
        description="of the run; one that was cancelled goes on under the same name. Empty: the flow run's",
    )
    iterations: int | None = Field(None, ge=1, le=999, description="at most; training stops early without progress")
    patience: int | None = Field(None, ge=1, le=999, description="iterations without a better validation success")
    seed: int | None = Field(None, ge=0, description="of scenarios, first adapter and samples")
    scenarios: int | None = Field(None, ge=1, le=4096, description="an iteration plays (rollout.scenarios)")
    attempts: int | None = Field(None, ge=2, le=256, description="at each scenario, compared with each other")
    learning_rate: float | None = Field(None, gt=0, le=0.1, description="of the update (5e-4 by default)")
    more: dict[str, Any] = Field({}, description='any other key of params.yaml, as {"update.beta": 0.02}')

    def assignments(self) -> list[str]:
        """As `--set` takes them."""
        import json

        keys = {
            "train.iterations": self.iterations,
            "train.patience": self.patience,
            "seed": self.seed,
            "rollout.scenarios": self.scenarios,
            "rollout.attempts": self.attempts,
            "update.learning_rate": self.learning_rate,
        }
        return [f"{key}={json.dumps(value)}" for key, value in (keys | self.more).items() if value is not None]

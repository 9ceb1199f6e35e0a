"""What a turn of the flywheel is asked for: by Prefect's form, or by the command's options."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from environments import tasks
from flows.deployment.settings import Form
from flows.deployment.workspace import NAME


class FlywheelSettings(Form):
    """One turn of the flywheel: ingest, train from the champion where there is enough that is new, and promote past the
    gate. Fields left empty have the values of the task's preset, or of params.yaml."""

    task: str = Field(
        "email_search",
        description="what the agent learns: a task in environments/",
        json_schema_extra={"enum": [*tasks()]},
    )
    own_task: str | None = Field(
        None, min_length=1, description="instead of `task`: the dotted name of your own module, such as my_team.my_task"
    )
    name: str | None = Field(None, pattern=f"^{NAME}$", description="of the run. Empty: the flow run's")
    sources: list[str] = Field(
        ["capture"],
        description="of conversations, as .venv/bin/python -m addons.production.ingest takes them; empty: what was ingested",
    )
    consented: bool = Field(False, description="everybody in these sources agreed, where rows do not say so")
    min_new: int = Field(
        30, ge=1, description="scenarios that no run has trained on yet; with fewer nothing is trained"
    )
    share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="of the training and validation scenarios from production (scenarios.ingested.share)",
    )
    demonstrations: bool = Field(
        False, description="train on the conversations that people called good first (the stage sft)"
    )
    decides: Literal["test", "regression"] = Field(
        "regression",
        description="the scenarios on which the gate wants a gain: the test split, or what went wrong in production",
    )
    iterations: int | None = Field(None, ge=1, le=999, description="at most; training stops early without progress")
    more: dict[str, Any] = Field({}, description='any other key of params.yaml, as {"update.beta": 0.02}')

    @property
    def chosen(self) -> str:
        """The task to train on."""
        return self.own_task or self.task

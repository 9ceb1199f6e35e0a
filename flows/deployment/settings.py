"""The forms that a person fills in to start a flow from Prefect's pages: fields, ranges, choices and help."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from environments import tasks
from steps.core.masking import masked
from steps.project.kept_runs import NAME


def plainly(schema: dict[str, Any]) -> None:
    """Have the page show an optional field as one that may stay empty, not as a choice between a type and null."""
    for field in schema.get("properties", {}).values():
        kinds = [kind for kind in field.get("anyOf", []) if kind.get("type") != "null"]
        if len(kinds) == 1:
            del field["anyOf"]
            field |= kinds[0]
        if field.get("default", 0) is None:
            del field["default"]


class Form(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, json_schema_extra=plainly)

    @model_serializer(mode="wrap", when_used="json")
    def public(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """The parameters that Prefect keeps of a flow started by a command: masked, because `more` may hold anything."""
        fields: dict[str, Any] = masked(handler(self))
        return fields


class TrainSettings(Form):
    """Train in a run of its own. Fields left empty have the values of the task's preset, or of params.yaml."""

    task: str = Field(
        "email_search",
        description="what the agent learns: a task in environments/",
        json_schema_extra={"enum": [*tasks()]},
    )
    own_task: str | None = Field(
        None,
        min_length=1,
        description="instead of `task`: the dotted name of your own module, such as my_team.my_task, or names of several "
        "tasks with + between them",
    )
    name: str | None = Field(
        None,
        pattern=f"^{NAME}$",
        description="of the run; a cancelled run goes on when it is started again under its name. Empty: the flow run's",
    )
    iterations: int | None = Field(None, ge=1, le=999, description="at most; training stops early without progress")
    patience: int | None = Field(
        None, ge=1, le=999, description="iterations without progress on validation, then training stops"
    )
    seed: int | None = Field(None, ge=0, description="of the scenarios, the first adapter and the samples")
    scenarios: int | None = Field(None, ge=1, le=4096, description="per iteration (rollout.scenarios)")
    attempts: int | None = Field(None, ge=2, le=256, description="at each scenario, compared with each other")
    learning_rate: float | None = Field(None, gt=0, le=0.1, description="of the update (default: 5e-4)")
    more: dict[str, Any] = Field({}, description='any other key of params.yaml, as {"update.beta": 0.02}')

    @property
    def chosen(self) -> str:
        """The task to train on."""
        return self.own_task or self.task

    def assignments(self) -> list[str]:
        """The fields that are set, as `--set` takes them."""
        keys = {
            "train.iterations": self.iterations,
            "train.patience": self.patience,
            "seed": self.seed,
            "rollout.scenarios": self.scenarios,
            "rollout.attempts": self.attempts,
            "update.learning_rate": self.learning_rate,
        }
        return assigned(keys | self.more)


class VersionSettings(Form):
    """A version of the registry, and the run that it came from."""

    model: str | None = Field(
        None, min_length=1, description="the registered model, which has the task's name. Not needed where `run` is set"
    )
    version: str = Field("challenger", min_length=1, description="a number or an alias of the registered model")
    run: str | None = Field(
        None,
        min_length=1,
        description="whose scenarios and code are used: a run's name, an MLflow run id or a git revision. Empty: the run "
        "that made the version",
    )


class EvaluateSettings(VersionSettings):
    """Judge a version beside champion, base policy and scripted player. Changes nothing in the registry."""


class PromoteSettings(VersionSettings):
    """Judge a version, and make it champion past the gate."""

    dry_run: bool = Field(False, description="judge and write the verdict, and leave the registry as it is")


class RescoreSettings(Form):
    """Judge stored iterations again, with other judges; nothing is sampled again."""

    run: str = Field("HEAD", min_length=1, description="a run's name, an MLflow run id or a git revision")
    iterations: str | None = Field(None, description="3, or 2-4. Empty: all that are stored")
    rule: float | None = Field(
        None, ge=0, description="the weight of the task's own rule. Empty, here and below: as before"
    )
    criteria: float | None = Field(None, ge=0, description="the weight of the weighted criteria")
    ruler: float | None = Field(None, ge=0, description="the weight of RULER, a model that compares the attempts")
    judge_model: str | None = Field(None, min_length=1, description="RULER's model (score.ruler.endpoint.model)")
    judge_url: str | None = Field(None, pattern="^https?://", description="RULER's OpenAI-compatible server, up to /v1")
    update: bool = Field(False, description="also train each iteration with the new rewards")
    params: str = Field("params.yaml", description="the file whose score section judges")
    rubric: str | None = Field(None, description="RULER's rubric, a file. Empty: tasks_data/<task>/rubric.md")
    label: str | None = Field(None, description="the name of the folder that is written. Empty: named after the judges")
    more: dict[str, Any] = Field({}, description='any other key of params.yaml, as {"score.ruler.orders": 2}')

    def assignments(self) -> list[str]:
        """The fields that are set, as `--set` takes them."""
        keys = {f"score.judges.{name}": getattr(self, name) for name in ("rule", "criteria", "ruler")}
        keys |= {"score.ruler.endpoint.model": self.judge_model, "score.ruler.endpoint.base_url": self.judge_url}
        return assigned(keys | self.more)


class RollbackSettings(Form):
    """Put the alias champion back to an earlier version."""

    model: str = Field(min_length=1, description="the registered model, which has the task's name")
    to: str = Field("previous", min_length=1, description="the number or an alias of a version")
    why: str = Field(min_length=3, description="the reason, which is kept with both versions")
    dry_run: bool = Field(False, description="print what would be done, and do nothing")


def assigned(keys: dict[str, Any]) -> list[str]:
    """`key=value` pairs, as `--set` takes them, of all keys that are not None."""
    return [f"{key}={json.dumps(value)}" for key, value in keys.items() if value is not None]

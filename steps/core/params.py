"""params.yaml: its shape, which is checked when it is read, and the part of it that each stage gets.

There is a top-level key for each stage, and a few that stages share. A stage declares what it reads as a class whose fields
are top-level keys (`RolloutParams`): it gets nothing else, and a test holds `params:` in dvc.yaml to the same keys. Defaults
are the recipe for the embedded policy. Unknown keys and values out of range end the command with one sentence.

Each field's meaning, default and range stand in steps/core/params_policy.py, params_sections.py, params_update.py and
params_loss.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from environments import did_you_mean
from environments.kit.shares import PLUS, shares
from steps.core.errors import UserError
from steps.core.params_policy import Endpoint, Lora, Policy, Section
from steps.core.params_sections import (
    Agents,
    Criteria,
    Curriculum,
    Evaluate,
    Ingested,
    Judges,
    Opponent,
    Promote,
    Register,
    Rollout,
    Ruler,
    Scenarios,
    Score,
    Serve,
    Sft,
    Train,
)
from steps.core.params_update import Update
from steps.core.yaml_text import read_mapping

__all__ = [  # sections that others import from here
    "Agents", "Criteria", "Curriculum", "Endpoint", "Evaluate", "Ingested", "Judges", "Lora", "Opponent", "Policy",
    "Promote", "Register", "Rollout", "Ruler", "Scenarios", "Score", "Section", "Serve", "Sft", "Train", "Update",
]  # fmt: skip


class Params(Section):
    """The whole of params.yaml."""

    task: str = Field("email_search", min_length=1)
    """A module of environments/, or an importable module anywhere else. With `tasks`: their names with + between them."""
    tasks: dict[str, int] | None = None
    """Several tasks at once, in place of `task`: the weight of each, by which scenarios and batches are shared out."""
    seed: int = Field(1, ge=0)
    """From which every random choice of the run is derived."""
    policy: Policy = Policy()
    scenarios: Scenarios = Scenarios()
    rollout: Rollout = Rollout()
    agents: Agents = Agents()
    score: Score = Score()
    sft: Sft | None = None
    update: Update = Update()
    evaluate: Evaluate = Evaluate()
    register_: Register = Field(Register(), alias="register")
    promote: Promote = Promote()
    serve: Serve = Serve()
    train: Train = Train()

    @model_validator(mode="after")
    def check(self) -> Params:
        self._check_tasks()
        if self.rollout.scenarios > self.scenarios.train:
            raise ValueError(
                f"rollout.scenarios ({self.rollout.scenarios}) is more than scenarios.train ({self.scenarios.train})"
            )
        self._check_shards()
        if (judge := self.evaluate.judge) is not None and self.score.ruler is not None:
            own, other = judge.endpoint, self.score.ruler.endpoint
            if (own.model, own.base_url) == (other.model, other.base_url):
                raise ValueError(
                    f"evaluate.judge is {own.model}, which scores the training, too (score.ruler): a judge that is held out "
                    "must be another model; name another, or take evaluate.judge out"
                )
        self._check_start()
        if self.rollout.resample and not self.score.judges.rule:
            raise ValueError(
                "rollout.resample reads the rule's reward, and score.judges.rule is 0: give it a weight, or take it out"
            )
        if self.update.shard and self.policy.quantization:
            raise ValueError(
                f"update.shard does not work with policy.quantization: {self.policy.quantization}, whose weights are not "
                "divided; take one of the two out"
            )
        if self.policy.rollout_quantization and self.update.vllm_importance_sampling_correction is False:
            raise ValueError(
                "update.vllm_importance_sampling_correction: false does not go with policy.rollout_quantization: "
                f"{self.policy.rollout_quantization}, which samples from rounded weights; take one of the two out"
            )
        if self.policy.share_weights and (self.update.processes > 1 or self.update.launcher == "ray"):
            raise ValueError(
                f"policy.share_weights does not go with update.launcher: {self.update.launcher} and update.processes: "
                f"{self.update.processes}: the update is then made in other processes than the engine's; take one out"
            )
        if self.train.overlap and self.update.vllm_importance_sampling_correction is False:
            raise ValueError(
                f"update.vllm_importance_sampling_correction: false does not go with train.overlap: {self.train.overlap}, "
                "whose batches an older adapter samples; take one of the two out"
            )
        steps = self.train.iterations * self.update.steps_per_generation * self.update.num_iterations
        if self.update.warmup_steps and self.update.warmup_steps >= steps:
            raise ValueError(
                f"update.warmup_steps ({self.update.warmup_steps}) must be below the run's {steps} optimiser steps "
                "(train.iterations × update.steps_per_generation × update.num_iterations): update.learning_rate would never "
                "be reached; lower it, or train longer"
            )
        if self.rollout.opponent is not None and self.policy.kind in ("ray", "server"):
            raise ValueError(
                f"rollout.opponent does not go with policy.kind: {self.policy.kind}: only the engine in the stage's own "
                "process holds both adapters; set policy.kind: vllm, or take it out"
            )
        object.__setattr__(self, "update", self.update.of_dtype(self.policy.dtype))  # the section is frozen for others
        return self

    def _check_tasks(self) -> None:
        """ValueError for what is no name, for a task beside `tasks`, and for settings that speak of a single task."""
        if self.tasks is None:
            if PLUS in self.task:
                each = ", ".join(f"{name}: 1" for name in self.task.split(PLUS))
                raise ValueError(f"task: {self.task[:80]!r} are several tasks: write `tasks: {{{each}}}` in its place")
            check_name("task", self.task)
            return
        for name in self.tasks:
            check_name("tasks", name)
        if len(self.tasks) < 2:
            raise ValueError("tasks: name two tasks at least, each with its weight; a single one is `task: <name>`")
        if min(self.tasks.values()) < 1:
            raise ValueError(f"tasks: the weights must be whole numbers from 1 on, not {min(self.tasks.values())}")
        joined = PLUS.join(sorted(self.tasks))
        if "task" in self.model_fields_set and self.task != joined:
            raise ValueError(
                f"task ({self.task[:80]}) and tasks ({joined}) cannot both be set: take one of the two out"
            )
        object.__setattr__(self, "task", joined)
        for key, value in {
            "scenarios.generated": self.scenarios.generated,
            "scenarios.ingested": self.scenarios.ingested,
            "rollout.opponent": self.rollout.opponent,
            "sft": self.sft,
            "score.ruler": self.score.ruler,
            "evaluate.judge": self.evaluate.judge,
        }.items():
            if value is not None:
                raise ValueError(f"{key} speaks of a single task, and does not go with tasks: take one of the two out")
        weights = dict(sorted(self.tasks.items()))
        for key, count in {
            "rollout.scenarios": self.rollout.scenarios,
            **{f"scenarios.{split}": getattr(self.scenarios, split) for split in ("train", "val", "test")},
        }.items():
            if forgotten := [name for name, weight in weights.items() if count * weight < sum(weights.values())]:
                raise ValueError(
                    f"{key} ({count}) leaves {forgotten[0]} less than one scenario, by its weight in tasks: raise {key} to "
                    f"{-(-sum(weights.values()) // weights[forgotten[0]])} at least, or the weight"
                )
        of_train = shares(weights, self.scenarios.train)
        for name, weight in weights.items():
            if (most := -(-self.rollout.scenarios * weight // sum(weights.values()))) > of_train[name]:
                raise ValueError(
                    f"rollout.scenarios ({self.rollout.scenarios}) takes up to {most} of {name}, which has {of_train[name]} "
                    f"of scenarios.train ({self.scenarios.train}): raise scenarios.train"
                )

    def _check_start(self) -> None:
        """Put in the default reference. ValueError for a reference that is the base policy, and for optimiser state that
        training would not carry on."""
        has_start = self.policy.start_from is not None or self.sft is not None
        if self.update.reference is None and self.update.beta:
            update = self.update.model_copy(update={"reference": "start" if has_start else "base"})
            object.__setattr__(self, "update", update)
        if self.update.reference == "start" and not has_start:
            raise ValueError(
                "update.reference: start would have no effect without policy.start_from or sft: a fresh adapter is the base "
                "policy; take it out"
            )
        if self.policy.start_optimizer and self.sft is not None:
            raise ValueError(
                "policy.start_optimizer would have no effect with sft, which trains in between; take one of the two out"
            )

    def _check_shards(self) -> None:
        """ValueError for shards that would be empty or that nobody reads, and for a cluster that nobody reads."""
        if self.policy.cluster is not None and "ray" not in (self.policy.kind, self.update.launcher):
            raise ValueError(
                f"policy.cluster would have no effect with policy.kind: {self.policy.kind} and update.launcher: "
                f"{self.update.launcher}; take it out"
            )
        if self.rollout.shards > self.rollout.scenarios:
            few = f"rollout.scenarios ({self.rollout.scenarios}): a scenario's attempts stay together"
            raise ValueError(f"rollout.shards ({self.rollout.shards}) is more than {few}")
        if self.evaluate.shards > (fewest := min(self.scenarios.val, self.scenarios.test)):
            few = f"the scenarios of a split (scenarios.val, scenarios.test: {fewest})"
            raise ValueError(f"evaluate.shards ({self.evaluate.shards}) is more than {few}")
        for name, count in (("rollout", self.rollout.shards), ("evaluate", self.evaluate.shards)):
            if count > 1 and self.policy.kind not in ("vllm", "ray"):
                raise ValueError(
                    f"{name}.shards would have no effect with policy.kind: {self.policy.kind}; take it out"
                )


def check_name(key: str, name: str) -> None:
    """ValueError for what is no name of a task. dvc.yaml writes it into the commands and paths of stages, so it holds
    nothing that a shell would read."""
    if not re.fullmatch(r"\w+(\.\w+)*|\w+:[\w-]+(\.\w+)?(\?[\w=.&-]+)?", name, re.ASCII):
        raise ValueError(
            f"{key}: {name[:80]!r} is no name of a task: letters, digits and _ only, with dots for a module elsewhere "
            "(email_search, my_package.my_task), or a package's environment (gymnasium:Taxi-v4)"
        )


class CodeParams(Section):
    task: str
    tasks: dict[str, int] | None = None
    policy: Policy
    update: Update
    score: Score = Score()
    evaluate: Evaluate = Evaluate()
    scenarios: Scenarios = Scenarios()
    rollout: Rollout = Rollout()


class ScenariosParams(Section):
    task: str
    tasks: dict[str, int] | None = None
    seed: int
    scenarios: Scenarios


class Learning(Section):
    """What the stages read that make an adapter or use one to learn."""

    policy: Policy

    @model_validator(mode="after")
    def check(self) -> Self:
        if not self.policy.has_adapter:
            raise ValueError(
                f"policy.kind: {self.policy.kind} can be evaluated only (steps.evaluate, "
                "addons.models.baselines): initialise, rollout, update and register need policy.kind: vllm, ray or server"
            )
        return self


class InitialiseParams(Learning):
    seed: int
    policy: Policy


class StartParams(Learning):
    policy: Policy


class SftParams(Learning):
    task: str
    seed: int
    policy: Policy
    sft: Sft | None

    @model_validator(mode="after")
    def check_sft(self) -> Self:
        if self.sft is None:
            raise ValueError("sft: params.yaml says nothing of it, so there are no demonstrations to learn from")
        return self


class RolloutParams(Learning):
    task: str
    tasks: dict[str, int] | None = None
    seed: int
    policy: Policy
    rollout: Rollout
    agents: Agents


class ScoreParams(Section):
    task: str
    score: Score


class UpdateParams(Learning):
    task: str
    seed: int
    policy: Policy
    rollout: Rollout
    update: Update
    score: Score = Score()


class EvaluateParams(Section):
    task: str
    policy: Policy
    evaluate: Evaluate
    agents: Agents
    score: Score


def short_name(task: str) -> str:
    """A task's name where dots, colons and the like have a meaning of their own, as in the registry."""
    return re.sub(r"[^\w-]+", "_", task) if ":" in task else task.rpartition(".")[2]


class RegisterParams(Learning):
    task: str
    tasks: dict[str, int] | None = None
    policy: Policy
    register_: Register = Field(alias="register")

    @property
    def model(self) -> str:
        """The registry entry's name."""
        return self.register_.name or PLUS.join(map(short_name, self.task.split(PLUS)))


class PromoteParams(RegisterParams):
    evaluate: Evaluate
    promote: Promote
    score: Score
    serve: Serve


class ServeParams(RegisterParams):
    serve: Serve


P = TypeVar("P", bound=BaseModel)


def load(path: Path | str, kind: type[P]) -> P:
    """Read and check all of params.yaml, and return the part that `kind` declares. UserError says what is wrong."""
    path = Path(path)
    return parse(read_text(path), path, kind)


def read_text(path: Path) -> str:
    """The text of a params file. UserError where there is no file, or where it is no text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: run from the project's root, or name a file with --params") from None
    except UnicodeDecodeError as problem:
        raise UserError(
            f"{path} is no text in UTF-8 ({problem.reason} at byte {problem.start}); {cure(path)}"
        ) from None
    except OSError as problem:
        raise UserError(f"{path} cannot be read ({problem.strerror}); {cure(path)}") from None


def cure(path: Path) -> str:
    """What to do about a params file that is damaged."""
    return f"bring it back (`git checkout {path}`), or begin one with a line such as `task: email_search`"


def parse(text: str, path: Path, kind: type[P]) -> P:
    """Check the text of a params.yaml, and return the part that `kind` declares. UserError names `path` and what is wrong.

    Nothing is read from `path`: the text may be what is about to be written there.
    """
    if not text.strip():  # it would mean the defaults, and a full disk can empty a file
        raise UserError(f"{path} is empty; {cure(path)}")
    read = read_mapping(text, path)
    try:
        whole = Params.model_validate(read)
        names = {field.alias or name: name for name, field in kind.model_fields.items()}
        return kind.model_validate({name: getattr(whole, names[name]) for name in names})
    except ValidationError as problem:
        raise UserError(f"{path}: {describe(problem)}") from None


def describe(problem: ValidationError) -> str:
    """A validation error as sentences: each names the key, what it must be, and the valid keys where it is unknown."""
    sentences = []
    for mistake in problem.errors(include_url=False):
        key = ".".join(str(part) for part in mistake["loc"])
        if mistake["type"] == "extra_forbidden":
            valid = _keys_beside(mistake["loc"])
            listed = f" (known: {', '.join(valid)})" if valid else ""
            sentences.append(f"{key} is not a known key{listed}{did_you_mean(str(mistake['loc'][-1]), valid)}")
        elif mistake["type"] == "value_error":  # raised by a section's own check, whose text names the key
            sentences.append(mistake["msg"].removeprefix("Value error, "))
        else:
            sentences.append(f"{key}: {mistake['msg']} (it is {mistake['input']!r})")
    return "; ".join(sentences)


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """The keys of the section that a location's last part stands in; none where that is no section."""
    section: Any = Params
    for part in location[:-1]:
        fields = {field.alias or name: field for name, field in getattr(section, "model_fields", {}).items()}
        if part not in fields:
            return []
        kind = fields[str(part)].annotation
        section = next((option for option in get_args(kind) if hasattr(option, "model_fields")), kind)  # X | None
    return sorted(field.alias or name for name, field in getattr(section, "model_fields", {}).items())

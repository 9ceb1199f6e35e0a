"""params.yaml: its shape, which is checked when it is read, and the part of it that each stage gets.

There is a top-level key for each stage, and a few that stages share. A stage declares what it reads as a class whose fields
are top-level keys (`RolloutParams`): it gets nothing else, and a test holds `params:` in dvc.yaml to the same keys. Defaults
are the recipe for the embedded policy. Unknown keys and values out of range end the command with one sentence.

Each field's meaning, default and range stand in steps/core/params_policy.py, params_sections.py, params_update.py and
params_loss.py, and those of an add-on in its section.py (steps/core/section.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from environments import did_you_mean
from environments.kit.shares import PLUS
from steps.core import ports
from steps.core.errors import UserError
from steps.core.params_policy import Lora, Policy
from steps.core.params_sections import Evaluate, Judges, Promote, Register, Rollout, Scenarios, Score, Train
from steps.core.params_tasks import check_tasks, short_name
from steps.core.params_update import Update
from steps.core.section import Section, at, check_brought, opened
from steps.core.yaml_text import read_mapping

__all__ = [  # sections that others import from here
    "Evaluate", "Judges", "Lora", "Policy", "Promote", "Register", "Rollout", "Scenarios", "Score", "Section",
    "Train", "Update",
]  # fmt: skip

ELSEWHERE = {"sampler": "policy.kind", "launcher": "update.launcher"}  # port -> the setting that may be ray or server


@opened()
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
    score: Score = Score()
    update: Update = Update()
    evaluate: Evaluate = Evaluate()
    register_: Register = Field(Register(), alias="register")
    promote: Promote = Promote()
    train: Train = Train()

    @model_validator(mode="after")
    def check(self) -> Params:
        check_tasks(self)
        if self.rollout.scenarios > self.scenarios.train:
            raise ValueError(
                f"rollout.scenarios ({self.rollout.scenarios}) is more than scenarios.train ({self.scenarios.train})"
            )
        self._check_start()
        for port, setting in ELSEWHERE.items():
            if (name := at(self, setting)) in ("ray", "server") and name not in ports.names(port):
                raise ValueError(ports.lacking(port, name, setting))
        check_brought(self)
        object.__setattr__(self, "update", self.update.of_dtype(self.policy.dtype))  # the section is frozen for others
        return self

    @property
    def is_taught(self) -> bool:
        """Whether supervised training comes before iteration 001, which an add-on brings with the section sft."""
        return at(self, "sft") is not None

    def _check_start(self) -> None:
        """Put in the default reference. ValueError for a reference that is the base policy, and for optimiser state that
        training would not carry on."""
        has_start = at(self, "policy.start_from") is not None or self.is_taught
        if self.update.reference is None and self.update.beta:
            update = self.update.model_copy(update={"reference": "start" if has_start else "base"})
            object.__setattr__(self, "update", update)
        if self.update.reference == "start" and not has_start:
            raise ValueError(
                "update.reference: start would have no effect without policy.start_from or sft: a fresh adapter is the base "
                "policy; take it out"
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


@opened("", "agents")
class RolloutParams(Learning):
    task: str
    tasks: dict[str, int] | None = None
    seed: int
    policy: Policy
    rollout: Rollout


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


@opened("", "agents")
class EvaluateParams(Section):
    task: str
    policy: Policy
    evaluate: Evaluate
    score: Score


class RegisterParams(Learning):
    task: str
    tasks: dict[str, int] | None = None
    policy: Policy
    register_: Register = Field(alias="register")

    @property
    def model(self) -> str:
        """The registry entry's name."""
        return self.register_.name or PLUS.join(map(short_name, self.task.split(PLUS)))


@opened("", "serve")
class PromoteParams(RegisterParams):
    evaluate: Evaluate
    promote: Promote
    score: Score


def declared(kind: str, stage: str) -> type[BaseModel]:
    """The class of parameters that a stage's function names: one of the above, or of the params.py of its add-on."""
    own = vars(ports.load(f"{stage.rpartition('.')[0]}.params")) if stage.startswith("addons.") else {}
    chosen: type[BaseModel] = own.get(kind) or globals()[kind]
    return chosen


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
        if mistake["type"] == "extra_forbidden" and key in ports.SECTIONS:
            sentences.append(ports.lacking_section(key))
        elif mistake["type"] == "extra_forbidden":
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

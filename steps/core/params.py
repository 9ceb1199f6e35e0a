"""Every knob: the shape of params.yaml, checked when it is read.

A top-level key per stage, and a few that stages share. A stage declares what it reads as a class whose fields are top-level
keys (`RolloutParams`): it gets nothing else, and a test holds `params:` in dvc.yaml to the same keys. Defaults are the
recipe for the embedded policy; unknown keys and values out of range end in one sentence.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from steps.core.errors import UserError


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Lora(Section):
    """The adapter: on all linear layers, scaled by alpha / rank."""

    rank: int = Field(16, ge=1, le=512)
    alpha: float = Field(32, gt=0)


class Endpoint(Section):
    """A model on an OpenAI-compatible server (steps/llm/client.py). The key itself stands in an environment variable
    alone.
    """

    model: str = Field(min_length=1)
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"  # the variable's name; where it is not set, no key is sent
    temperature: float | None = Field(0.0, ge=0, le=2)  # null: not sent, for models that refuse it
    max_tokens: int = Field(1024, ge=1)  # of an answer
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"  # OpenAI's newer models: the second
    timeout_seconds: float = Field(120, gt=0)  # of one attempt
    max_retries: int = Field(6, ge=0)  # after refusals (429), faults of the server, broken answers and time-outs
    max_connections: int = Field(16, ge=1)
    price_in: float = Field(0.0, ge=0)  # per million tokens
    price_out: float = Field(0.0, ge=0)
    max_cost: float | None = Field(None, gt=0)  # of the calls that one command makes; it stops before it is passed
    extra_body: dict[str, Any] = {}  # further fields of the request, as the server documents them

    @model_validator(mode="after")
    def can_be_asked(self) -> Endpoint:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):  # not quoted: it may be the key itself
            raise ValueError("endpoint.api_key_env must be the name of an environment variable, and not the key itself")
        if not re.fullmatch(r"https?://[^/@?#]+(/[^@?#]*)?", self.base_url):
            raise ValueError("endpoint.base_url must be http(s)://host[:port]/path, without a name, a key or a query")
        if self.max_cost is not None and not self.price_in + self.price_out:
            raise ValueError("endpoint.max_cost needs price_in and price_out, which tell what a call costs")
        return self

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        return (input_tokens * self.price_in + output_tokens * self.price_out) / 1e6


class Policy(Section):
    """The model that acts and learns; kinds other than vllm are evaluated only, and read nothing here but `endpoint`."""

    kind: Literal["vllm", "openai", "scripted", "random"] = "vllm"
    endpoint: Endpoint | None = None  # of kind openai; its temperature and max_tokens count, not those of `evaluate`
    base_model: str = Field("tasks_data/embedded_policy", min_length=1)  # a folder, or a Hugging Face name
    revision: str | None = None  # of a Hugging Face name: pin it, or a run cannot be reproduced
    dtype: Literal["float32", "bfloat16"] = "float32"
    context: int = Field(2048, ge=64)  # tokens of an episode at most
    chat_template_kwargs: dict[str, Any] = {}
    lora: Lora = Lora()
    gpu_memory: float = Field(0.5, gt=0, lt=1)  # share of a GPU for the engine

    @model_validator(mode="after")
    def endpoint_where_one_is_asked(self) -> Policy:
        if self.kind == "openai" and self.endpoint is None:
            raise ValueError("policy.endpoint is needed with policy.kind: openai (its model, at least)")
        if self.kind != "openai" and self.endpoint is not None:
            raise ValueError(f"policy.endpoint would have no effect with policy.kind: {self.kind}; take it out")
        return self


class Scenarios(Section):
    """How many scenarios of each split, and how much alike those of two splits may be (steps/data/contamination.py)."""

    train: int = Field(192, ge=1)
    val: int = Field(120, ge=1)
    test: int = Field(240, ge=1)
    ngram: int = Field(8, ge=2, le=50)  # words
    max_overlap: float = Field(0.8, gt=0, le=1)  # share of a held-out text's n-grams; at 1 none is too much
    generated: str | None = Field(
        None, pattern=r"^[\w-][\w.-]*$"
    )  # more of them: a file of steps/data/generate.py in tasks_data/<task>/


class Curriculum(Section):
    """Scenarios that were too easy or too hard in the last iterations are drawn less often
    (steps/sampling/curriculum.py).
    """

    window: int = Field(4, ge=1, le=50)  # iterations looked back
    low: float = Field(0.1, ge=0, le=1)  # share of successes below which a scenario was too hard
    high: float = Field(0.9, ge=0, le=1)  # and above which it was too easy
    floor: float = Field(0.2, gt=0, le=1)  # its weight then; that of the others is 1

    @model_validator(mode="after")
    def low_is_lower(self) -> Curriculum:
        if self.low >= self.high:
            raise ValueError(
                f"rollout.curriculum.low ({self.low}) must be less than rollout.curriculum.high ({self.high})"
            )
        return self


class Rollout(Section):
    """One iteration's batch: `scenarios` × `attempts` episodes."""

    scenarios: int = Field(16, ge=1)
    attempts: int = Field(8, ge=2, le=256)  # G: they are compared with each other
    temperature: float = Field(1.0, gt=0, le=2)
    max_tokens: int = Field(64, ge=1)  # of a turn
    max_turns: int | None = Field(None, ge=1)  # None: the environment's own
    curriculum: Curriculum | None = None  # None: each scenario once before any again; {} for one with its defaults


class Judges(Section):
    """What each judge's score counts in the reward. At 0 it is not asked; the rule's is kept beside in any case."""

    rule: float = Field(0.0, ge=0)  # the environment's own reward
    criteria: float = Field(0.0, ge=0)  # weighted criteria (steps/judging/criteria.py)
    ruler: float = Field(0.0, ge=0)  # a model that compares the attempts (steps/judging/ruler.py)

    @model_validator(mode="after")
    def somebody_judges(self) -> Judges:
        if not self.rule + self.criteria + self.ruler:
            raise ValueError("score.judges: one of rule, criteria and ruler must be above 0")
        return self


class Criteria(Section):
    """Weights of the parts of a score from 0 to 1."""

    accuracy: float = Field(0.4, ge=0, le=1)
    efficiency: float = Field(0.3, ge=0, le=1)
    completeness: float = Field(0.2, ge=0, le=1)
    satisfaction: float = Field(0.1, ge=0, le=1)
    tokens_per_second: float = Field(50, gt=0)  # tells response times from sampled tokens: the same on every machine

    @model_validator(mode="after")
    def weights_sum_to_one(self) -> Criteria:
        total = self.accuracy + self.efficiency + self.completeness + self.satisfaction
        if abs(total - 1) > 1e-6:
            raise ValueError(f"score.criteria: the weights must sum to 1, not {total:g}")
        return self


class Ruler(Section):
    """RULER: a model compares the attempts at one scenario. Its rubric is tasks_data/<task>/rubric.md."""

    endpoint: Endpoint
    orders: int = Field(2, ge=1, le=24)  # in which the attempts are shown; scores are averaged over them
    probes: float = Field(0.1, ge=0, le=1)  # share of groups asked twice more: the same again, and with a canary
    reasons: bool = True  # a sentence for each score; without them answers are a tenth as long
    max_characters: int = Field(
        60_000, ge=2_000
    )  # of the attempts in one call; longer ones are shortened, and it is said
    max_run_cost: float | None = Field(
        None, gt=0
    )  # of a run's judgements, kept ones included; stops before it is passed

    @model_validator(mode="after")
    def cost_is_known(self) -> Ruler:
        if self.max_run_cost is not None and not self.endpoint.price_in + self.endpoint.price_out:
            raise ValueError("score.ruler.max_run_cost needs price_in and price_out of its endpoint")
        return self


class Score(Section):
    """Who judges, and how."""

    judges: Judges = Judges(rule=1.0)
    criteria: Criteria | None = None  # None: the defaults
    ruler: Ruler | None = None

    @model_validator(mode="after")
    def what_is_set_is_read(self) -> Score:
        if self.judges.ruler and self.ruler is None:
            raise ValueError("score.ruler is needed with score.judges.ruler above 0 (its endpoint.model, at least)")
        for name, given in (("ruler", self.ruler), ("criteria", self.criteria)):
            if given is not None and not getattr(self.judges, name):
                raise ValueError(f"score.{name} would have no effect: score.judges.{name} is 0; take it out")
        return self


class Update(Section):
    """The GRPO update, named as TRL names it. A knob that the chosen loss would not read is refused."""

    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo"] = "dapo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    beta: float = Field(0.01, ge=0)  # weight of the KL to the base policy
    use_bias_correction_kl: bool | None = (
        None  # the KL's gradient without bias, by the ratio; true where there is a beta
    )
    epsilon: float | None = Field(None, gt=0, lt=1)  # 0.2; gspo 3e-4; cispo has none
    epsilon_high: float | None = Field(None, gt=0)  # 0.28; gspo 4e-4; cispo 5, the largest weight of a token
    num_iterations: int = Field(1, ge=1)  # passes over the batch
    steps_per_generation: int = Field(8, ge=1)  # optimiser steps a pass
    learning_rate: float = Field(5e-4, gt=0)
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0)
    max_steps: int | None = Field(
        None, ge=1
    )  # optimiser steps of all iterations, over which linear and cosine fall to 0
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    truncated_completions: Literal["keep", "mask", "penalise"] = "keep"  # episodes cut off by max_tokens or context
    truncation_penalty: float | None = Field(None, gt=0)  # taken from the reward where they are penalised; 0.5
    vllm_importance_sampling_correction: bool = (
        False  # ratios to the trainer's own logprobs, weighted by trainer / sampler
    )
    vllm_importance_sampling_mode: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] | None
    ) = None
    vllm_importance_sampling_clip_max: float | None = Field(None, gt=0)  # 3; null for none
    vllm_importance_sampling_clip_min: float | None = Field(None, gt=0)
    max_sampler_kl: float = Field(1e-3, gt=0)  # nats a token between sampler and trainer, before the update
    tokens_per_micro_batch: int = Field(4096, ge=64)  # those that rows share count once
    gradient_checkpointing: bool = False  # less memory for a second forward pass

    @model_validator(mode="before")
    @classmethod
    def defaults_of_the_choices(cls, given: Any) -> Any:
        """What None stands for depends on other knobs; so does whether a knob is read at all."""
        if not isinstance(given, dict):
            return given
        loss = given.get("loss_type", "dapo")
        low, high = {"gspo": (3e-4, 4e-4), "cispo": (None, 5.0)}.get(str(loss), (0.2, 0.28))
        schedule = given.get("lr_scheduler_type", "constant")
        corrected = bool(given.get("vllm_importance_sampling_correction"))
        penalised = given.get("truncated_completions") == "penalise"
        correction = "vllm_importance_sampling_correction: true"
        knobs: list[tuple[str, bool, Any, str]] = [  # (name, is it read, its default then, what reads it)
            ("epsilon", low is not None, low, "a loss_type other than cispo"),
            ("epsilon_high", True, high, ""),
            ("use_bias_correction_kl", given.get("beta") != 0, True, "a beta above 0"),
            ("max_steps", schedule != "constant", None, "lr_scheduler_type: linear or cosine"),
            ("truncation_penalty", penalised, 0.5, "truncated_completions: penalise"),
            ("vllm_importance_sampling_mode", corrected, "sequence_mask", correction),
            ("vllm_importance_sampling_clip_max", corrected, 3.0, correction),
            ("vllm_importance_sampling_clip_min", corrected, None, correction),
        ]
        filled = dict(given)
        for name, is_read, default, reader in knobs:
            if filled.get(name) is None:
                unbounded = name.endswith("clip_max") and name in filled  # null: no upper bound
                if is_read and default is not None and not unbounded:
                    filled[name] = default
            elif not is_read:
                raise ValueError(f"update.{name} would have no effect: it is read with {reader} alone; take it out")
        if schedule in ("linear", "cosine") and filled.get("max_steps") is None:
            raise ValueError(
                f"update.max_steps is needed with lr_scheduler_type: {schedule} "
                "(iterations × steps_per_generation × num_iterations)"
            )
        return filled


class Evaluate(Section):
    """One attempt a scenario."""

    temperature: float = Field(0.0, ge=0, le=2)  # 0 is greedy; above, with the same draws for every policy
    max_tokens: int = Field(64, ge=1)
    max_turns: int | None = Field(None, ge=1)


class Register(Section):
    """The registry entry; the gate is: better than the base policy on the test split."""

    name: str | None = Field(None, min_length=1)  # None: the task's


class Promote(Section):
    """The gate that moves `champion` (steps/registry/gate.py, flows/promote.py); no stage reads it."""

    margin: float = Field(
        0.0, ge=0, lt=1
    )  # success by which the challenger must be better, at the interval's lower end
    max_slice_drop: float = Field(0.1, ge=0, le=1)  # of success, on any slice
    min_slice: int = Field(20, ge=1)  # scenarios; smaller slices are listed, and decide nothing
    max_turns_growth: float = Field(1.5, gt=0)  # ratio of mean turns, and of mean tokens
    scripted_tolerance: float | None = Field(
        None, ge=0, le=1
    )  # None: the scripted player is shown, and decides nothing
    resamples: int = Field(10_000, ge=1000)
    seed: int = Field(0, ge=0)


class Train(Section):
    """The flow."""

    iterations: int = Field(10, ge=1, le=999)
    patience: int = Field(4, ge=1)  # iterations without a better validation success before it stops


class Params(Section):
    """params.yaml."""

    task: str = Field("email_search", min_length=1)
    seed: int = Field(1, ge=0)
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
    def enough_scenarios(self) -> Params:
        if self.rollout.scenarios > self.scenarios.train:
            raise ValueError(
                f"rollout.scenarios ({self.rollout.scenarios}) is more than scenarios.train ({self.scenarios.train})"
            )
        return self


class ScenariosParams(Section):
    task: str
    seed: int
    scenarios: Scenarios


class Learning(Section):
    """Of the stages that make an adapter or use one to learn."""

    policy: Policy

    @model_validator(mode="after")
    def the_policy_can_learn(self) -> Self:
        if self.policy.kind != "vllm":
            raise ValueError(
                f"policy.kind: {self.policy.kind} can be evaluated only (python -m steps.evaluate, python -m "
                "steps.analytics.baselines): initialise, rollout, update and register need policy.kind: vllm"
            )
        return self


class InitialiseParams(Learning):
    seed: int
    policy: Policy


class RolloutParams(Learning):
    task: str
    seed: int
    policy: Policy
    rollout: Rollout


class ScoreParams(Section):
    task: str
    score: Score


class UpdateParams(Learning):
    seed: int
    policy: Policy
    rollout: Rollout
    update: Update


class EvaluateParams(Section):
    task: str
    policy: Policy
    evaluate: Evaluate


class RegisterParams(Learning):
    task: str
    policy: Policy
    register_: Register = Field(alias="register")

    @property
    def model(self) -> str:
        """The registry entry's name."""
        return self.register_.name or self.task.rpartition(".")[2]


class PromoteParams(RegisterParams):
    evaluate: Evaluate
    promote: Promote


P = TypeVar("P", bound=BaseModel)


def load(path: Path | str, kind: type[P]) -> P:
    """Read and check all of params.yaml, and return the part that `kind` declares. UserError says what is wrong."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: run from the project's root, or name a file with --params") from None
    return parse(text, path, kind)


def parse(text: str, path: Path, kind: type[P]) -> P:
    """Check the text of a params.yaml, and return the part that `kind` declares. UserError names `path` and what is wrong.

    Nothing is read from `path`: the text may be what is about to be written there.
    """
    import yaml

    try:
        read = yaml.safe_load(text) or {}
    except yaml.YAMLError as problem:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(problem).split())}") from None
    if not isinstance(read, dict):
        raise UserError(f"{path} must hold keys and values, not a {type(read).__name__}")
    try:
        whole = Params.model_validate(read)
        names = {field.alias or name: name for name, field in kind.model_fields.items()}
        return kind.model_validate({name: getattr(whole, names[name]) for name in names})
    except ValidationError as problem:
        raise UserError(f"{path}: {describe(problem)}") from None


def describe(problem: ValidationError) -> str:
    """Pydantic's findings as sentences that name the key, what it must be, and the known keys where one is unknown."""
    said = []
    for found in problem.errors(include_url=False):
        where = ".".join(str(part) for part in found["loc"])
        if found["type"] == "extra_forbidden":
            known = _keys_beside(found["loc"])
            said.append(f"{where} is not a known key" + (f" (known: {', '.join(known)})" if known else ""))
        else:
            text = found["msg"].removeprefix("Value error, ")
            whole = found["type"] == "value_error"  # raised here: the text names the key itself
            said.append(text if whole else f"{where}: {text} (it is {found['input']!r})")
    return "; ".join(said)


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    kind: Any = Params
    for part in location[:-1]:
        fields = {field.alias or name: field for name, field in getattr(kind, "model_fields", {}).items()}
        if part not in fields:
            return []
        kind = fields[str(part)].annotation
        kind = next((one for one in get_args(kind) if hasattr(one, "model_fields")), kind)  # X | None
    return sorted(field.alias or name for name, field in getattr(kind, "model_fields", {}).items())

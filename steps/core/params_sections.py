"""The sections of params.yaml: fields, defaults and ranges.

The text under a field says what it does and its unit. Everything else imports the sections from steps/core/params.py.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

CLIPPING: dict[str, tuple[float | None, float]] = {"cispo": (None, 5.0), "gspo": (3e-4, 4e-4)}
CLIPPING_ELSE = (0.2, 0.28)  # epsilon and epsilon_high of the other losses


class Section(BaseModel):
    """A frozen mapping of params.yaml that refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Lora(Section):
    """The LoRA adapter: on all linear layers, scaled by alpha / rank."""

    rank: int = Field(16, ge=1, le=512)
    """Rank of the adapter's matrices."""
    alpha: float = Field(32, gt=0)
    """The adapter's output is multiplied by alpha / rank."""


class Endpoint(Section):
    """A model on an OpenAI-compatible server (steps/llm/client.py)."""

    model: str = Field(min_length=1)
    """The model's name, as the server knows it."""
    base_url: str = "https://api.openai.com/v1"
    """The server's address: http(s)://host[:port]/path, without a name, a key or a query."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the environment variable that holds the key, which stands nowhere else. If it is not set, no key is sent."""
    temperature: float | None = Field(0.0, ge=0, le=2)
    """Sampling temperature. null: none is sent, for models that refuse it."""
    max_tokens: int = Field(1024, ge=1)
    """Most tokens of one answer."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The name under which the server takes `max_tokens`; OpenAI's newer models take the second."""
    timeout_seconds: float = Field(120, gt=0)
    """Seconds until an attempt to call the server is given up."""
    max_retries: int = Field(6, ge=0)
    """Further attempts after a call was refused (429), the server failed, the answer was broken or it timed out."""
    max_connections: int = Field(16, ge=1)
    """Calls under way at the same time."""
    price_in: float = Field(0.0, ge=0)
    """Price of a million input tokens."""
    price_out: float = Field(0.0, ge=0)
    """Price of a million output tokens."""
    max_cost: float | None = Field(None, gt=0)
    """The most that one command's calls may cost; it stops before it would pass that. null: no limit."""
    extra_body: dict[str, Any] = {}
    """Further fields of each request, as the server documents them."""

    @model_validator(mode="after")
    def check(self) -> Endpoint:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.api_key_env):  # not quoted: it may be the key itself
            raise ValueError("endpoint.api_key_env must be the name of an environment variable, and not the key itself")
        if not re.fullmatch(r"https?://[^/@?#]+(/[^@?#]*)?", self.base_url):
            raise ValueError("endpoint.base_url must be http(s)://host[:port]/path, without a name, a key or a query")
        if self.max_cost is not None and not self.price_in + self.price_out:
            raise ValueError("endpoint.max_cost needs price_in and price_out, which tell what a call costs")
        return self

    def cost(self, input_tokens: int, output_tokens: int) -> float:
        """What a call costs, in the currency of the prices."""
        return (input_tokens * self.price_in + output_tokens * self.price_out) / 1e6


class Policy(Section):
    """The model that acts and learns."""

    kind: Literal["vllm", "openai", "scripted", "random"] = "vllm"
    """Who plays. vllm: the base model with an adapter, in this process; the others can only be evaluated, and read nothing
    else here but `endpoint`: a model on a server, the environment's scripted player, or random actions."""
    endpoint: Endpoint | None = None
    """The server of kind openai, and only of that. Its temperature and max_tokens count in place of those of `evaluate`."""
    base_model: str = Field("tasks_data/embedded_policy", min_length=1)
    """A folder, or a name on the Hugging Face Hub."""
    revision: str | None = None
    """The commit of a Hugging Face name. Without it a run cannot be reproduced once the model changes there."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The number format of the weights and of all arithmetic."""
    context: int = Field(2048, ge=64)
    """Most tokens of an episode, prompt included."""
    chat_template_kwargs: dict[str, Any] = {}
    """Further arguments of the model's chat template, as its documentation names them."""
    lora: Lora = Lora()
    """The adapter that is trained."""
    threads: int = Field(2, ge=1, le=1024)
    """Threads that sampling and training compute with on a CPU, one per core. Another number rounds sums otherwise: the run
    gives other bytes. Give a machine with more cores more of them."""
    gpu_memory: float = Field(0.5, gt=0, lt=1)
    """Share of a GPU's memory that the engine takes; the rest is for training."""

    @model_validator(mode="after")
    def check(self) -> Policy:
        if self.kind == "openai" and self.endpoint is None:
            raise ValueError("policy.endpoint is needed with policy.kind: openai (its model, at least)")
        if self.kind != "openai" and self.endpoint is not None:
            raise ValueError(f"policy.endpoint would have no effect with policy.kind: {self.kind}; take it out")
        return self


class Scenarios(Section):
    """How many scenarios each split has, and how much alike those of two splits may be (steps/data/contamination.py)."""

    train: int = Field(192, ge=1)
    """Scenarios to learn from."""
    val: int = Field(120, ge=1)
    """Scenarios by which the best iteration is chosen."""
    test: int = Field(240, ge=1)
    """Scenarios by which an adapter is judged in the end."""
    ngram: int = Field(8, ge=2, le=50)
    """Length in words of the n-grams by which texts are compared."""
    max_overlap: float = Field(0.8, gt=0, le=1)
    """Largest share of a held-out text's n-grams that one training scenario may have too; 1 allows any overlap."""
    generated: str | None = Field(None, pattern=r"^[\w-][\w.-]*$")
    """A file in tasks_data/<task>/ with further scenarios, written by steps/data/generate.py. null: none."""


class Curriculum(Section):
    """Draws scenarios less often that were too easy or too hard in the last iterations (steps/sampling/curriculum.py)."""

    window: int = Field(4, ge=1, le=50)
    """Iterations that are looked back."""
    low: float = Field(0.1, ge=0, le=1)
    """Share of successes below which a scenario was too hard."""
    high: float = Field(0.9, ge=0, le=1)
    """Share of successes above which a scenario was too easy."""
    floor: float = Field(0.2, gt=0, le=1)
    """Weight with which those are drawn; all others have weight 1."""

    @model_validator(mode="after")
    def check(self) -> Curriculum:
        if self.low >= self.high:
            raise ValueError(
                f"rollout.curriculum.low ({self.low}) must be less than rollout.curriculum.high ({self.high})"
            )
        return self


class Rollout(Section):
    """One iteration's batch: `scenarios` × `attempts` episodes."""

    scenarios: int = Field(16, ge=1)
    """Scenarios that are drawn for an iteration."""
    attempts: int = Field(8, ge=2, le=256)
    """Episodes played at each of them (G, the group size); they are compared with each other."""
    temperature: float = Field(1.0, gt=0, le=2)
    """Sampling temperature."""
    max_tokens: int = Field(64, ge=1)
    """Most tokens of one turn."""
    max_turns: int | None = Field(None, ge=1)
    """Most turns of an episode. null: the environment's own limit."""
    curriculum: Curriculum | None = None
    """null: each scenario comes once before any comes again. {}: a curriculum with its defaults."""


class Judges(Section):
    """Weight of each judge's score in the reward. A judge with weight 0 is not asked; the rule's score is always kept."""

    rule: float = Field(0.0, ge=0)
    """The environment's own reward."""
    criteria: float = Field(0.0, ge=0)
    """The weighted criteria of steps/judging/criteria.py."""
    ruler: float = Field(0.0, ge=0)
    """A model that compares the attempts (steps/judging/ruler.py)."""

    @model_validator(mode="after")
    def check(self) -> Judges:
        if not self.rule + self.criteria + self.ruler:
            raise ValueError("score.judges: one of rule, criteria and ruler must be above 0")
        return self


class Criteria(Section):
    """Weights of the four parts of a score from 0 to 1; they sum to 1."""

    accuracy: float = Field(0.4, ge=0, le=1)
    """Weight of how near the result is to what is expected."""
    efficiency: float = Field(0.3, ge=0, le=1)
    """Weight of how few turns it took."""
    completeness: float = Field(0.2, ge=0, le=1)
    """Weight of the share of required actions that were taken."""
    satisfaction: float = Field(0.1, ge=0, le=1)
    """Weight of what remains after errors and a long response."""
    tokens_per_second: float = Field(50, gt=0)
    """Speed at which sampled tokens are counted as response time, so that it is the same on every machine."""

    @model_validator(mode="after")
    def check(self) -> Criteria:
        total = self.accuracy + self.efficiency + self.completeness + self.satisfaction
        if abs(total - 1) > 1e-6:
            raise ValueError(f"score.criteria: the weights must sum to 1, not {total:g}")
        return self


class Ruler(Section):
    """RULER: a model compares the attempts at one scenario, by the rubric in tasks_data/<task>/rubric.md."""

    endpoint: Endpoint
    """The model that judges, and its server."""
    orders: int = Field(2, ge=1, le=24)
    """Orders in which the attempts are shown; scores are averaged over them."""
    probes: float = Field(0.1, ge=0, le=1)
    """Share of groups that are judged twice more, to measure the judge: the same again, and with a canary."""
    reasons: bool = True
    """Ask for a sentence with each score; without them answers are a tenth as long."""
    max_characters: int = Field(60_000, ge=2_000)
    """Most characters of the attempts in one call; longer ones are shortened, which the judgement records."""
    max_run_cost: float | None = Field(None, gt=0)
    """The most that a run's judgements may cost, kept ones included; scoring stops before it would pass that."""

    @model_validator(mode="after")
    def check(self) -> Ruler:
        if self.max_run_cost is not None and not self.endpoint.price_in + self.endpoint.price_out:
            raise ValueError("score.ruler.max_run_cost needs price_in and price_out of its endpoint")
        return self


class Score(Section):
    """Who judges, and how."""

    judges: Judges = Judges(rule=1.0)
    """What each judge counts."""
    criteria: Criteria | None = None
    """Settings of the judge criteria. null: its defaults."""
    ruler: Ruler | None = None
    """Settings of the judge ruler, which needs its endpoint."""

    @model_validator(mode="after")
    def check(self) -> Score:
        if self.judges.ruler and self.ruler is None:
            raise ValueError("score.ruler is needed with score.judges.ruler above 0 (its endpoint.model, at least)")
        for name, settings in (("ruler", self.ruler), ("criteria", self.criteria)):
            if settings is not None and not getattr(self.judges, name):
                raise ValueError(f"score.{name} would have no effect: score.judges.{name} is 0; take it out")
        return self


class Update(Section):
    """The GRPO update, with the names and meanings of TRL's GRPOConfig.

    Some fields are read only with certain values of others, and their defaults depend on those. They are None until all
    fields are checked; then `resolve` puts in the default, and refuses what would have no effect.
    """

    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo"] = "dapo"
    """How token losses are clipped and averaged."""
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """The rewards whose standard deviation the advantages are divided by."""
    beta: float = Field(0.01, ge=0)
    """Weight of the KL divergence from the base policy."""
    use_bias_correction_kl: bool | None = None
    """Weight the KL's gradient by the policies' ratio, which removes its bias. Default: true; read with beta above 0."""
    epsilon: float | None = Field(None, gt=0, lt=1)
    """How far below 1 the ratio counts. Default: 0.2, with gspo 3e-4; cispo does not read it."""
    epsilon_high: float | None = Field(None, gt=0)
    """How far above 1 the ratio counts; with cispo, the largest weight of a token. Default: 0.28, gspo 4e-4, cispo 5."""
    num_iterations: int = Field(1, ge=1)
    """Passes over the batch."""
    steps_per_generation: int = Field(8, ge=1)
    """Optimiser steps of each pass."""
    learning_rate: float = Field(5e-4, gt=0)
    """Step size of AdamW, after the warm-up."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls to 0 until `max_steps`."""
    warmup_steps: int = Field(0, ge=0)
    """Optimiser steps over which the learning rate rises from 0."""
    max_steps: int | None = Field(None, ge=1)
    """Optimiser steps of all iterations together. Needed, and read, with linear and cosine."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Norm to which larger gradients are scaled down."""
    truncated_completions: Literal["keep", "mask", "penalise"] = "keep"
    """What becomes of episodes that max_tokens or the context cut off: learnt from, left out, or given a lower reward."""
    truncation_penalty: float | None = Field(None, gt=0)
    """Taken from the reward of such an episode. Default: 0.5; read with truncated_completions: penalise."""
    without_signal: Literal["count", "drop"] = "count"
    """What becomes of trajectories that are unscored, masked, or of a group whose scores are all equal. count: they are in
    the loss's averages and, unless masked, in its KL term, as in TRL. drop: in neither, so that the others weigh more."""
    vllm_importance_sampling_correction: bool = False
    """Take ratios to the trainer's own logprobs, and weight the loss by trainer / sampler."""
    vllm_importance_sampling_mode: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] | None
    ) = None
    """Whether those weights are of tokens or of whole sequences, and whether too large ones are cut or left out.
    Default: sequence_mask; read with the correction, as are the two below."""
    vllm_importance_sampling_clip_max: float | None = Field(None, gt=0)
    """The largest weight. Default: 3. null: no upper bound."""
    vllm_importance_sampling_clip_min: float | None = Field(None, gt=0)
    """The smallest weight. Default: no lower bound."""
    max_sampler_kl: float = Field(1e-3, gt=0)
    """KL divergence between sampler and trainer, in nats per token before the update, above which the stage fails."""
    tokens_per_micro_batch: int = Field(4096, ge=64)
    """Tokens in one forward pass; a prefix that rows share counts once, and a trajectory is never divided."""
    gradient_checkpointing: bool = False
    """Compute activations a second time in place of keeping them: less memory, more time."""

    @model_validator(mode="after")
    def resolve(self) -> Update:
        """Put in the defaults that depend on other fields. ValueError for a field that nothing would read."""
        low, high = CLIPPING.get(self.loss_type, CLIPPING_ELSE)
        is_scheduled = self.lr_scheduler_type != "constant"
        is_penalised = self.truncated_completions == "penalise"
        is_corrected, correction = self.vllm_importance_sampling_correction, "vllm_importance_sampling_correction: true"
        unbounded = "vllm_importance_sampling_clip_max" in self.model_fields_set  # written as null
        self._resolve("epsilon", low, low is not None, "a loss_type other than cispo")
        self._resolve("epsilon_high", high)
        self._resolve("use_bias_correction_kl", True, self.beta != 0, "a beta above 0")
        self._resolve("max_steps", None, is_scheduled, "lr_scheduler_type: linear or cosine")
        self._resolve("truncation_penalty", 0.5, is_penalised, "truncated_completions: penalise")
        self._resolve("vllm_importance_sampling_mode", "sequence_mask", is_corrected, correction)
        self._resolve("vllm_importance_sampling_clip_max", None if unbounded else 3.0, is_corrected, correction)
        self._resolve("vllm_importance_sampling_clip_min", None, is_corrected, correction)
        if is_scheduled and self.max_steps is None:
            raise ValueError(
                f"update.max_steps is needed with lr_scheduler_type: {self.lr_scheduler_type} "
                "(iterations × steps_per_generation × num_iterations)"
            )
        return self

    def _resolve(self, name: str, default: Any, is_read: bool = True, reader: str = "") -> None:
        """Give a field that is None its default. ValueError where it is set and not read; `reader` says when it would be."""
        if getattr(self, name) is None:
            if is_read:
                object.__setattr__(self, name, default)  # the section is frozen for everybody else
        elif not is_read:
            raise ValueError(f"update.{name} would have no effect: it is read with {reader} alone; take it out")


class Evaluate(Section):
    """How a policy is evaluated: one attempt at each scenario, which decides, and sampled attempts beside it."""

    temperature: float = Field(0.0, ge=0, le=2)
    """0 is greedy; above 0 the random draws are the same for every policy."""
    sampled_attempts: int = Field(1, ge=0, le=64)
    """More attempts at each scenario, at temperature 1. Their success is shown beside the greedy one, which can jump where a
    single token's probability crosses another's; it decides nothing. Only for policy.kind vllm."""
    max_tokens: int = Field(64, ge=1)
    """Most tokens of one turn."""
    max_turns: int | None = Field(None, ge=1)
    """Most turns of an episode. null: the environment's own limit."""


class Register(Section):
    """The registry's entry, for an adapter that is better than the base policy on the test split."""

    name: str | None = Field(None, min_length=1)
    """The registered model's name. null: the task's."""


class Promote(Section):
    """The gate that moves the alias `champion` (steps/registry/gate.py, flows/promote.py); no stage reads it."""

    margin: float = Field(0.0, ge=0, lt=1)
    """What the lower end of the interval of the gain in success must exceed."""
    max_slice_drop: float = Field(0.1, ge=0, le=1)
    """Largest loss of success that is allowed on any slice."""
    min_slice: int = Field(20, ge=1)
    """Scenarios from which on a slice counts; smaller ones are listed and decide nothing."""
    max_turns_growth: float = Field(1.5, gt=0)
    """Largest ratio of the mean turns, and of the mean tokens, to those of the policy it is compared with."""
    scripted_tolerance: float | None = Field(None, ge=0, le=1)
    """Success by which the challenger may be below the scripted player. null: that player is shown and decides nothing."""
    false_promotions: float = Field(0.05, gt=0, le=0.5)
    """Largest probability that any of the challengers judged on one test split is promoted and is no better."""


class Train(Section):
    """The flow `make train`."""

    iterations: int = Field(10, ge=1, le=999)
    """Most iterations of a run."""
    patience: int = Field(10, ge=1)
    """Iterations without a better validation success after which the run ends."""

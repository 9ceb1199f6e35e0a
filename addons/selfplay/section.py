"""What the section `rollout` of params.yaml holds for who plays the other side of a game."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from steps.core.section import MoreFields, Section, for_one_task

if TYPE_CHECKING:
    from steps.core.params import Params


class Opponent(Section):
    """Who plays the other side of a game in training, in place of the opponents of the task's data (docs/games.md)."""

    player: str = Field("iteration", pattern=r"^[a-z_]+$")
    """iteration: an earlier adapter of the run, frozen for a while. champion: the registry's, resolved as the run begins.
    Or one of the task's own opponents by its name, such as random."""
    every: int = Field(4, ge=1)
    """Iterations after which a newer adapter takes the seat, with player: iteration."""

    @property
    def is_adapter(self) -> bool:
        return self.player in ("iteration", "champion")


class SelfPlay(MoreFields):
    """Of the section `rollout`."""

    opponent: Opponent | None = None
    """Of games of two sides, in training alone. null: the opponents of the task's data."""

    def check_with(self, params: Params) -> None:
        for_one_task(params, "rollout.opponent")
        if self.opponent is not None and params.policy.kind in ("ray", "server"):
            raise ValueError(
                f"rollout.opponent does not go with policy.kind: {params.policy.kind}: only the engine in the stage's own "
                "process holds both adapters; set policy.kind: vllm, or take it out"
            )

"""DAPO's soft overlong punishment (Yu et al. 2025, arXiv:2503.14476, equation 13), by TRL's function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from addons.advantages.section import Advantages

if TYPE_CHECKING:
    from steps.core.params import Update
    from steps.core.records import Trajectory


def punished(batch: Sequence[Trajectory], settings: Update) -> list[float]:
    """What is taken from the score of each trajectory, by the tokens that the policy wrote in the whole episode."""
    from trl.rewards import get_soft_overlong_punishment

    own, most = Advantages.of(settings), settings.truncation_penalty or 0.0
    punish = get_soft_overlong_punishment(own.max_completion_len, own.soft_punish_cache)
    written = [[token for turn in trajectory.turns for token in turn.completion_ids] for trajectory in batch]
    return [-most * punishment for punishment in punish(written)]

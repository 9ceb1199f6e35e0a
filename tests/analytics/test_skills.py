"""steps.analytics.skills: what is said of a kind of decision whose share of right ones fell."""

from __future__ import annotations

from steps.analytics.skills import falls
from steps.core.evaluations import Evaluation

Counts = dict[str, tuple[int, int]]


def after(*decisions: Counts) -> dict[str, Evaluation]:
    """Evaluations of iterations that made these decisions: (right ones, all) by kind."""
    common = {"split": "val", "adapter_hash": "a", "n": 120, "success": 0.5, "ci95": (0.4, 0.6), "reward": 0.0}
    return {
        f"{number:03d}": Evaluation.model_validate(common | {"turns": 1.0, "tokens": 1.0, "decisions": made})
        for number, made in enumerate(decisions)
    }


def test_a_share_that_falls_while_the_right_ones_rise_is_no_lost_skill() -> None:
    """email_search, seed 1: only right answers can cite, and there are more of them."""
    evaluations = after({"cite": (9, 11), "row": (32, 84)}, {"cite": (30, 71), "row": (86, 125)}, {"cite": (56, 98)})
    [sentence] = falls(evaluations)
    assert sentence == (
        "cite: right in 82% of 11 cases at first, in 42% of 71 in iteration 1, but the right ones rose from 9 to 30: "
        "more episodes get as far as this decision."
    )


def test_fewer_right_ones_are_a_skill_that_was_lost() -> None:
    [sentence] = falls(after({"filter": (90, 100)}, {"filter": (40, 100)}))
    assert sentence.endswith("and the right ones went from 90 to 40: the policy decides this worse than at first.")


def test_nothing_is_said_of_a_small_fall_or_of_what_cannot_be_compared() -> None:
    assert not falls(after({"query": (90, 100), "row": (1, 1)}, {"query": (80, 100), "row": (0, 0)}))
    assert not falls(after({"cite": (0, 0)}, {"cite": (0, 0)}))
    assert not falls(after({"query": (90, 100)}))
    assert not falls(after({}, {"cite": (0, 10)}))

"""What a falling share of right decisions means: a skill that a policy lost, or one that it now needs more often."""

from __future__ import annotations

from collections.abc import Mapping

from steps.core.evaluations import Evaluation

MUCH = 0.15  # of the share of right decisions


def falls(evaluations: Mapping[str, Evaluation]) -> list[str]:
    """A sentence for each kind of decision whose share of right ones fell by MUCH after the first of these evaluations,
    which are in order, by iteration.

    A decision is counted where an episode gets as far: the share may fall while the number of right ones rises.
    """
    sentences = []
    for kind, (right, made) in next(iter(evaluations.values())).decisions.items():
        counts = {name: result.decisions[kind] for name, result in evaluations.items() if kind in result.decisions}
        name, (now, cases) = min(counts.items(), key=lambda item: share(*item[1]))
        if share(right, made) - share(now, cases) < MUCH:
            continue
        before = f"{kind}: right in {right / made:.0%} of {made} cases at first"
        after = f"in {now / cases:.0%} of {cases} in iteration {int(name)}"
        if now > right:
            why = f"but the right ones rose from {right} to {now}: more episodes get as far as this decision"
        else:
            why = f"and the right ones went from {right} to {now}: the policy decides this worse than at first"
        sentences.append(f"{before}, {after}, {why}.")
    return sentences


def share(right: int, made: int) -> float:
    """The share of right ones; as good as all where there was nothing to decide."""
    return right / made if made else 1.0
